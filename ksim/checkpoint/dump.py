"""Dumps for debugging non-finite numbers: the state before the iteration in which they appeared, and its replay."""

import dataclasses
import logging
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ksim.checkpoint.format import DUMPS, Checkpoint, list_checkpoints, load_checkpoint, write_checkpoint
from ksim.checkpoint.snapshot import host_state, named_arrays, restored, run_document
from ksim.config import as_argument
from ksim.host.terminal import print_figures, print_warning
from ksim.learn.guards import BAD_UPDATES
from ksim.parallel.multihost import is_main_process
from ksim.rollout.unroll import NON_FINITE
from ksim.task.result import RunResult
from ksim.task.rl import RLTask
from ksim.types import TrainState, Trajectory

logger = logging.getLogger(__name__)

_MAX_LISTED = 5
"""Most non-finite steps that a replay prints."""
MAX_DUMPS = 8
"""Most dumps in the directory of a run, however often the run is resumed."""
KINDS = {"policy/bad_updates": "non-finite updates, which were skipped", NON_FINITE: "non-finite environment steps"}
"""Metrics that count non-finite updates and steps, with the words for them in messages."""


class NanDump:
    """Dumps of the state before the first iteration with a non-finite update, and the first with a non-finite env step.

    A training step depends only on the state, so a replay repeats the failure: see `replay`.
    """

    def __init__(self, task: RLTask[Any], run_dir: Path) -> None:
        self._task, self._run_dir = task, run_dir
        self._seen: set[str] = set()
        self._last: Path | None = None

    def after_iteration(
        self, iteration: int, before: TrainState, record_before: dict[str, Any], metrics: dict[str, float]
    ) -> None:
        """Checks the metrics of an iteration if `dump_on_nan` is set, and writes a dump if needed.

        All processes must call this, with the same metrics. Iterations count from 1. The state before it is placed; a
        run can resume from the dump by `record_before`, the result of `Progress.record`.
        """
        if not self._task.config.dump_on_nan:
            return
        new = [name for name in KINDS if metrics.get(name) and name not in self._seen]
        self._seen.update(new)
        path = self._run_dir / DUMPS / str(iteration)
        if not new:
            return
        state = host_state(self._task, before)
        what = " and ".join(KINDS[name] for name in new)
        if not is_main_process():
            return
        figures = {name: x if math.isfinite(x) else None for name, x in metrics.items()}
        document = run_document(self._task, iteration=iteration - 1, progress=record_before, metrics=figures)
        try:
            if not path.exists():
                if len(list_checkpoints(path.parent)) >= MAX_DUMPS:
                    return
                write_checkpoint(path, {**named_arrays(state), **self._task.kept_arrays()}, document)
                print_warning(
                    f"Iteration {iteration} had {what}. The state before it is saved; to replay it: "
                    f"run_mode=replay {as_argument('checkpoint', str(path))}"
                )
            self._last = path
        except Exception as error:
            logger.warning("The state before iteration %d cannot be dumped.", iteration, exc_info=error)

    def hint(self) -> str:
        """A sentence with the path of the dump, for the message of a failed run; empty without a dump."""
        return "" if self._last is None else f" The first such iteration can be replayed: {self._last}."


@dataclasses.dataclass(frozen=True)
class Replay:
    """A replayed iteration: `state` before it on the task's devices, `trajectory` (env, time) on the host."""

    state: TrainState
    trajectory: Trajectory
    metrics: dict[str, Any]

    def bad_steps(self) -> np.ndarray:
        """Indices (env, step) of non-finite steps, shape (n, 2), in order of time."""
        metrics = self.trajectory.metrics
        if NON_FINITE not in metrics:  # the task overrides the rollout
            return np.zeros((0, 2), int)
        bad_et = np.asarray(metrics[NON_FINITE]) > 0
        place = np.argwhere(bad_et.T)
        return place[:, ::-1]

    def bad_metrics(self, env: int, step: int) -> list[str]:
        """Names of the metrics, such as rewards, that are non-finite in a step of an env."""
        return [name for name, x_et in self.trajectory.metrics.items() if not np.isfinite(x_et[env, step])]


def load_dump(task: RLTask[Any], path: str) -> TrainState:
    """The state of a dump or a checkpoint on the task's devices, as input of the step by `task.make_train_step`.

    Raises:
        ConfigError: There is no such checkpoint, it is damaged, or it does not fit the task.
    """
    return _placed(task, load_checkpoint(path, "checkpoint"))


def _placed(task: RLTask[Any], checkpoint: Checkpoint) -> TrainState:
    with jax.default_matmul_precision(task.config.matmul_precision):
        task.check()
        return task.layout.place(restored(checkpoint, task.initial_state()))


def replay(task: RLTask[Any], state: TrainState) -> Replay:
    """Repeats the iteration that follows a state."""
    layout = task.layout
    step = task.make_train_step(layout.axis_name)
    # The precision of the run, whatever the caller has set.
    with jax.default_matmul_precision(task.config.matmul_precision):
        _, collected = layout.map(lambda envs, learner: step.collect(envs, learner))(state.envs, state.learner)
        _, metrics = layout.map(lambda learner, collected: step.learn(learner, collected))(state.learner, collected)
    return Replay(state, layout.join_envs(collected.trajectory), layout.first(metrics))


def replay_dump(task: RLTask[Any]) -> RunResult:
    """Replays the dump that the config names and prints its non-finite numbers; see `RLTask.run`.

    Raises:
        ConfigError: There is no such dump, it is damaged, or it does not fit the task.
    """
    path = task.config.checkpoint
    assert path is not None  # the config was checked
    dump = load_checkpoint(path, "checkpoint")
    found = replay(task, _placed(task, dump))
    places = found.bad_steps()
    figures = {
        "steps not finite": f"{len(places)} of {found.trajectory.reward.size}",
        "updates skipped": f"{float(found.metrics[BAD_UPDATES]):.0f}",
    }
    for env, step in places[:_MAX_LISTED]:
        names = ", ".join(found.bad_metrics(env, step)) or "no metric; an observation or the whole reward"
        figures[f"env {env}, step {step}"] = names
    names = [name for name, x in found.metrics.items() if not np.isfinite(np.asarray(x)).all()]
    figures["metrics not finite"] = ", ".join(names) or "none"
    leaves = jax.tree_util.tree_leaves_with_path(task.layout.first(found.state.learner.params))
    bad = [jax.tree_util.keystr(leaf_path) for leaf_path, x in leaves if not bool(jnp.isfinite(x).all())]
    figures["parameters not finite"] = ", ".join(bad) or "none"
    print_figures(f"Replay of {path}", figures)
    dump_path = dump.path.absolute()
    return RunResult(exit_code=0, run_dir=dump_path.parents[1], checkpoint=dump_path)
