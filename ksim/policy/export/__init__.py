"""run_mode=export: a policy in files that run without ksim."""
