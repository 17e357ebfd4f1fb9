"""Trains one task with ksim, as `benchmarks.learning` asks for it.

python -m benchmarks.learning_task playground/CheetahRun learner=reppo reward_scale=10 num_envs=512

The first argument names the task; all others but `learner` and `reward_scale` are its options. Rewards are scaled for
the learner alone: evaluations report the return of the task itself.
"""

import dataclasses
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.brax_ppo import FIRST_UPDATE

import ksim
from ksim.envs.brax import BraxTask
from ksim.envs.playground import PlaygroundTask
from ksim.task.reppo import PPO_ALONE

import jax

SUITES: dict[str, Any] = {"playground": PlaygroundTask, "brax": BraxTask}
"""Packages of environments, by the word before the slash."""


class ScaledRewards(ksim.Environment):
    """An environment whose rewards are multiplied; all else is its own.

    Attributes:
        env: The environment.
        scale: The factor.
    """

    env: ksim.Environment
    scale: float

    @property
    def action_size(self) -> int:
        return self.env.action_size

    def reset(self, key: jax.Array) -> ksim.EnvState:
        return self.env.reset(key)

    def step(self, state: ksim.EnvState, action: jax.Array) -> ksim.EnvState:
        state = self.env.step(state, action)
        return dataclasses.replace(state, reward=self.scale * state.reward)


def task_of(name: str, learner: str = "ksim") -> tuple[type[Any], Any]:
    """The class of a task, and the options that it starts from.

    Args:
        name: `playground/ENV`, `brax/ENV`, or `MODULE:CLASS` as in `examples.point_mass:PointMassTask`.
        learner: `ksim` for the algorithm of the task, or `reppo`.

    Raises:
        ConfigError: There is no such task.
    """
    task_class, config = _own_task_of(name)
    return under_reppo(task_class, config) if learner == "reppo" else (task_class, config)


def _own_task_of(name: str) -> tuple[type[Any], Any]:
    suite, slash, env = name.partition("/")
    if slash and suite in SUITES:
        return SUITES[suite], dataclasses.replace(SUITES[suite].published_config(env), env=env)
    module, colon, class_name = name.partition(":")
    try:
        if colon:
            task_class = getattr(importlib.import_module(module), class_name)
            return task_class, task_class.get_config_class()()
    except (ImportError, AttributeError) as error:
        raise ksim.ConfigError(f"Task {name!r} cannot be imported: {error}.") from error
    raise ksim.ConfigError(f"Task {name!r} must be playground/ENV, brax/ENV or MODULE:CLASS.")


def under_reppo(task_class: type[Any], config: Any) -> tuple[type[Any], Any]:
    """The class of a task of PPO, trained by REPPO instead, and its options."""
    config_class = dataclasses.make_dataclass("Config", [], bases=(type(config), ksim.REPPOConfig), kw_only=True)
    names = [option.name for option in dataclasses.fields(config) if option.name not in PPO_ALONE]
    given = {name: getattr(config, name) for name in names}
    bases = (ksim.REPPOTask, task_class)
    return type(task_class.__name__, bases, {}), jax.tree_util.register_dataclass(config_class)(**given)


def measured(task_class: type[Any], reward_scale: float) -> type[Any]:
    """The task, saying when its first update is done, with its rewards scaled for the learner."""

    class Reporting(task_class):
        def on_step_end(self, state: ksim.TrainingStatus) -> None:
            super().on_step_end(state)
            if state.iteration == 1:
                print(FIRST_UPDATE, flush=True)

    class Scaled(Reporting):
        def get_environment(self, engine: str, num_devices: int) -> ksim.Environment:
            return ScaledRewards(super().get_environment(engine, num_devices), reward_scale)

        def get_eval_environment(self, engine: str) -> ksim.Environment:
            return super().get_environment(engine, 1)

    return Reporting if reward_scale == 1 else Scaled


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program; exits the process as a task does."""
    name, *options = sys.argv[1:] if argv is None else argv
    own = {key: value for key, _, value in (x.partition("=") for x in options) if key in ("learner", "reward_scale")}
    task_class, config = task_of(name, own.get("learner", "ksim"))
    rest = [option for option in options if option.partition("=")[0] not in own]
    measured(task_class, float(own.get("reward_scale", 1))).launch(config, rest)


if __name__ == "__main__":
    main()
