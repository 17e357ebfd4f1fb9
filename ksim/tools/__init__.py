"""Programs around runs and for the docs, each run with `python -m ksim.tools.<name>`."""
