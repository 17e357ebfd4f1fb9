"""The mirror image of what a policy sees and does, found by asking each term about a robot and its mirror image."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ksim.errors import ConfigError
from ksim.mdp.observations import AbstractObservation
from ksim.mdp.term import Context
from ksim.mdp.term_errors import naming
from ksim.mirror.model import ModelMirror
from ksim.mirror.robot import mirror_robot
from ksim.mirror.signed import SignedPermutation
from ksim.physics.model import PhysicsModel
from ksim.physics.names import place_base, tilt_base
from ksim.rollout.env_levels import full_levels
from ksim.rollout.mdp_environment import Mdp
from ksim.types import Observation, PhysicsState

NUM_SEQUENCES, NUM_STEPS = 8, 32
"""Of states drawn at random; several steps in a row for terms with memory."""
TOLERANCE = 0.2
"""How far a component may be off from its image, as a part of its own size: contact solvers stop early."""
_FIXES = "Leave it out of the observations, or override get_mirror."


@dataclasses.dataclass(frozen=True, eq=False)
class Mirror:
    """What a robot would see, and do, as its own mirror image.

    Attributes:
        observations: Images of raw observations, by group.
        action: Images of actions.
        pairs: Joints with their images and signs, to print; empty where they are not known.
        dynamics_gap: How far mirrored motions are from motions, see `mirrored_dynamics_gap`; None where not known.
    """

    observations: Mapping[str, SignedPermutation]
    action: SignedPermutation
    pairs: Sequence[tuple[str, str, int]] = ()
    dynamics_gap: float | None = None

    def observe(self, obs: Observation) -> Observation:
        """The images of observations, along the last axis."""
        return {group: self.observations[group](vector) for group, vector in obs.items()}

    def words(self) -> str:
        """The joints and their images, to print: `left_knee = right_knee, left_hip_roll = -right_hip_roll`."""
        shown = [f"{joint} = {'-' if sign < 0 else ''}{image}" for joint, image, sign in self.pairs if joint <= image]
        gap = "" if self.dynamics_gap is None else f" (mirrored motions are off by {self.dynamics_gap:.1%})"
        return (", ".join(shown) or "given by get_mirror") + gap


def find_mirror(mdp: Mdp, physics_model: PhysicsModel) -> Mirror:
    """Finds the image of each component of each observation, and of each action.

    A component's image is the one that has, for the mirrored robot, the same value or its negative, in all of many
    poses, velocities, actions, commands and times drawn at random, above a ground drawn at random.

    Args:
        mdp: The terms.
        physics_model: The robot on a flat floor, which is its own mirror image.

    Raises:
        ConfigError: The robot, its actuators, a command or a component of an observation has no mirror image.
    """
    control = lambda action: mdp.control(action, physics_model)
    robot = mirror_robot(physics_model, control, mdp.actuators.action_size(physics_model))
    sampler = _Sampler(mdp, physics_model, robot.model, robot.action)
    key_s = jax.random.split(jax.random.key(0), NUM_SEQUENCES)
    seen, image = jax.jit(jax.vmap(sampler))(key_s)
    flat = lambda x: np.asarray(x, np.float64).reshape(NUM_SEQUENCES * NUM_STEPS, -1)
    groups = {
        group: SignedPermutation.joined(
            [_fitted(f"{group}/{name}", flat(seen[group][name]), flat(image[group][name])) for name in terms]
        )
        for group, terms in mdp.observations.items()
    }
    return Mirror(groups, robot.action, robot.model.pairs, robot.dynamics_gap)


_Values = dict[str, dict[str, Array]]


class _Sampler:
    """Observations of a robot in states drawn at random, and of its mirror image in the mirrored states."""

    def __init__(self, mdp: Mdp, model: PhysicsModel, mirror: ModelMirror, action: SignedPermutation) -> None:
        self._mdp, self._mirror, self._action = mdp, mirror, action
        self._engine = mdp.make_engine("mujoco", model)
        self._models = [_on_random_ground(model, sign) for sign in (1.0, -1.0)]
        self._terms = {
            group: {name: term.exact() for name, term in terms.items()} for group, terms in mdp.observations.items()
        }

    def __call__(self, key: PRNGKeyArray) -> tuple[_Values, _Values]:
        """All observations along one sequence of states, (t, n), by group and name; and those of its image."""

        def step(memories: tuple, step: Array) -> tuple[tuple, tuple[_Values, _Values]]:
            contexts = self._contexts(jax.random.fold_in(key, step), step)
            (seen, after), (image, image_after) = (
                self._observed(*both, key) for both in zip(contexts, memories, strict=True)
            )
            return (after, image_after), (seen, image)

        first = self._contexts(jax.random.fold_in(key, 0), jnp.int32(0))
        memories = tuple(self._observed(context, None, key)[1] for context in first)
        _, values = jax.lax.scan(step, memories, jnp.arange(1, NUM_STEPS + 1))
        return values

    def _observed(self, context: Context, memories: dict | None, key: PRNGKeyArray) -> tuple[_Values, dict]:
        values: _Values = {}
        after = {}
        for group, terms in self._terms.items():
            values[group] = {}
            for i, (name, term) in enumerate(terms.items()):
                place = f"{group}/{name}"
                own = dataclasses.replace(
                    context, key=jax.random.fold_in(key, i), episode_step=self._time(context, term)
                )
                with naming(place, term):
                    if memories is None:
                        memory = term.init(own)
                    else:
                        memory = term.update(dataclasses.replace(own, memory=memories[place]))
                    values[group][name] = jnp.ravel(term(dataclasses.replace(own, memory=memory)))
                after[place] = memory
        return values, after

    def _time(self, context: Context, term: AbstractObservation) -> Array:
        is_image = context.model is self._models[1]
        return context.episode_step + (term.mirror_s / context.dt if is_image else 0.0)

    def _contexts(self, key: PRNGKeyArray, step: Array) -> tuple[Context, Context]:
        """What terms see of the robot in a state drawn at random, and of its image."""
        pose_key, action_key, command_key = jax.random.split(key, 3)
        model, engine = self._engine.model, self._engine
        physics = _random_state(model, pose_key)
        actions = jax.random.normal(action_key, (2, self._action.index.size))
        sides = []
        for is_image in (False, True):
            state = self._mirror.state(physics) if is_image else physics
            action, previous = self._action(actions) if is_image else actions
            control = self._mdp.control(action, model)
            context = Context(
                model=self._models[is_image],
                physics=engine.forward(state, control, {}),
                action=action,
                previous_action=previous,
                control=control,
                commands={},
                episode_step=step,
                terminated=jnp.bool_(False),
                overrides={},
                key=command_key,
                levels=full_levels(self._mdp.curricula) | {name: jnp.float32(1.0) for name in self._mdp.env_curricula},
                episode_key=command_key,
                command_terms=self._mdp.commands,
            )
            sides.append(context)
        commands = self._commands(sides[0])
        return (
            dataclasses.replace(sides[0], commands=commands),
            dataclasses.replace(sides[1], commands={name: self._reflected(name, x) for name, x in commands.items()}),
        )

    def _commands(self, context: Context) -> dict[str, Array]:
        commands = {}
        for name, term in self._mdp.commands.items():
            with naming(f"command/{name}", term):
                commands[name] = term(dataclasses.replace(context, memory=term.init(context)))
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


def _random_state(model: PhysicsModel, key: PRNGKeyArray) -> PhysicsState:
    """The robot near its default pose, turned and tilted, about as high as it stands, and moving."""
    base_key, joint_key, speed_key = jax.random.split(key, 3)
    state, names = model.start(), model.names
    places = names.joint_qpos()
    low_j, high_j = names.joint_range().T
    offset_j = jax.random.uniform(joint_key, (places.size,), minval=-0.4, maxval=0.4)
    qpos = state.qpos.at[places].set(jnp.clip(state.qpos[places] + offset_j, low_j, high_j))
    qvel = 0.5 * jax.random.normal(speed_key, state.qvel.shape)
    state = dataclasses.replace(state, qpos=qpos, qvel=qvel)
    if not names.has_base:
        return state
    roll, pitch, yaw, x, y, z = jax.random.uniform(base_key, (6,), minval=-1.0, maxval=1.0)
    state = tilt_base(state, names, 0.3 * roll, 0.3 * pitch)
    return place_base(state, names, jnp.stack([x, y, 0.05 * z]), jnp.pi * yaw)


class _RandomGround:
    """A smooth ground, or its image for `sign` -1, that every part of a robot tells from every other."""

    half_size, center = None, np.zeros(2)

    def __init__(self, sign: float) -> None:
        self._sign = sign

    def height(self, position: Float[Array, "*n d"]) -> Float[Array, "*n"]:
        """The ground's height below positions, in m."""
        x, y = position[..., 0], self._sign * position[..., 1]
        return 0.05 * (jnp.sin(7.3 * x + 0.4) + jnp.sin(9.1 * y + 1.9) + jnp.sin(5.7 * x - 8.3 * y + 0.8))


