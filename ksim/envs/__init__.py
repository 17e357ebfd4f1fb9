"""Environments that others made, each package of them in one file: `playground` and `brax` (extras)."""
