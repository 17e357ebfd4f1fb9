"""Checkpoints: format on disk, content, writing, dumps and replay."""
