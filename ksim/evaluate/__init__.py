"""Whole episodes of a policy: figures, recordings, videos, plots; and learning curves."""
