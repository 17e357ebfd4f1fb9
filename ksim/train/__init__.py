"""The training loop and its parts: start, stop, timing, callbacks, checks, saving."""
