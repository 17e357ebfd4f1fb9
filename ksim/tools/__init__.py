"""Command-line tools for runs and for the docs, started by `python -m ksim.tools.<name>`."""
