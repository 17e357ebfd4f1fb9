"""MJX, imported without the lines that it prints where the optional warp-lang package is missing."""

import contextlib
import io
import sys

_printed = io.StringIO()
with contextlib.redirect_stdout(_printed):
    from mujoco import mjx as mjx
# What another thread printed meanwhile is not lost.
sys.stdout.writelines(x for x in _printed.getvalue().splitlines(keepends=True) if not x.startswith("Failed to import"))
