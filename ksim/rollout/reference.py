"""What an observation group would show of a reference motion."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.mdp.term import Context
from ksim.mdp.term_errors import naming
from ksim.rollout.mdp_environment import MdpEnvironment


def reference_transitions(
    env: MdpEnvironment, group: str, clips: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> Float[np.ndarray, "n 2 f"]:
    """What a group shows before and after each control step of reference motions.

    The terms are those that the rollouts go through. As there, derived quantities are those before the last physics
    step, so that nothing but the motion tells the two apart.

    Args:
        env: The environment.
        group: Its observation group; its terms read the physics alone.
        clips: Of each clip, for each control step, the poses after its last physics step (n, q), the velocities (n, v),
            and the poses before that step (n, q).

    Raises:
        ConfigError: A term has noise, which clips have not, or cannot show a clip.
    """
    for name, term in env.mdp.observations[group].items():
        if term.noise is not None:
            raise ConfigError(
                f"Observation {name!r} of group {group!r} must have no noise, by which a rollout would be told from a "
                "reference. Leave its noise out."
            )
    shown = _shown(env, group)
    pairs = []
    for states in clips:
        features_nf = np.asarray(shown(*(jnp.asarray(x, jnp.float32) for x in states)))
        pairs.append(np.stack([features_nf[:-1], features_nf[1:]], axis=1))
    transitions_n2f = np.concatenate(pairs)
    if not np.isfinite(transitions_n2f).all():
        raise ConfigError(f"Observation group {group!r} is not finite for the clips. Look for a division by zero.")
    return transitions_n2f


def _shown(env: MdpEnvironment, group: str) -> Callable[[Array, Array, Array], Array]:
    """`(qpos, qvel, qpos before the last physics step)`, one row per state, to what the group shows of each."""
    mdp, model = env.mdp, env.engine.model
    engine, action = mdp.make_engine("mujoco", model), jnp.zeros(env.action_size)
    context = Context(
        model=model,
        physics=model.start(),
        action=action,
        previous_action=action,
        control=mdp.control(action, model),
        commands={},
        episode_step=jnp.int32(0),
        terminated=jnp.bool_(False),
        overrides={},
        key=jax.random.key(0),
    )

    def of_state(qpos: Array, qvel: Array, qpos_before: Array) -> Float[Array, " f"]:
        before = dataclasses.replace(model.start(), qpos=qpos_before, qvel=qvel)
        physics = dataclasses.replace(engine.forward(before, context.control, {}), qpos=qpos, qvel=qvel)
        values = []
        for name, term in mdp.observations[group].items():
            own = dataclasses.replace(context, physics=physics)
            with naming(f"observation/{group}/{name}", term):
                values.append(jnp.ravel(term(dataclasses.replace(own, memory=term.init(own)))))
        return jnp.concatenate(values)

    return jax.jit(jax.vmap(of_state))
