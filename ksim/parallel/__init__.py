"""How a step runs on the devices of a machine: the only package that knows of devices."""
