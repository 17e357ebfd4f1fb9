"""Mirror images of observations and actions, found by evaluating each term for a robot and for its mirror image."""

import copy
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from ksim.errors import ConfigError
from ksim.mdp.term import Context
from ksim.mdp.term_errors import named_errors
from ksim.mirror.fit import Fit, Samples, event_readings, touch_images, trial_states
from ksim.mirror.model import ModelMirror, SignedPermutation, mirror_robot
from ksim.physics.model import PhysicsModel
from ksim.rollout.environment import QUICKLY
from ksim.rollout.levels import full_levels
from ksim.rollout.mdp_environment import Mdp
from ksim.rollout.terms import TermCalls
from ksim.types import Observation, PhysicsState

NUM_SEQUENCES, NUM_STEPS = 8, 32
"""Numbers of random sequences of states, and of steps in each; consecutive steps are for terms with memory."""
_TOUCH = 100.0
"""The highest random reading of a touch sensor, in N."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mirror:
    """Mirror images of a robot's observations and actions.

    Attributes:
        observations: Images of raw observations, by group.
        pairs: Joints with their images and signs, to print; empty where they are not known.
        dynamics_gap: See `mirrored_dynamics_gap`; None if not known.
        constants: Components that never vary, by group and name of the observation: taken as their own images.
    """

    observations: Mapping[str, SignedPermutation]
    action: SignedPermutation
    pairs: Sequence[tuple[str, str, int]] = ()
    dynamics_gap: float | None = None
    constants: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)

    def observe(self, obs: Observation) -> Observation:
        """The images of observations, along the last axis."""
        return {group: self.observations[group](vector) for group, vector in obs.items()}

    def describe(self) -> str:
        """The joints and their images, to print: `left_knee = right_knee, left_hip_roll = -right_hip_roll`."""
        shown = [f"{joint} = {'-' if sign < 0 else ''}{image}" for joint, image, sign in self.pairs if joint <= image]
        gap = "" if self.dynamics_gap is None else f" (mirrored motions are off by {self.dynamics_gap:.1%})"
        named = [f"{name}[{', '.join(map(str, index))}]" for name, index in self.constants.items()]
        constants = f"; nothing moves, so taken as constants: {', '.join(named)}" if named else ""
        return (", ".join(shown) or "given by get_mirror") + gap + constants


def find_mirror(mdp: Mdp, physics_model: PhysicsModel) -> Mirror:
    """Finds the image of each component of each observation, and of each action.

    The image of a component is the component that has the same value, or its negative, for the mirrored robot. This
    must hold in many random poses, velocities, actions, commands and times, above a random ground: standing, lying on
    any side, with joints beyond their limits. If a component is constant in all of them, or always equals another one,
    further states are tried: commands leave their ranges, and touch sensors are pressed. The images of touch sensors
    are known from their positions and names.

    Args:
        physics_model: The robot on a flat floor, which is its own mirror image.

    Raises:
        ConfigError: The robot, its actuators, a command or a component of an observation has no mirror image, or a
            component is constant in all states, so that its image is not known.
    """
    control = lambda action: mdp.control(action, physics_model)
    robot = mirror_robot(physics_model, control, mdp.actuators.action_size(physics_model))
    sampler = _Sampler(mdp, physics_model, robot.model, robot.action)
    fits = {name: Fit(samples) for name, samples in sampler.samples(_Trial.MOVED).items()}
    if any(fit.is_open for fit in fits.values()):
        for name, samples in sampler.samples(_Trial.DRIVEN).items():
            fits[name].add(samples)
    if any(fit.still.size for fit in fits.values()):
        for name, samples in sampler.samples(_Trial.DISTURBED).items():
            fits[name].check_constant(samples)
    groups = {
        group: SignedPermutation.joined([fits[f"{group}/{name}"].result() for name in terms])
        for group, terms in mdp.observations.items()
    }
    constants = {name: fit.still.tolist() for name, fit in fits.items() if fit.still.size}
    return Mirror(groups, robot.action, robot.model.pairs, robot.dynamics_gap, constants)


class _Trial(enum.IntEnum):
    """The kind of state in which observations are sampled.

    MOVED: only the robot's state varies. DRIVEN: also random commands and touches, with their mirror images. DISTURBED:
    readings of contacts and limits are drawn independently for the robot and its image.
    """

    MOVED = 0
    DRIVEN = 1
    DISTURBED = 2


_Values = dict[str, Array]
"""Observations by group and name."""


class _Sampler:
    """Observations of a robot in states drawn at random, and of its mirror image in the mirrored states."""

    def __init__(self, mdp: Mdp, model: PhysicsModel, mirror: ModelMirror, action: SignedPermutation) -> None:
        self._mdp, self._mirror, self._action = mdp, mirror, action
        self._engine = mdp.make_engine("mujoco", model)
        groups = mdp.observations.items()
        self._terms = {f"{group}/{name}": term.exact() for group, terms in groups for name, term in terms.items()}
        self._is_touch, self._touch_image = touch_images(model)
        self._is_event = event_readings(model)
        self._states = trial_states(model, NUM_SEQUENCES, NUM_STEPS + 1)
        self._observe = jax.jit(jax.vmap(self._sequence, in_axes=(0, 0, None)), compiler_options=QUICKLY)

    def samples(self, trial: _Trial) -> dict[str, Samples]:
        """Observations in states of one kind."""
        keys_s = jax.random.split(jax.random.key(0), NUM_SEQUENCES)
        states = [jnp.asarray(x, jnp.float32) for x in dataclasses.astuple(self._states)]
        values = jax.tree.map(lambda x: np.asarray(x, np.float64), self._observe(keys_s, states, jnp.int32(trial)))
        flat = lambda x: x.reshape(NUM_SEQUENCES * NUM_STEPS, -1)
        return {name: Samples.of(name, flat(x[:, 0]), flat(x[:, 1])) for name, x in values.items()}

    def _sequence(self, key: PRNGKeyArray, states: list[Array], trial: Array) -> _Values:
        """All observations along a sequence of states, and along its image, (2, t, n)."""
        step_t = jnp.arange(NUM_STEPS + 1)
        keys_t = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, step_t)
        fields_t2 = jax.vmap(self._fields, in_axes=(0, 0, 0, None))(keys_t, step_t, states, trial)
        # The robot and its image are a batch, so that each term is in the program once, not twice.
        return jax.vmap(self._observed_along, in_axes=(None, 1, 0))(key, fields_t2, jnp.array([False, True]))

    def _observed_along(self, key: PRNGKeyArray, fields_t: dict[str, Any], is_image: Array) -> _Values:
        """All observations along a sequence of contexts, whose first is only for the terms' memories, (t, n)."""
        model = _on_random_ground(self._engine.model, 1.0 - 2.0 * is_image)

        def step(memories: dict[str, PyTree] | None, fields: dict[str, Any]) -> tuple[dict[str, PyTree], _Values]:
            context, calls = self._context(model, **fields), TermCalls(self._terms, key, memories)
            own = lambda term: dataclasses.replace(
                context, episode_step=context.episode_step + is_image * (term.mirror_s / context.dt)
            )
            values = {name: jnp.ravel(calls(name, own(term))) for name, term in self._terms.items()}
            return calls.new_memories, values

        memories, _ = step(None, jax.tree.map(lambda x: x[0], fields_t))
        return jax.lax.scan(step, memories, jax.tree.map(lambda x: x[1:], fields_t))[1]

    def _fields(self, key: PRNGKeyArray, step: Array, state: list[Array], trial: Array) -> dict[str, Any]:
        """Fields of the contexts of a robot in a state, and of its image: each array has two rows."""
        touch_key, action_key, command_key = jax.random.split(key, 3)
        model, (qpos, qvel, act) = self._engine.model, state
        physics = dataclasses.replace(model.start(), qpos=qpos, qvel=qvel, act=act, derived={})
        actions = jax.random.normal(action_key, (2, self._action.index.size))
        start_2, actions_2 = jax.tree.map(
            lambda *both: jnp.stack(both), (physics, actions), (self._mirror.state(physics), self._action(actions))
        )
        control_2 = jax.vmap(lambda action: self._mdp.control(action, model))(actions_2[:, 0])
        reached_2 = jax.vmap(lambda start, control: self._engine.forward(start, control, {}))(start_2, control_2)
        fields = {
            "physics": self._touched(reached_2, _touches(touch_key, self._is_touch.size), trial),
            "action": actions_2[:, 0],
            "previous_action": actions_2[:, 1],
            "control": control_2,
            "episode_step": jnp.stack([step, step]),
            "key": jnp.stack([command_key, command_key]),
        }
        own = self._context(_on_random_ground(model, 1.0), **jax.tree.map(lambda x: x[0], fields))
        commands = self._commands(own, trial)
        images = {name: self._reflected(name, command) for name, command in commands.items()}
        return fields | {"commands": {name: jnp.stack([commands[name], images[name]]) for name in commands}}

    def _context(self, model: PhysicsModel, **fields: Any) -> Context:
        """The context with these fields, at the curricula's full levels."""
        return Context.at(
            model,
            **fields,
            levels=full_levels(self._mdp.curricula) | {name: jnp.float32(1.0) for name in self._mdp.env_curricula},
            episode_key=fields["key"],
            command_terms=self._mdp.commands,
        )

    def _touched(self, physics_2: PhysicsState, touches_2m: Array, trial: Array) -> PhysicsState:
        """The states, with the sensor readings that the trial replaces set to random ones."""
        derived = dict(physics_2.derived)
        driven_2m = jnp.stack([touches_2m[0], touches_2m[0][self._touch_image]])
        readings_2m = jnp.where((trial == _Trial.DRIVEN) & self._is_touch, driven_2m, derived["sensordata"])
        derived["sensordata"] = jnp.where((trial == _Trial.DISTURBED) & self._is_event, touches_2m, readings_2m)
        return dataclasses.replace(physics_2, derived=derived)

    def _commands(self, context: Context, trial: Array) -> dict[str, Array]:
        commands = {}
        for i, (name, term) in enumerate(self._mdp.commands.items()):
            with named_errors(f"command/{name}", term):
                command = term(dataclasses.replace(context, memory=term.init(context)))
            if jnp.issubdtype(command.dtype, jnp.floating):
                offset = 0.3 * jax.random.normal(jax.random.fold_in(context.key, i), command.shape, command.dtype)
                command += jnp.where(trial == _Trial.DRIVEN, offset, 0.0)
            commands[name] = command
        return commands

    def _reflected(self, name: str, command: Array) -> Array:
        term = self._mdp.commands[name]
        image = term.mirrored(command)
        if image is None:
            raise ConfigError(
                f"Command {name!r} ({type(term).__name__}) does not say what it asks of a mirrored robot. Define its "
                "method mirrored, or override get_mirror, or set symmetry=off."
            )
        return image


def _touches(key: PRNGKeyArray, count: int) -> Float[Array, "2 m"]:
    """Random readings of sensors, such as forces in N, for the robot and for its image; half of them are 0."""
    return _TOUCH * jnp.maximum(jax.random.uniform(key, (2, count), minval=-1.0), 0.0)


class _RandomGround:
    """A smooth random ground, or its image for `sign` -1. Its height differs under all parts of a robot."""

    half_size, center = None, np.zeros(2)

    def __init__(self, sign: Float[Array, ""] | float) -> None:
        self._sign = sign

    def height(self, position: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        """The ground's height below positions, in m."""
        x, y = position[..., 0], self._sign * position[..., 1]
        return 0.05 * (jnp.sin(7.3 * x + 0.4) + jnp.sin(9.1 * y + 1.9) + jnp.sin(5.7 * x - 8.3 * y + 0.8))


def _on_random_ground(model: PhysicsModel, sign: Float[Array, ""] | float) -> PhysicsModel:
    changed = copy.copy(model)
    changed.ground = _RandomGround(sign)  # type: ignore[assignment]
    return changed
