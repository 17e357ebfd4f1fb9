"""One env under a policy, independent of its display."""

import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.keys import VIEWER
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics.names import add_to_base_velocity
from ksim.rollout.environment import Environment
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.types import EnvState
from ksim.viewer.manual import CommandNumber, command_numbers, with_manual_commands

PUSH_SPEED = 0.5
"""Velocity added to the base by a push, in m/s."""


class ViewSession:
    """One env under the deterministic policy, with commands set from outside.

    Episodes ignore time limits; after a fall the next one begins. `advance` belongs to one thread;
    everything else that changes the session may be called from any, and takes effect with the next `advance`.

    In an environment that is not made of ksim's terms there are no commands to set, and no pushes.

    Attributes:
        mj_model: The robot and its world.
        data: The state to show, with everything computed from it.
        numbers: The numbers of the commands, in order.
        base_body: The index of the body with a free joint, which can be followed; None where there is none.
        can_push: Whether the base can be pushed.
        ctrl_dt: Seconds per control step.
        paused: Whether the simulation is paused.
        num_falls: Episodes that ended by termination.
        episode_step: Control steps of this episode.
    """

    def __init__(
        self, env: Environment, model: AbstractActorCritic, *, seed: int, axis_name: str = DEVICE_AXIS
    ) -> None:
        """Compiles the reset and the step, and starts an episode.

        Args:
            env: The environment.
            model: The policy, on raw observations.
            seed: Seeds the episodes and the pushes.
            axis_name: What terms call the axis of devices.

        Raises:
            ConfigError: The environment has no model to show, or a command's ranges do not fit it.
        """
        shown = env.shown()
        if shown is None:
            raise ConfigError(
                f"run_mode=view needs a MuJoCo model to show, and {type(env).__name__} has none. Override its method "
                "`shown` (see ksim.Environment)."
            )
        self._shown = shown
        self.mj_model = shown.model.mj_model
        self.ctrl_dt = shown.model.ctrl_dt
        self.data = mujoco.MjData(self.mj_model)
        names = shown.model.names
        self.base_body = names.base_body() if names.has_base else None
        self.can_push = names.has_base and isinstance(env, MdpEnvironment)
        self.paused = False
        self.num_falls = 0
        self.episode_step = 0
        self._key = jax.random.fold_in(jax.random.key(seed), VIEWER)
        self._num_resets = 0
        self._lock = threading.Lock()
        self._reset_asked = self._push_asked = False
        self._rng = np.random.default_rng(seed)
        reset, step = _functions(env, model, self.can_push)
        self._reset, self._step = jax.jit(bind_axis(reset, axis_name)), jax.jit(bind_axis(step, axis_name))
        self.numbers: list[CommandNumber] = []
        self._start: dict[str, np.ndarray] = {}
        if isinstance(env, MdpEnvironment):
            drawn = jax.jit(bind_axis(lambda key: env.reset(key).inner.commands, axis_name))(self._key)
            self.numbers, self._start = command_numbers(env.mdp.commands, jax.tree.map(np.asarray, drawn))
        self._commands = dict(self._start)
        self._state: EnvState
        self._carry: PyTree
        self._restart()
        self._advance_env(np.zeros(3, np.float32))  # compiles
        self._restart()

    @property
    def base_position_3(self) -> np.ndarray:
        """Position of the base, in m; the world's origin if there is no base."""
        return self.data.xpos[self.base_body].copy() if self.base_body is not None else np.zeros(3)

    @property
    def policy_commands(self) -> dict[str, np.ndarray]:
        """The commands that the policy sees for its next action."""
        return {name: np.asarray(value) for name, value in self._state.inner.commands.items()}

    @property
    def policy_observation(self) -> dict[str, np.ndarray]:
        """The observation, by group, for the next action."""
        return {group: np.asarray(value) for group, value in self._state.obs.items()}

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
        # Rounded, or steps up and down again would not end at 0.
        self.set(number, round(number.clip(self.get(number) + num_steps * number.step), 6))

    def set_to_start(self) -> None:
        """Resets all commands to their initial values."""
        with self._lock:
            self._commands = dict(self._start)

    def ask_reset(self) -> None:
        """Starts a new episode, paused or not."""
        self._reset_asked = True

    def ask_push(self) -> None:
        """Pushes the base into a random horizontal direction at the next control step."""
        self._push_asked = self.can_push

    def advance(self) -> None:
        """Handles a requested reset; otherwise, unless paused, does one control step."""
        if self._reset_asked:
            self._restart()
        elif not self.paused:
            push_3 = np.zeros(3, np.float32)
            if self._push_asked:
                angle = self._rng.uniform(-np.pi, np.pi)
                push_3[:2] = PUSH_SPEED * np.cos(angle), PUSH_SPEED * np.sin(angle)
                self._push_asked = False
            self._advance_env(push_3)
            if bool(self._state.terminated):
                self.num_falls += 1
                self._restart()

    def _restart(self) -> None:
        self._reset_asked = self._push_asked = False
        self._state, self._carry = self._reset(jax.random.fold_in(self._key, self._num_resets), self._commands)
        self._num_resets += 1
        self.episode_step = 0
        self._load_data()

    def _advance_env(self, push_3: np.ndarray) -> None:
        self._state, self._carry = self._step(self._state, self._carry, self._commands, push_3)
        self.episode_step += 1
        if not bool(self._state.terminated):  # what has blown up cannot be shown
            self._load_data()

    def _load_data(self) -> None:
        physics = self._shown.physics_of(self._state)
        self.data.qpos[:] = np.asarray(physics.qpos)
        self.data.qvel[:] = np.asarray(physics.qvel)
        for name, value in physics.extra.items():
            getattr(self.data, name)[:] = np.asarray(value)
        self.data.time = self.episode_step * self.ctrl_dt
        mujoco.mj_forward(self.mj_model, self.data)


def _functions(env: Environment, model: AbstractActorCritic, can_push: bool) -> tuple[Any, Any]:
    """`reset(key, commands) -> (state, carry)` and `step(state, carry, commands, push_3) -> (state, carry)`."""

    def commanded(commands: dict[str, Array]) -> Environment:
        return with_manual_commands(env, commands) if isinstance(env, MdpEnvironment) else env

    def reset(key: PRNGKeyArray, commands: dict[str, Array]) -> tuple[EnvState, PyTree]:
        return commanded(commands).reset(key), model.initial_carry()

    def step(
        state: EnvState, carry: PyTree, commands: dict[str, Array], push_3: Float[Array, "3"]
    ) -> tuple[EnvState, PyTree]:
        output, carry = model(state.obs, carry)
        if can_push and isinstance(env, MdpEnvironment):
            names = env.engine.model.names
            physics = add_to_base_velocity(state.inner.physics, names, push_3, jnp.zeros(3))
            state = dataclasses.replace(state, inner=dataclasses.replace(state.inner, physics=physics))
        return commanded(commands).step(state, output.distribution.mode()), carry

    return reset, step
