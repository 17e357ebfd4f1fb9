"""Tools for those who work on ksim, each run with `python -m ksim.tools.<name>`."""
