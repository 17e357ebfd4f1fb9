"""Robot models written for the examples."""

from pathlib import Path

HUMANOID = Path(__file__).with_name("humanoid.xml")
QUADRUPED = Path(__file__).with_name("quadruped.xml")
