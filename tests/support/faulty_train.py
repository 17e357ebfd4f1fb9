"""A training that kills itself, or its writes, at a moment it is told.

python -m tests.support.faulty_train TASK MOMENT KEY=VALUE ... trains; MOMENT is `never`, or KIND:COUNT:DELAY_S, as in
`save:3:0.01`: 10 ms after the third save of this process has begun. Kinds are rollout, save and evaluation.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.checkpoint import saver
from ksim.cli import launch
from ksim.evaluate.evaluator import EpisodeRunner
from ksim.train import loop
from tests.support.tasks import CartPoleConfig, CartPoleTask

TASKS: dict[str, Any] = {"point_mass": (PointMassTask, PointMassConfig), "cart_pole": (CartPoleTask, CartPoleConfig)}
WATCHED = {"rollout": (loop, "iterate"), "save": (saver.Saver, "_write"), "evaluation": (EpisodeRunner, "__call__")}
SMALL = ["num_envs=16", "rollout_length=8", "actor_sizes=[8]", "critic_sizes=[8]", "tensorboard=false"]
QUIET = ["eval_num_envs=4", "video=false", "plots=false", "save_every_n_seconds=null", "eval_every_n_seconds=null"]


def kill_at(kind: str, count: int, delay_s: float) -> None:
    """Sees to it that this process is killed when the `count`-th of a kind has gone on for so long."""
    holder, name = WATCHED[kind]
    original, calls = getattr(holder, name), []

    def kill() -> None:
        time.sleep(delay_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def watched(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            threading.Thread(target=kill, daemon=True).start()
        return original(*args, **kwargs)

    setattr(holder, name, watched)


if __name__ == "__main__":
    task, moment, *arguments = sys.argv[1:]
    if moment != "never":
        kind, count, delay_s = moment.split(":")
        kill_at(kind, int(count), float(delay_s))
    task_class, config = TASKS[task]
    small = SMALL if task == "point_mass" else []
    launch(task_class, config(), [*small, *QUIET, *arguments])
