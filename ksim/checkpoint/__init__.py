"""Checkpoints: their format on disk, what of a training state is in them, who writes them, dumps and their replay."""
