"""Observations of reference motions."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.mdp.term import Context
from ksim.mdp.term_errors import named_errors
from ksim.rollout.mdp_environment import MdpEnvironment


def reference_transitions(
    env: MdpEnvironment, group: str, clips: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> Float[np.ndarray, "n 2 f"]:
    """A group's observations before and after each control step of reference motions.

    The terms are the same as in rollouts. As there, derived quantities are from before the last physics step, so that
    only the motion distinguishes the two.

    Args:
        group: An observation group whose terms read only the physics.
        clips: Of each clip, for each control step, the poses after its last physics step (n, q), the velocities (n, v),
            and the poses before that step (n, q).

    Raises:
        ConfigError: A term has noise, or reads something that clips lack.
    """
    _check_has_no_noise(env, group)
    shown = _shown(env, group)
    pairs = []
    for states in clips:
        at_rest, driven = shown(states, 0), shown(states, 1)
        for name, values in at_rest.items():
            if not np.array_equal(values, driven[name], equal_nan=True):
                raise _not_shown(group, name)
        features_nf = np.concatenate(list(at_rest.values()), axis=1)
        pairs.append(np.stack([features_nf[:-1], features_nf[1:]], axis=1))
    transitions_n2f = np.concatenate(pairs)
    if not np.isfinite(transitions_n2f).all():
        raise ConfigError(f"Observation group {group!r} is not finite for the clips. Look for a division by zero.")
    return transitions_n2f


_States = tuple[np.ndarray, np.ndarray, np.ndarray]


def _check_has_no_noise(env: MdpEnvironment, group: str) -> None:
    for name, term in env.mdp.observations[group].items():
        if term.noise is not None:
            raise ConfigError(
                f"Observation {name!r} of group {group!r} must have no noise, by which a rollout would be told from a "
                "reference. Leave its noise out."
            )


def _not_shown(group: str, name: str) -> ConfigError:
    return ConfigError(
        f"Observation {name!r} of group {group!r} must follow from positions and velocities of one state: a clip has "
        "no actions, forces or time, and no memory of earlier steps. Leave it out of the group."
    )


def _shown(env: MdpEnvironment, group: str) -> Callable[[_States, int], dict[str, np.ndarray]]:
    """Function from `(states, k)` to each term's values, (n, f), `k` steps after a reset, every action `k`.

    The states are rows of positions, velocities, and positions before the last physics step.
    """
    mdp, model = env.mdp, env.engine.model
    engine = mdp.make_engine("mujoco", model)

    def of_state(qpos: Array, qvel: Array, qpos_before: Array, k: Array) -> dict[str, Float[Array, " f"]]:
        action = jnp.full(env.action_size, k, jnp.float32)
        control = mdp.control(action, model)
        before = dataclasses.replace(model.start(), qpos=qpos_before, qvel=qvel)
        physics = dataclasses.replace(engine.forward(before, control, {}), qpos=qpos, qvel=qvel)
        actions = {"action": action, "previous_action": action, "control": control}
        own, values = Context.at(model, physics, **actions, episode_step=k), {}
        for name, term in mdp.observations[group].items():
            with named_errors(f"observation/{group}/{name}", term):
                memory = term.init(own)
                if jax.tree.leaves(memory):
                    raise _not_shown(group, name)
                values[name] = jnp.ravel(term(dataclasses.replace(own, memory=memory)))
        return values

    mapped = jax.jit(jax.vmap(of_state, in_axes=(0, 0, 0, None)))

    def shown(states: _States, k: int) -> dict[str, np.ndarray]:
        values = mapped(*(jnp.asarray(x, jnp.float32) for x in states), jnp.int32(k))
        # In the order of the group: mapping sorts the names.
        return {name: np.asarray(values[name]) for name in mdp.observations[group]}

    return shown
