"""The point mass in processes that kill themselves: python -m tests.support.mortal_job ITERATION:PROCESS,... OPTIONS

Each once, after so many iterations, and only when the newest checkpoint that is due has been written.
"""

import os
import signal
import sys
import time
from pathlib import Path

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.parallel.multihost import process_index
from ksim.train import loop

DEATHS = dict(map(int, death.split(":")) for death in sys.argv.pop(1).split(","))
iterate = loop.iterate


def mortal(run, step):
    iteration, interval = run.progress.iteration, run.task.config.save_every_n_iterations
    grave = Path(f"died_after_{iteration}")
    if DEATHS.get(iteration) == process_index() and not grave.exists():
        while not Path("run", "checkpoints", str(iteration // interval * interval)).exists():
            time.sleep(0.01)
        grave.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    iterate(run, step)


loop.iterate = mortal

if __name__ == "__main__":
    PointMassTask.launch(PointMassConfig())
