"""Policies outside training: their environment and device, loading them, and teachers."""

import copy
import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from ksim.checkpoint.format import Checkpoint, load_checkpoint, read_document
from ksim.checkpoint.options import check_evaluated, kept_in_run, make_config
from ksim.checkpoint.snapshot import changed_options, check_policy_fits, restored_policy
from ksim.errors import ConfigError
from ksim.learn.teacher import Teacher
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.layout import SingleDevice
from ksim.parallel.placement import named_leaves
from ksim.policy.program import (
    PolicyProgram,
    compiled_program,
    deterministic_policy,
    load_program,
    policy_arrays,
    policy_programs,
)
from ksim.policy.program_safety import RefusedError, check_apart
from ksim.rollout.environment import Environment
from ksim.task.rl import RLTask
from ksim.types import Device, Observation

TaskT = TypeVar("TaskT", bound=RLTask[Any])


@dataclasses.dataclass(frozen=True, eq=False)
class PolicyContext:
    """The environment and devices of a policy outside training.

    Attributes:
        env: The evaluation environment, in native MuJoCo whatever engine trains.
        device: The device that steps `env`. A CPU for native MuJoCo: otherwise every step would be copied to the GPU
            and back.
        training_device: The first device of this process that training runs on.
    """

    task: RLTask[Any]
    env: Environment
    device: Device
    training_engine: str
    training_device: Device


def policy_context(task: RLTask[Any]) -> PolicyContext:
    """The context of a task's policies. Makes the evaluation environment."""
    env, training_device = task.eval_environment, task.layout.local_devices[0]
    return PolicyContext(
        task=task,
        env=env,
        device=_cpu_or(training_device) if env.engine_name == "mujoco" else training_device,
        training_engine=task.picked_engine.name,
        training_device=training_device,
    )


def without_caches(task: TaskT) -> TaskT:
    """A copy of a task without its cached properties, which belong to the training's layout and environment."""
    twin = copy.copy(task)
    for name in [name for name in vars(task) if isinstance(getattr(type(task), name, None), functools.cached_property)]:
        del vars(twin)[name]
    return twin


def task_on_one_device(task: TaskT) -> TaskT:
    """A copy of a task that uses the evaluation environment on one device, whatever it was trained on.

    Hooks that make the policy, such as `_get_initial_model`, see the evaluation environment. No other is made.
    """
    twin = without_caches(task)
    twin.layout = SingleDevice(axis_name=task.device_axis)
    twin.environment = twin.eval_environment
    return twin


def _cpu_or(device: Device) -> Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX is configured without the CPU backend
        return device


logger = logging.getLogger(__name__)

PROGRAM, START = "policy.program", "policy.start"
"""Names of the checkpoint arrays that hold the serialized programs of its policy; see `ksim.policy.program`."""
_BY_TASK = "Load it by the class of its task, ksim.load_policy(path, task=...), or evaluate it there: run_mode=eval."
_OWN = "policy.arrays."
# Prefixes of array names in a policy, and the matching prefixes in a checkpoint.
_SHARED = {"network.": "learner.params.", "normalizer.": "learner.normalizer."}


