"""The recording of one episode, for videos and plots."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import mujoco
import numpy as np
from jaxtyping import Array

from ksim.evaluate.evaluator import CHUNK_STEPS, MAX_EPISODE_STEPS, ShouldStop, episode_key, on_device
from ksim.mdp.commands import VelocityCommand
from ksim.mdp.commands.wrappers import unscaled
from ksim.mdp.term import Term
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.collectives import DEVICE_AXIS, bind_axis
from ksim.physics import PhysicsModel
from ksim.physics.names import base_ang_vel_world, base_heading_velocity, base_orientation, base_position
from ksim.physics.rotations import yaw_of
from ksim.rollout.environment import Environment
from ksim.rollout.episodes import advance_episodes, start_episodes
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.types import Device, EnvState, PhysicsState


@dataclasses.dataclass(frozen=True)
class Recording:
    """The recording of one episode. Every array has one row per control step.

    Attributes:
        metrics: The environment's metrics; rewards by name are per second.
        action: Actions of the policy.
        model: The robot's model; None for an environment that shows none. Then everything below is empty.
        qpos: Generalized positions, in m and rad.
        extra: State that only some models have, as in `PhysicsState`.
        ghost: Target generalized positions, in m and rad; empty if the environment has none.
        base_position: In the world, in m; empty without a free joint, like the next two.
        heading: Heading of the base in the world, in rad.
        velocity: Velocity of the base in its level heading frame: forward and leftward in m/s, yaw rate in rad/s.
        commanded_velocity: The same for the first velocity command; empty without one.
        touch: Readings of the feet's touch sensors, in N, by name; see `foot_sensors`. Empty if the environment is not
            made of ksim's terms.
    """

    reward: np.ndarray
    metrics: Mapping[str, np.ndarray]
    action: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    model: PhysicsModel | None = None
    qpos: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    extra: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    ghost: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0)))
    base_position: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    heading: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    velocity: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    commanded_velocity: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 3)))
    touch: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def dt(self) -> float | None:
        """Seconds per control step, if known."""
        return None if self.model is None else self.model.ctrl_dt

    @property
    def actions(self) -> dict[str, np.ndarray]:
        """The elements of the action by the name of the actuator, else of its joint, else by index."""
        size = self.action.shape[1]
        found: list[str | None] = [None] * size
        if self.model is not None and len(self.model.names.actuators) == size:
            names = self.model.names
            found = [name or names.actuator_joint(i) for i, name in enumerate(names.actuators)]
        return {name or str(i): self.action[:, i] for i, name in enumerate(found)}


class Recorder:
    """A recorder of the first envs' episodes of an evaluation; it runs them again."""

    def __init__(
        self, env: Environment, *, seed: int, device: Device, axis_name: str = DEVICE_AXIS, num_envs: int = 1
    ) -> None:
        self._env, self._seed, self._device = env, seed, device
        self._shown = env.shown()
        start = lambda model, key: start_episodes(env, model, key, num_envs)
        advance = lambda model, at: advance_episodes(env, model, at, CHUNK_STEPS, self._record)
        self._start = eqx.filter_jit(bind_axis(start, axis_name))
        self._advance = eqx.filter_jit(bind_axis(advance, axis_name))

    def __call__(self, model: AbstractActorCritic, should_stop: ShouldStop) -> Recording | None:
        """The episode of the first env under a policy; None if stopped before its end."""
        recordings = self.episodes(model, should_stop)
        return recordings[0] if recordings else None

    def episodes(self, model: AbstractActorCritic, should_stop: ShouldStop) -> list[Recording]:
        """The episode of each env under a policy; empty if stopped before their end."""
        chunks = []
        with jax.default_device(self._device):
            model = on_device(model, self._device)
            episodes = self._start(model, episode_key(self._seed))
            for _ in range(MAX_EPISODE_STEPS // CHUNK_STEPS):
                episodes, recorded_te = self._advance(model, episodes)
                chunks.append(jax.tree.map(np.asarray, recorded_te))
                if not np.asarray(episodes.is_running).any():
                    break
                if should_stop():
                    return []
        fields_te = jax.tree.map(lambda *xs: np.concatenate(xs), *chunks)
        robot = None if self._shown is None else self._shown.model
        return [
            Recording(model=robot, **jax.tree.map(lambda x, env=env, length=length: x[:length, env], fields_te))
            for env, length in enumerate(np.asarray(episodes.length))
        ]

    def _record(self, before_e: EnvState, action_ea: Array, after_e: EnvState) -> dict[str, Any]:
        recorded: dict[str, Any] = {"reward": after_e.reward, "metrics": after_e.metrics, "action": action_ea}
        if self._shown is None:
            return recorded
        model, physics_e = self._shown.model, jax.vmap(self._shown.physics_of)(after_e)
        recorded |= {"qpos": physics_e.qpos, "extra": physics_e.extra}
        # The target pose at the time of the action that led to this state.
        ghost_e = jax.vmap(self._shown.ghost_of)(before_e)
        if ghost_e is not None:
            recorded["ghost"] = ghost_e
        if model.names.has_base:
            recorded |= jax.vmap(lambda physics: _base_motion(physics, model))(physics_e)
        if not isinstance(self._env, MdpEnvironment):
            return recorded
        recorded["touch"] = {
            name: model.names.reading(physics_e.derived["sensordata"], name)[:, 0]
            for name in foot_sensors(self._env.mdp, model)
        }
        for name, command in self._env.mdp.commands.items():
            if isinstance(unscaled(command), VelocityCommand):
                recorded.setdefault("commanded_velocity", before_e.inner.commands[name])
        return recorded


def _base_motion(physics: PhysicsState, model: PhysicsModel) -> dict[str, Array]:
    names = model.names
    yaw_rate = base_ang_vel_world(physics, names)[2]
    return {
        "base_position": base_position(physics, names),
        "heading": yaw_of(base_orientation(physics, names)),
        "velocity": base_heading_velocity(physics, names).at[2].set(yaw_rate),
    }


def foot_sensors(mdp: Mdp, model: PhysicsModel) -> list[str]:
    """Names of the feet's touch sensors, from the first reward, else the first observation, that names touch sensors.

    If no term does, all touch sensors of the robot's file.
    """
    touch = touch_sensors(model)
    observations = [term for group in mdp.observations.values() for term in group.values()]
    for term in (*mdp.rewards.values(), *observations):
        for part in _with_wrapped(term):
            sensors = getattr(part, "sensors", None) or ()
            if sensors and set(sensors) <= set(touch):
                return list(sensors)
    return [name for name in touch if not name.startswith("ksim_")]


def _with_wrapped(term: Term) -> Iterator[Term]:
    yield term
    for field in dataclasses.fields(term):
        inner = getattr(term, field.name)
        if isinstance(inner, Term):
            yield from _with_wrapped(inner)


def touch_sensors(model: PhysicsModel) -> list[str]:
    """Names of the model's named touch sensors."""
    kinds = model.mj_model.sensor_type
    names = [model.mj_model.sensor(i).name for i in np.flatnonzero(kinds == int(mujoco.mjtSensor.mjSENS_TOUCH))]
    return [name for name in names if name]
