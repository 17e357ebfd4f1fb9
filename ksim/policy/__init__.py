"""A trained policy as a function: its program in a checkpoint, loading it, exporting it."""
