"""Prepares the runs of several programs in one process, up to the compilation of their training steps.

python prepare.py PROGRAM ...
"""

import runpy
import sys

from ksim.train import run


def stop(run):
    """Ends a run in place of `compile_step`."""
    assert run.traced
    print("Traced.")
    sys.exit(0)


run.compile_step = stop
sys.path.insert(0, "")
for program in sys.argv[1:]:
    print(f"Program {program}")
    sys.argv = [program, "num_envs=4"]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
