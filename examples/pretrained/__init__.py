"""Trained policies of the examples, as `run_mode=export` writes them: `checkpoint=pretrained`."""

from pathlib import Path

PRETRAINED = Path(__file__).parent
