"""Reference motions of the humanoid, made by `python -m examples.motions`: no recording of a person is in them."""

from pathlib import Path

MOTIONS = tuple(Path(__file__).with_name(f"{name}.npz") for name in ("walk", "turn", "squat", "get_up"))
"""The clips that examples.tracking tracks by default."""
STROLL = Path(__file__).with_name("stroll.npz")
"""A walk at several velocities, the style of examples.walking_amp."""
