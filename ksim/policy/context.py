"""What a policy acts in where nothing is trained: while it is evaluated, shown or exported."""

import copy
import dataclasses
import functools
from typing import Any, TypeVar

import jax

from ksim.parallel.layout import SingleDevice
from ksim.rollout.environment import Environment
from ksim.task.rl import RLTask
from ksim.types import Device

TaskT = TypeVar("TaskT", bound=RLTask[Any])


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyContext:
    """What the policies of a task act in where nothing is trained.

    Attributes:
        task: The task, for its options and hooks.
        env: Its environment of evaluations, in native MuJoCo whatever trains.
        device: Where this is stepped: a CPU for native MuJoCo, or every step would cross to the GPU (untried) and back.
        training_engine: The engine that training steps.
        training_device: The first device of this process that training runs on.
    """

    task: RLTask[Any]
    env: Environment
    device: Device
    training_engine: str
    training_device: Device


def policy_context(task: RLTask[Any]) -> PolicyContext:
    """The context of a task's policies; makes the environment of evaluations."""
    env, training_device = task.eval_environment, task.layout.local_devices[0]
    return PolicyContext(
        task=task,
        env=env,
        device=_cpu_or(training_device) if env.engine_name == "mujoco" else training_device,
        training_engine=task.picked_engine[0],
        training_device=training_device,
    )


def without_caches(task: TaskT) -> TaskT:
    """A copy of a task without what was made for the training's layout and environment."""
    twin = copy.copy(task)
    for name in [name for name in vars(task) if isinstance(getattr(type(task), name, None), functools.cached_property)]:
        del vars(twin)[name]
    return twin


def task_on_one_device(task: TaskT) -> TaskT:
    """A copy of a task whose policy acts in the environment of evaluations, on one device, whatever has trained it.

    Hooks that make the policy, such as `_get_initial_model`, find that environment, and no other is made.
    """
    twin = without_caches(task)
    twin.layout = SingleDevice(axis_name=task.device_axis)
    twin.environment = twin.eval_environment
    return twin


def _cpu_or(device: Device) -> Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to leave CPUs alone
        return device
