"""The training loop and its parts: where it starts and stops, timing, callbacks, the run directory."""
