"""Runs several programs in one process, each with the same options.

python together.py [--prepare] PROGRAM ... [OPTION=VALUE ...]

With --prepare each run ends before its training step is compiled.
"""

import runpy
import sys

from ksim.train import run


def stop(run):
    """Ends a run in place of `compile_step`."""
    assert run.traced
    print("Traced.")
    sys.exit(0)


arguments = sys.argv[1:]
if "--prepare" in arguments:
    arguments.remove("--prepare")
    run.compile_step = stop
sys.path.insert(0, "")
for program in [argument for argument in arguments if argument.endswith(".py")]:
    print(f"Program {program}", flush=True)
    sys.argv = [program, *(argument for argument in arguments if "=" in argument)]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
