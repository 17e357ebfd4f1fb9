"""The launcher of a group of processes that train together: `python -m ksim.launch`."""

from ksim.launch.command import main as main
