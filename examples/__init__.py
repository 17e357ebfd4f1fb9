"""Tasks that are run with `python -m examples.<name>`, and are there to be copied."""
