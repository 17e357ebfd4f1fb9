"""Watching a policy and commanding it by hand: in MuJoCo's own window, or in a browser."""
