"""The pytrees that layers exchange."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

Observation = dict[str, Array]
"""Named groups of one env's observation, each a vector: `actor`, and `critic` where the critic sees more."""

Metrics = dict[str, Array]
"""Scalars by name, or arrays of one figure per device (`.../device`); the same on every device."""

Overrides = dict[str, Array]
"""Per-env values of model fields (`geom_friction`, `body_mass`, ...), by the field's name in MjModel."""


Levels = dict[str, Array]
"""Difficulty of the task from 0 to 1, by the name of a curriculum: a scalar, or a vector with one number per bin."""

Device = Any
"""A `jax.Device`, which type checkers see as a variable and not as a class."""

GradSyncMode = Literal["accumulate", "local"]
"""Work of a device between gradient synchronisations: accumulate gradients, or take local optimizer steps."""


def key_shape() -> jax.ShapeDtypeStruct:
    """The shape of one random key, for traces."""
    return jax.eval_shape(lambda: jax.random.key(0))


def tree_where(condition: Bool[Array, "*e"], if_true: PyTree, if_false: PyTree) -> PyTree:
    """`if_true` or `if_false`, leaf by leaf, by a scalar or by one flag per row; rows of `if_true` may be shared."""
    rows = lambda x: condition.reshape(-1, *(1,) * (x.ndim - 1)) if condition.ndim else condition
    return jax.tree.map(lambda x, y: jnp.where(rows(y), x, y), if_true, if_false)


class PhysicsState(eqx.Module):
    """The state of one simulation, the same for every engine.

    Attributes:
        qpos: Generalized positions, in m and rad.
        qvel: Generalized velocities, in m/s and rad/s.
        act: Activations of actuators that have any.
        qacc_warmstart: The constraint solver's starting point, carried so that a step is a pure function.
        time: Simulated time since the reset, in s.
        derived: Quantities computed from the state (`sensordata`, `xpos`, ...), by their name in MjData. As after
            MuJoCo's `mj_step`, they describe the state before the last substep.
        applied: External forces during the next control step (`xfrc_applied`, ...), by their name in MjData.
        extra: State that only some models have, by its name in MjData: the poses of mocap bodies (`mocap_pos` in m,
            `mocap_quat`), and the state of springs that yield (`plastic`) and of plugins (`plugin_state`).
    """

    qpos: Float[Array, "*e q"]
    qvel: Float[Array, "*e v"]
    act: Float[Array, "*e a"]
    qacc_warmstart: Float[Array, "*e v"]
    time: Float[Array, "*e"]
    derived: dict[str, Array]
    applied: dict[str, Array] = eqx.field(default_factory=dict)
    extra: dict[str, Array] = eqx.field(default_factory=dict)


class NextStart(eqx.Module):
    """Next start of an env, made before its episode ends so that many envs share one batch of resets.

    Start n of an env is `Environment.next_episode` under `fold_in(key, n)`, whenever it is made.

    Attributes:
        number: The number of the next one; it counts the episodes that have ended.
        packed: The numbers of the start, an `EnvState`, by their type; anything while it is not ready.
    """

    key: Key[Array, "*e"]
    number: Int[Array, "*e"]
    is_ready: Bool[Array, "*e"]
    packed: dict[str, Array]


class EnvState(eqx.Module):
    """The return value of `Environment.reset` and `Environment.step`, for one env.

    Attributes:
        inner: Any pytree that the environment carries from step to step; ksim does not look inside.
        obs: The observation for the next action.
        reward: The reward of the last step.
        terminated: The episode ended here (the robot fell), with no further reward.
        truncated: The episode was cut off here (a time limit); its value is bootstrapped.
        metrics: Scalars of this step, averaged over the rollout and logged.
        next_start: The next start of the env, which a rollout takes and returns with the state. Environments leave
            it out.
    """

    inner: PyTree
    obs: Observation
    reward: Float[Array, "*e"]
    terminated: Bool[Array, "*e"]
    truncated: Bool[Array, "*e"]
    metrics: Metrics
    next_start: NextStart | None = None


class Trajectory(eqx.Module):
    """One rollout of a batch of envs: leading axes env, time.

    Attributes:
        obs: Raw observations of the environment.
        action: Actions as the policy's distribution drew them: its samples, of which `log_prob` is the density.
        log_prob: Log-density of the action under the policy that took it.
        value: The critic's value of `obs`.
        next_value: The critic's value of the state reached, taken before any reset.
        reward: Rewards of the steps.
        terminated: The episode ended with this step (the robot fell).
        done: The episode ended with this step, or was cut off (a time limit, a non-finite step).
        metrics: The environment's metrics, each (env, time).
        reached: Observations of the states reached, taken before any reset, in the task's `reached_groups` only. After
            the last step of an episode they differ from the next `obs`, which begins another episode.
    """

    obs: Observation
    action: Float[Array, "*e_t a"]
    log_prob: Float[Array, "*e_t"]
    value: Float[Array, "*e_t"]
    next_value: Float[Array, "*e_t"]
    reward: Float[Array, "*e_t"]
    terminated: Bool[Array, "*e_t"]
    done: Bool[Array, "*e_t"]
    metrics: Metrics
    reached: Observation = eqx.field(default_factory=dict)


class LearnerState(eqx.Module):
    """State that is replicated on every device.

    Attributes:
        params: Arrays of the actor-critic; its other leaves stay outside the traced step.
        normalizer: Running statistics of the observations.
        key: The run's key; each iteration folds in its number.
        iteration: Iterations done.
        num_bad_updates: Updates skipped in a row because of non-finite gradients.
        levels: Levels of common curricula, from 0 to 1, by name. Per-env levels are in the states of the envs.
    """

    params: PyTree
    normalizer: PyTree
    opt_state: PyTree
    key: Key[Array, "*d"]
    iteration: Int[Array, "*d"]
    num_bad_updates: Int[Array, "*d"]
    levels: Levels


class EnvBatch(eqx.Module):
    """State with one row per env, sharded over devices.

    Attributes:
        model_carry: Memory of a recurrent model; empty for a feed-forward one.
        episode_return: Undiscounted reward of the episode so far.
        episode_length: Control steps of the episode so far.
        next_start: The next starts of the envs. How many are ready depends on the number of devices; the starts
            do not. None: starts are made ahead within a rollout only.
    """

    env_state: EnvState
    model_carry: PyTree
    episode_return: Float[Array, "*e"]
    episode_length: Int[Array, "*e"]
    next_start: NextStart | None = None


class TrainState(eqx.Module):
    """Everything that one training step maps to its successor."""

    learner: LearnerState
    envs: EnvBatch
