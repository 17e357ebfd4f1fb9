"""The host's side of a run, never traced: the loop, what it writes and what it prints."""
