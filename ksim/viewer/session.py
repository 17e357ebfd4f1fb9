"""Envs under a policy, independent of their display."""

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from ksim.errors import ConfigError
from ksim.keys import VIEWER
from ksim.mdp.commands import AbstractCommand, VelocityCommand, unscaled
from ksim.nn.actor_critic import AbstractActorCritic, act
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics.mujoco import MujocoEngine
from ksim.physics.names import add_to_base_velocity
from ksim.rollout.environment import Environment, Shown, select_envs
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.types import EnvState
from ksim.viewer.controls import CommandNumber, command_numbers, with_manual_commands

ACTUATION = "qfrc_actuator"
"""The field of MjData with the actuators' forces on the joints, from which contact forces are computed."""


@dataclass(frozen=True)
class Frame:
    """One robot after one control step.

    Attributes:
        time_s: Seconds since the reset.
        qpos: Generalized positions, in m and rad, shape (q,).
        qvel: Generalized velocities, in m/s and rad/s, shape (v,).
        extra: State that only some models have, by its name in MjData.
        actuation: Forces of the actuators on the joints, in N and Nm, shape (v,); None if unknown.
        rewards: Rewards of the step per second: `total`, and the terms by name.
    """

    time_s: float
    qpos: np.ndarray
    qvel: np.ndarray
    extra: Mapping[str, np.ndarray]
    actuation: np.ndarray | None
    commands: Mapping[str, np.ndarray]
    rewards: Mapping[str, float]

    @property
    def is_finite(self) -> bool:
        """Whether the state is finite, so that it can be shown."""
        return bool(np.isfinite(self.qpos).all() and np.isfinite(self.qvel).all())


class Pose:
    """A simulation in the state of a frame, with all that follows from it; contact forces are under its actuation."""

    def __init__(self, mj_model: mujoco.MjModel) -> None:
        # The recorded forces take the place of the actuators, whose controls and gains differ from step to step.
        self._mj_model = copy.copy(mj_model)
        self._mj_model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self.data = mujoco.MjData(mj_model)
        self.frame: Frame | None = None

    def show(self, frame: Frame) -> None:
        """Moves to a frame."""
        self.frame = frame
        self.data.qpos[:], self.data.qvel[:] = frame.qpos, frame.qvel
        self.data.qfrc_applied[:] = 0.0 if frame.actuation is None else frame.actuation
        for name, value in frame.extra.items():
            getattr(self.data, name)[:] = value
        self.data.time = frame.time_s
        mujoco.mj_forward(self._mj_model, self.data)


PUSH_SPEED = 0.5
"""Velocity added to the base by a push, in m/s."""
_REWARD = "reward/"


