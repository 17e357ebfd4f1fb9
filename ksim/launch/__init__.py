"""The launcher of a group of processes that train together: `python -m ksim.launch`."""

from ksim.launch.__main__ import main as main
