"""Metrics of a rollout, over all envs of all devices."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ksim.parallel.collectives import (
    gather_across_devices,
    max_across_devices,
    mean_across_devices,
    min_across_devices,
    sum_across_devices,
)
from ksim.rollout.levels import BINS, LEVELS
from ksim.rollout.unroll import NON_FINITE, finite_steps
from ksim.types import Metrics, Trajectory


def running_episodes(
    reward_et: Float[Array, "e t"],
    done_et: Bool[Array, "e t"],
    return_e: Float[Array, " e"],
    length_e: Int[Array, " e"],
) -> tuple[tuple[Float[Array, "e t"], Int[Array, "e t"]], tuple[Float[Array, " e"], Int[Array, " e"]]]:
    """Undiscounted return and length, in steps, of the running episode at every step, across rollouts.

    `return_e` and `length_e` belong to the episode that was running before the rollout. `done_et` is true where an
    episode ended or was cut with the step.

    Returns:
        Return and length up to and including each step, and return and length of the episode running after the rollout.
    """
    chex.assert_rank(reward_et, 2)
    chex.assert_equal_shape([reward_et, done_et])
    chex.assert_shape([return_e, length_e], reward_et.shape[:1])

    def step(running: tuple[Array, Array], inputs: tuple[Array, Array]) -> tuple[tuple[Array, Array], tuple]:
        reward_e, done_e = inputs
        so_far = (running[0] + reward_e, running[1] + 1)
        return jax.tree.map(lambda x: jnp.where(done_e, 0, x), so_far), so_far

    running, so_far_te = jax.lax.scan(step, (return_e, length_e), (reward_et.T, done_et.T))
    return jax.tree.map(jnp.transpose, so_far_te), running


def episode_metrics(
    return_et: Float[Array, "e t"], length_et: Int[Array, "e t"], trajectory: Trajectory, axis_name: str | None
) -> Metrics:
    """Count, mean, spread and extremes of the episodes that finished on any device; NaN if none did.

    Episodes cut at a non-finite step do not count as finished.
    """
    chex.assert_rank(return_et, 2)
    chex.assert_equal_shape([return_et, length_et, trajectory.done, trajectory.terminated])
    done_et = _finished(trajectory)
    sums = sum_across_devices(
        {
            "count": jnp.sum(done_et),
            "terminated": jnp.sum(trajectory.terminated),
            "return": jnp.sum(return_et, where=done_et),
            "length": jnp.sum(length_et.astype(jnp.float32), where=done_et),
        },
        axis_name,
    )
    count = jnp.where(sums["count"] > 0, sums["count"], jnp.nan)
    mean = sums["return"] / count
    # Two passes: mean square less squared mean cannot resolve returns of 10,000 that differ by 1 in float32.
    gap_et = jnp.where(done_et, return_et - mean, 0.0)
    variance = sum_across_devices(jnp.sum(jnp.square(gap_et)), axis_name) / count
    lowest = min_across_devices(jnp.min(return_et, where=done_et, initial=jnp.inf), axis_name)
    highest = max_across_devices(jnp.max(return_et, where=done_et, initial=-jnp.inf), axis_name)
    return {
        "episode/count": sums["count"].astype(jnp.float32),
        "episode/return": mean,
        "episode/return_std": jnp.sqrt(variance),
        "episode/return_min": jnp.where(jnp.isnan(count), jnp.nan, lowest),
        "episode/return_max": jnp.where(jnp.isnan(count), jnp.nan, highest),
        "episode/length": sums["length"] / count,
        "episode/terminated_fraction": sums["terminated"] / count,
    }


def rollout_metrics(trajectory: Trajectory, axis_name: str | None) -> Metrics:
    """Means over the rollout of the rewards, the values and the environment's own metrics.

    For curriculum levels, which differ between envs, also the minimum and maximum.
    """
    local = {"rollout/reward": jnp.mean(trajectory.reward), "rollout/value": jnp.mean(trajectory.value)}
    local |= {name: jnp.mean(x) for name, x in trajectory.metrics.items() if not name.startswith(BINS)}
    levels = {name: x for name, x in trajectory.metrics.items() if name.startswith(LEVELS)}
    lowest = min_across_devices({f"{name}/min": jnp.min(x) for name, x in levels.items()}, axis_name)
    highest = max_across_devices({f"{name}/max": jnp.max(x) for name, x in levels.items()}, axis_name)
    return mean_across_devices(local, axis_name) | lowest | highest


def device_metrics(trajectory: Trajectory, axis_name: str | None) -> Metrics:
    """Metrics per device, in the order of the mapped axis: arrays of shape (devices,).

    `episode/count/device` counts finished episodes and `rollout/steps/device` control steps.
    `rollout/not_finite/device`, if the rollout reports it, is the share of steps left out as non-finite.
    """
    own = {"episode/count": jnp.sum(_finished(trajectory)), "rollout/steps": jnp.float32(trajectory.reward.size)}
    if NON_FINITE in trajectory.metrics:
        own[NON_FINITE] = jnp.mean(trajectory.metrics[NON_FINITE])
    rows = gather_across_devices(jnp.stack([x.astype(jnp.float32) for x in own.values()]), axis_name)
    return {f"{name}/device": rows[:, i] for i, name in enumerate(own)}


def _finished(trajectory: Trajectory) -> Bool[Array, "e t"]:
    """Whether each step finished an episode. Episodes cut at a non-finite step do not count."""
    return trajectory.done & finite_steps(trajectory)
