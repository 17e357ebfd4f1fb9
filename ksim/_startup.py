"""Importing this module prepares the process; see `ksim._process`."""

from ksim._process import prepare_process

prepare_process()