class ViewSession:
    """Envs under the deterministic policy, with commands set from outside.

    Episodes ignore time limits; after a fall the next one begins. `advance` belongs to one thread;
    everything else that changes the session may be called from any, and takes effect with the next `advance`.

    In an environment that is not made of ksim's terms there are no commands to set, no pushes and no contact forces.

    Attributes:
        poses: The states to show, one per env.
        numbers: The numbers of the commands, in order; all envs have the same.
        commands: The task's commands, by name, without wrappers.
        model: The policy, on raw observations; another one of the same structure may take its place.
        base_body: The index of the body with a free joint, which can be followed; None where there is none.
        followed: The index of the env that plots, recordings and the camera follow.
        num_falls: Episodes that ended by termination, over all envs.
        on_step: Called after each control step and each reset of the followed env, with its frame and whether it is
            the first of an episode.
    """

    def __init__(
        self,
        env: Environment,
        model: AbstractActorCritic,
        *,
        seed: int,
        num_envs: int = 1,
        axis_name: str = DEVICE_AXIS,
    ) -> None:
        """Compiles the reset and the step, and starts an episode in each env.

        Args:
            seed: Seeds the episodes and the pushes.

        Raises:
            ConfigError: The environment has no model to show, or a command's ranges do not fit it.
        """
        env, shown = _with_actuation(env), shown_of(env)
        self.model = model
        self.mj_model = shown.model.mj_model
        self.ctrl_dt = shown.model.ctrl_dt
        self.poses = [Pose(self.mj_model) for _ in range(num_envs)]
        names = shown.model.names
        self.base_body = names.base_body() if names.has_base else None
        self.can_push = names.has_base and isinstance(env, MdpEnvironment)
        self.paused = False
        self.followed = 0
        self.num_falls = 0
        self.on_step: Callable[[Frame, bool], None] = lambda *_: None
        self._key = jax.random.fold_in(jax.random.key(seed), VIEWER)
        self._num_resets = 0
        self._lock = threading.Lock()
        self._reset_asked = self._push_asked = False
        self._rng = np.random.default_rng(seed)
        self._episode_step_e = np.zeros(num_envs, int)
        programs = _Programs(env, shown, can_push=self.can_push)
        self.numbers: list[CommandNumber] = []
        self.commands: dict[str, AbstractCommand] = {}
        self._start: dict[str, np.ndarray] = {}
        if isinstance(env, MdpEnvironment):
            self.numbers, self._start = command_numbers(env.mdp.commands, _drawn(env, self._key, axis_name))
            self.commands = {name: unscaled(command) for name, command in env.mdp.commands.items()}
        self._commands = dict(self._start)
        self._seen: dict[str, Any] = {}
        self._compile(programs, num_envs, axis_name)
        self._restart(np.ones(num_envs, bool))
        self.has_forces = self._seen["actuation"] is not None

    def _compile(self, programs: "_Programs", num_envs: int, axis_name: str) -> None:
        """Compiles the start of episodes and the step, at the same time, and prepares states of zeros to replace."""
        program = lambda function: cast(Any, eqx.filter_jit(bind_axis(function, axis_name)))
        keys, commands = self._next_keys(), self._commands
        before = eqx.filter_eval_shape(bind_axis(programs.first, axis_name), self.model, keys, commands)
        self._state, self._carry = jax.tree.map(_zeros, before)
        nobody_e, push_e3 = np.zeros(num_envs, bool), np.zeros((num_envs, 3), np.float32)
        # Traced here, where JAX's settings of this thread apply, and compiled in threads, which XLA leaves room for.
        lowered = (
            program(programs.restart).lower(self.model, nobody_e, keys, (self._state, self._carry), commands),
            program(programs.step).lower(self.model, self._state, self._carry, commands, push_e3),
        )
        with ThreadPoolExecutor(len(lowered)) as pool:
            self._restart_program, self._step_program = pool.map(lambda one: one.compile(), lowered)

    @property
    def data(self) -> mujoco.MjData:
        """The state of the followed env."""
        return self.poses[self.followed].data

    @property
    def velocity_command(self) -> str | None:
        """The name of the first velocity command; None without one."""
        return next((name for name, command in self.commands.items() if isinstance(command, VelocityCommand)), None)

    @property
    def episode_step(self) -> int:
        """Control steps of the followed env's episode."""
        return int(self._episode_step_e[self.followed])

    def get(self, number: CommandNumber) -> float:
        """The last set value of a number."""
        return float(self._commands[number.command].reshape(-1)[number.index])

    def set(self, number: CommandNumber, value: float) -> None:
        """Sets a number of a command until it is set again, also over resets."""
        with self._lock:
            changed = self._commands[number.command].copy()
            changed.reshape(-1)[number.index] = value
            self._commands = self._commands | {number.command: changed}

    def nudge(self, number: CommandNumber, num_steps: int) -> None:
        """Changes a number by a number of steps, within its range."""
        # Rounded, so that steps up and down again end at 0.
        self.set(number, round(number.clip(self.get(number) + num_steps * number.step), 6))

    def set_to_start(self) -> None:
        """Resets all commands to their initial values."""
        with self._lock:
            self._commands = dict(self._start)

    def ask_reset(self) -> None:
        """Starts a new episode in every env, paused or not."""
        self._reset_asked = True

    def ask_push(self) -> None:
        """Pushes every base into a random horizontal direction at the next control step."""
        self._push_asked = self.can_push

    def advance(self) -> None:
        """Handles a requested reset; otherwise, unless paused, does one control step."""
        num_envs = len(self.poses)
        if self._reset_asked:
            self._reset_asked = self._push_asked = False
            self._restart(np.ones(num_envs, bool))
        elif not self.paused:
            push_e3 = np.zeros((num_envs, 3), np.float32)
            if self._push_asked:
                angle_e = self._rng.uniform(-np.pi, np.pi, num_envs)
                push_e3[:, :2] = PUSH_SPEED * np.stack([np.cos(angle_e), np.sin(angle_e)], axis=1)
                self._push_asked = False
            ended_e = self._step(push_e3)
            if ended_e.any():
                self.num_falls += int(self._seen["terminated"].sum())
                self._restart(ended_e)

    def _next_keys(self) -> Key[Array, " e"]:
        first, self._num_resets = self._num_resets, self._num_resets + len(self.poses)
        return jax.vmap(lambda number: jax.random.fold_in(self._key, number))(first + jnp.arange(len(self.poses)))

    def _restart(self, which_e: np.ndarray) -> None:
        """Starts a new episode in some of the envs."""
        args = which_e, self._next_keys(), (self._state, self._carry), self._commands
        self._state, self._carry, seen = self._restart_program(self.model, *args)
        self._seen = jax.tree.map(np.asarray, seen)
        self._episode_step_e[which_e] = 0
        self._show(which_e, is_first=True)

    def _step(self, push_e3: np.ndarray) -> np.ndarray:
        """One control step; returns which envs start again."""
        self._state, self._carry, seen = self._step_program(
            self.model, self._state, self._carry, self._commands, push_e3
        )
        self._seen = jax.tree.map(np.asarray, seen)
        self._episode_step_e += 1
        self._show(np.ones(len(self.poses), bool), is_first=False)
        return self._seen["ended"]

    def _show(self, which_e: np.ndarray, *, is_first: bool) -> None:
        for e in np.flatnonzero(which_e):
            frame = self._frame(int(e))
            if frame.is_finite:  # a diverged state cannot be shown
                self.poses[e].show(frame)
                if e == self.followed:
                    self.on_step(frame, is_first)

    def _frame(self, e: int) -> Frame:
        seen = self._seen
        own = lambda values: {name: np.array(value[e]) for name, value in values.items()}
        rewards = {name: float(value[e]) for name, value in seen["rewards"].items()}
        return Frame(
            time_s=float(self._episode_step_e[e] * self.ctrl_dt),
            qpos=np.array(seen["qpos"][e], float),
            qvel=np.array(seen["qvel"][e], float),
            extra=own(seen["extra"]),
            actuation=None if seen["actuation"] is None else np.array(seen["actuation"][e], float),
            commands=own(seen["commands"]),
            rewards=rewards,
        )


