"""Evaluation of a policy over whole episodes: statistics, recordings, videos, plots; and learning curves."""
