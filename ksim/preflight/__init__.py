"""Checks and measurements before the first iteration: results of hooks, devices, memory."""
