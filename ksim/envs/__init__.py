"""Third-party environments, one module per package: `playground` and `brax` (extras)."""
