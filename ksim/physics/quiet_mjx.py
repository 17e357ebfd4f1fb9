"""MJX, imported without the lines that it prints if the optional warp-lang package is missing."""

import contextlib
import io

_printed = io.StringIO()
with contextlib.redirect_stdout(_printed):
    from mujoco import mjx as mjx
for _line in _printed.getvalue().splitlines():
    if not _line.startswith("Failed to import"):
        print(_line)  # noqa: T201 - printed by another thread meanwhile
