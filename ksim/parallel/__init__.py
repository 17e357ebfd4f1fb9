"""Running a step on the devices of a machine. No other package deals with devices."""
