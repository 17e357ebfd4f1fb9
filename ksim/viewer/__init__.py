"""Watching a policy and commanding it by hand, in MuJoCo's window or in a browser."""