def shown_of(env: Environment) -> Shown:
    """The shown model of an environment; raises ConfigError if it has none."""
    shown = env.shown()
    if shown is None:
        raise ConfigError(
            f"The viewer needs a MuJoCo model to show, and {type(env).__name__} has none. Override its method "
            "`shown` (see ksim.Environment)."
        )
    return shown


def _drawn(env: MdpEnvironment, key: Key[Array, ""], axis_name: str) -> dict[str, np.ndarray]:
    """The commands of an episode, by name; zeros if all have ranges, which makes compiling a reset unnecessary."""
    draw = bind_axis(lambda key: env.reset(key).inner.commands, axis_name)
    has_ranges = all(command.ranges() for command in env.mdp.commands.values() if not command.has_course)
    drawn = jax.tree.map(_zeros, jax.eval_shape(draw, key)) if has_ranges else jax.jit(draw)(key)
    return jax.tree.map(np.asarray, drawn)


def _zeros(leaf: Any) -> Any:
    """An array of zeros, or of the key of seed 0, in place of a shape."""
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    return np.zeros(leaf.shape, leaf.dtype)


def _with_actuation(env: Environment) -> Environment:
    """The environment with actuator forces in its states, if it is made of ksim's terms in native MuJoCo."""
    if not isinstance(env, MdpEnvironment) or not isinstance(env.engine, MujocoEngine):
        return env
    return dataclasses.replace(env, engine=env.mdp.make_engine("mujoco", env.engine.model, also_needs=[ACTUATION]))