def _on_random_ground(model: PhysicsModel, sign: float) -> PhysicsModel:
    changed = copy.copy(model)
    changed.ground = _RandomGround(sign)  # type: ignore[assignment]
    return changed


def _fitted(name: str, seen_sn: Float[np.ndarray, "s n"], image_sn: Float[np.ndarray, "s n"]) -> SignedPermutation:
    """The signed permutation that turns what was seen into what the image saw."""
    size_n = np.sqrt(np.mean(image_sn**2, axis=0))
    # Mean squared gaps of image i from the negative and from the value of component j.
    gaps_2nn = np.stack([np.mean((image_sn[:, :, None] - s * seen_sn[:, None, :]) ** 2, axis=0) for s in (-1, 1)])
    relative_2nn = np.sqrt(gaps_2nn) / (size_n[:, None] + 1e-6)
    count = size_n.size
    index, sign = np.zeros(count, int), np.ones(count)
    for i in range(count):
        if size_n[i] < 1e-6 and relative_2nn[1, i, i] <= TOLERANCE:  # always 0
            index[i] = i
            continue
        best = relative_2nn[:, i].min()
        if best > TOLERANCE:
            raise ConfigError(
                f"Component {i} of observation {name!r} has no mirror image: nothing in that observation has its value "
                f"or the negative of it when the robot is mirrored. {_FIXES}"
            )
        # Itself rather than others that always have the same value.
        is_best_2n = relative_2nn[:, i] <= best + 1e-4
        side, index[i] = np.argwhere(is_best_2n)[-1]
        if is_best_2n[:, i].any():
            side, index[i] = int(is_best_2n[:, i].argmax()), i
        sign[i] = 2 * side - 1
    found = SignedPermutation.of(index, sign)
    if not found.is_involution:
        raise ConfigError(
            f"The mirror image of observation {name!r} is not clear: components always have the same values. {_FIXES}"
        )
    return found
