"""The launcher of a group of processes that train together: `python -m ksim.launch`."""