@dataclasses.dataclass(frozen=True)
class _Programs:
    """The compiled programs: batched resets and steps, each with the data for frames."""

    env: Environment
    shown: Shown
    can_push: bool

    def first(
        self, model: AbstractActorCritic, key_e: Key[Array, " e"], commands: dict[str, Array]
    ) -> tuple[EnvState, PyTree]:
        """The first states and memories."""
        reset = lambda key: (self._commanded(commands).reset(key), model.initial_carry())
        return jax.vmap(reset)(key_e)

    def restart(
        self,
        model: AbstractActorCritic,
        which_e: Bool[Array, " e"],
        key_e: Key[Array, " e"],
        before: tuple[EnvState, PyTree],
        commands: dict[str, Array],
    ) -> tuple[EnvState, PyTree, dict[str, Any]]:
        """A new episode in some of the envs; the others keep their state and memory."""
        fresh = self.first(model, key_e, commands)
        state_e, carry_e = select_envs(which_e, fresh, before)
        return state_e, carry_e, self._seen(state_e)

    def step(
        self,
        model: AbstractActorCritic,
        state_e: EnvState,
        carry_e: PyTree,
        commands: dict[str, Array],
        push_e3: Float[Array, "e 3"],
    ) -> tuple[EnvState, PyTree, dict[str, Any]]:
        """A control step of all envs."""

        def step(state: EnvState, carry: PyTree, push_3: Array) -> tuple[EnvState, PyTree]:
            action, carry = act(model, state.obs, carry)
            if self.can_push and isinstance(self.env, MdpEnvironment):
                names = self.env.engine.model.names
                physics = add_to_base_velocity(state.inner.physics, names, push_3, jnp.zeros(3))
                state = dataclasses.replace(state, inner=dataclasses.replace(state.inner, physics=physics))
            return self._commanded(commands).step(state, action), carry

        state_e, carry_e = jax.vmap(step)(state_e, carry_e, push_e3)
        return state_e, carry_e, self._seen(state_e)

    def _commanded(self, commands: dict[str, Array]) -> Environment:
        return with_manual_commands(self.env, commands) if isinstance(self.env, MdpEnvironment) else self.env

    def _seen(self, state_e: EnvState) -> dict[str, Any]:
        """The data of frames, one row per env."""
        physics_e = jax.vmap(self.shown.physics_of)(state_e)
        terms = {name: x for name, x in state_e.metrics.items() if name.startswith(_REWARD)}
        rewards = {"total": state_e.reward / self.shown.model.ctrl_dt}
        commands = self.env.mdp.commands if isinstance(self.env, MdpEnvironment) else {}
        has_course = any(command.has_course for command in commands.values())
        return {
            "qpos": physics_e.qpos,
            "qvel": physics_e.qvel,
            "extra": physics_e.extra,
            "actuation": physics_e.derived.get(ACTUATION),
            "commands": state_e.inner.commands if isinstance(self.env, MdpEnvironment) else {},
            "rewards": rewards | {name.removeprefix(_REWARD): x for name, x in terms.items()},
            "terminated": state_e.terminated,
            # Other episodes continue beyond their time limit while they are watched.
            "ended": state_e.terminated | (state_e.truncated & has_course),
        }
