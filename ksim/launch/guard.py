"""A program that outlives the launcher, and kills the process groups that a killed launcher leaves behind.

It runs by its path. Lines `+GROUP` and `-GROUP` on stdin report started and ended process groups. The end of stdin
means that the launcher has ended. The kernel kills the launcher's children with it (`child.py`), but not their
children.
"""

import contextlib
import os
import signal
import sys


def guard() -> None:
    """Kills the process groups that the launcher leaves behind."""
    groups = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    guard()