class Policy:
    """A trained deterministic policy with its observation statistics: from raw observations to actions.

    Calls keep the memory of a recurrent policy; `reset` starts an episode. `step` takes and returns the memory instead.

    Attributes:
        obs_sizes: The length of each observation group that the policy reads, usually only `actor`.
        action_size: Length of the action.
        iteration: Iterations after which the checkpoint was saved.
        document: Other data of the checkpoint about its run, such as its `config`.
        program: The function that computes the action.
        arrays: The arrays that the program reads, by name.
    """

    def __init__(self, program: PolicyProgram, arrays: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        self.program, self.arrays = program, arrays
        self.obs_sizes, self.action_size = dict(program.obs_sizes), program.action_size
        self.iteration, self.document = int(document["iteration"]), document
        self._memory: Any = None

    def reset(self) -> None:
        """Starts an episode: resets the memory."""
        self._memory = None

    def __call__(self, obs: Any) -> Float[np.ndarray, "*b a"]:
        """The action for the current observation; see `step`."""
        action, self._memory = self.step(obs, self._memory)
        return action

    def step(self, obs: Any, memory: Any = None) -> tuple[Float[np.ndarray, "*b a"], Any]:
        """The action for an observation, and the next memory.

        Args:
            obs: Raw observations of the group `actor`, of shape (n,) or (b, n) for several robots; or a mapping of
                groups to such arrays.
            memory: The memory that the last call returned; None at the start of an episode.

        Returns:
            The action, of shape (a,) or (b, a), in the units of the task's actuators; and the memory, None for a
            feed-forward policy.

        Raises:
            ConfigError: A group is missing, or of another length.
        """
        groups = obs if isinstance(obs, Mapping) else {"actor": obs}
        rows = {name: self._rows(name, groups) for name in self.obs_sizes}
        action, memory = self.program(self.arrays, rows, memory)
        is_single = np.ndim(groups[next(iter(self.obs_sizes))]) == 1
        return np.asarray(action)[0] if is_single else np.asarray(action), memory or None

    def _rows(self, group: str, groups: Mapping[str, Any]) -> np.ndarray:
        size = self.obs_sizes[group]
        found = f"shape {np.shape(groups[group])}" if group in groups else "not been given"
        if group not in groups or np.ndim(groups[group]) not in (1, 2) or np.shape(groups[group])[-1] != size:
            raise ConfigError(
                f"Observation group {group!r} must have shape ({size},) or (robots, {size}), but has {found}."
            )
        return np.atleast_2d(np.asarray(groups[group], np.float32))


def load_policy(path: str | Path, task: type[RLTask[Any]] | None = None) -> Policy:
    """Loads the policy of a checkpoint. Runs no code from the checkpoint except programs that only compute.

    Args:
        path: A run's directory, for its newest checkpoint; `<run>/checkpoints/best`; or one of its checkpoints.
        task: The class of the task that trained it. Its code then builds the policy instead of the program in the
            checkpoint. Use it if the program is missing, or too old or too new for this JAX.

    Raises:
        ConfigError: There is no checkpoint, it is damaged or does not fit the task, or, without a task, it has no
            program that this JAX can run.
    """
    if task is not None:
        return _policy_of_task(path, task)
    return policy_in(load_checkpoint(path, "path"))


def policy_in(checkpoint: Checkpoint) -> Policy:
    """The policy of a checkpoint, from its saved program.

    Raises:
        ConfigError: The checkpoint has no program that this JAX can run.
    """
    if not {PROGRAM, START} <= checkpoint.arrays.keys():
        raise ConfigError(
            f"Checkpoint {checkpoint.path} holds no program of its policy. It could not be exported (the log of the "
            f"run has the reason), or an earlier ksim wrote the checkpoint. {_BY_TASK}"
        )
    programs = (checkpoint.arrays[PROGRAM].tobytes(), checkpoint.arrays[START].tobytes())
    try:
        check_apart(*programs)
        program = load_program(*programs)
    except RefusedError as error:
        raise ConfigError(
            f"The program of the policy in checkpoint {checkpoint.path} is not run: {error}. It was exported by JAX "
            f"{checkpoint.document['versions'].get('jax', 'of an unknown version')}, and this is {jax.__version__}. "
            f"{_BY_TASK}"
        ) from error
    arrays = {name: checkpoint.arrays.get(_place(name, checkpoint.arrays)) for name in program.arrays}
    for name, wanted in program.arrays.items():
        found = arrays[name]
        if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
            raise ConfigError(
                f"The program of the policy in checkpoint {checkpoint.path} reads {name!r:.80} as "
                f"{wanted.dtype}{list(wanted.shape)}, which the checkpoint does not hold. {_BY_TASK}"
            )
    return Policy(program, arrays, checkpoint.document)


def _policy_of_task(path: str | Path, task_class: type[RLTask[Any]]) -> Policy:
    """The policy of a checkpoint, built by the code of its task."""
    base = dataclasses.replace(task_class.get_config_class()(), run_mode="eval", checkpoint=str(path))
    task = task_class(make_config(base, [], task_class.name_with(base), task_class.pretrained))
    with jax.default_matmul_precision(task.config.matmul_precision):
        checkpoint, context, model = load_task_policy(task)
        program = compiled_program(deterministic_policy(model, context.task.obs_sizes))
    return Policy(program, policy_arrays(model), read_document(checkpoint))


def load_task_policy(
    task: RLTask[Any], context: PolicyContext | None = None
) -> tuple[Path, PolicyContext, NormalizedActorCritic]:
    """The path of the checkpoint named by the config, the context to run it in, and its policy.

    Args:
        context: The context, if it was made before; of `task_on_one_device`.

    Raises:
        ConfigError: There is no checkpoint, or it does not fit the task.
    """
    checkpoint = load_checkpoint(task.config.checkpoint, "checkpoint")
    check_evaluated(task.config, changed_options(task.config, checkpoint))
    # Native MuJoCo on one device, whatever engine trained the policy: a sim-to-sim check.
    context = context or policy_context(task_on_one_device(task))
    check_policy_fits(checkpoint, context.task)
    learner = restored_policy(checkpoint, context.task.initial_learner().state)
    return checkpoint.path.absolute(), context, context.task.policy_of(learner)


def program_arrays(model: NormalizedActorCritic, obs_sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The programs that a run saves in its checkpoints for `load_policy`; empty if the policy cannot be exported.

    They take the model's arrays as inputs, so they fit every checkpoint.
    """
    try:
        step, start = policy_programs(model, obs_sizes)
    except Exception as error:  # noqa: BLE001 - whatever a user's model raises; training continues
        logger.warning("Checkpoints will hold no program of the policy, for ksim.load_policy: %s", error)
        return {}
    # Learned arrays are in the checkpoint already; the rest never changes.
    learned = named_leaves(eqx.filter(model, eqx.is_inexact_array))
    own = {f"{_OWN}{name}": np.array(x) for name, x in policy_arrays(model).items() if name not in learned}
    return own | {PROGRAM: np.frombuffer(step, np.uint8), START: np.frombuffer(start, np.uint8)}


def _place(name: str, arrays: Mapping[str, np.ndarray]) -> str:
    """The name in a checkpoint of an array of the policy."""
    for start, there in _SHARED.items():
        if name.startswith(start) and there + name.removeprefix(start) in arrays:
            return there + name.removeprefix(start)
    return f"{_OWN}{name}"


_KEPT = "teacher."
"""Prefix of the names of a teacher's arrays in a checkpoint of its student."""


def load_teacher(task: RLTask[Any], path: str | Path) -> Teacher:
    """Loads the teacher of a task from a run's directory or a checkpoint of the teacher.

    Checkpoints of a student hold its teacher. A run that is resumed or replayed loads the teacher from there, even if
    the teacher's own run has moved.

    Raises:
        ConfigError: There is no such checkpoint, it is damaged or holds no program of its policy, or the policy has a
            memory.
    """
    checkpoint = _kept_in_run(task) or load_checkpoint(path, "teacher")
    policy = policy_in(checkpoint)
    if policy.program.memory_names:
        raise ConfigError(
            f"teacher ({path}) must be a policy without memory, but its actions depend on "
            f"{len(policy.program.memory_names)} remembered arrays. Train it with model=mlp; the student may be a gru."
        )
    read = sorted({PROGRAM, START, *(_place(name, checkpoint.arrays) for name in policy.program.arrays)})
    kept = {**{name: checkpoint.arrays[name] for name in read}, "iteration": np.int32(policy.iteration)}
    return Teacher(
        act=functools.partial(_act, policy.program, {name: policy.arrays[name] for name in policy.program.arrays}),
        obs_sizes=policy.obs_sizes,
        action_size=policy.action_size,
        source=f"{path}, iteration {policy.iteration}",
        kept={f"{_KEPT}{name}": np.asarray(x) for name, x in kept.items()},
    )


def _act(program: PolicyProgram, arrays: dict[str, Any], obs: Observation) -> Array:
    step = lambda rows: program.step(arrays, rows, {})[0]
    if not program.takes_one_row:
        return step(obs)
    return jax.lax.map(lambda row: step(jax.tree.map(lambda x: x[None], row))[0], obs)


def _kept_in_run(task: RLTask[Any]) -> Checkpoint | None:
    """The teacher in the checkpoint that a task resumes or replays, as a separate checkpoint."""
    found = kept_in_run(task, _KEPT)
    if found is None:
        return None
    arrays = dict(found.arrays)
    document = {**found.document, "iteration": int(arrays.pop("iteration"))}
    return dataclasses.replace(found, arrays=arrays, document=document)
