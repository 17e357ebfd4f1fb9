"""Measurements of speed and memory; each is run by hand, none is a test."""

from typing import Any

PLAIN: dict[str, Any] = {"num_passes": 4, "symmetry": "off"}
"""Options of the walking humanoid in measurements of PPO itself, without its own passes and mirror images."""
