"""Small programs around runs."""
