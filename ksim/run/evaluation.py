"""Rolling out the policy of a checkpoint."""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array

from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.layout import SingleDevice
from ksim.ppo.train_step import initial_env_batch, static_leaves
from ksim.rollout.environment import Environment
from ksim.rollout.unroll import initial_env_states, unroll
from ksim.run.checkpoint import find_checkpoint, load_checkpoint
from ksim.run.console import print_figures

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from ksim.task.rl import RLTask

MAX_EPISODE_STEPS = 20_000
"""Where an evaluation gives up on an episode that neither ends nor is cut."""


def evaluate_checkpoint(task: "RLTask[Any]") -> int:
    """Loads a checkpoint, rolls out its policy and prints the returns; see `RLTask.run`.

    Raises:
        ConfigError: There is no checkpoint, or it does not fit the task.
    """
    path, env, model = load_policy(task)
    figures = evaluate(env, model, num_envs=task.config.eval_num_envs, seed=task.config.seed)
    print_figures(
        f"Evaluation of {path}",
        {
            "episodes": f"{figures['num_episodes']:.0f}, one per environment, most likely actions",
            "return": f"{figures['return_mean']:.3f} +- {figures['return_std']:.3f} (standard deviation)",
            "length": f"{figures['length_mean']:.1f} control steps",
            "survived": f"{figures['survival_rate']:.1%}",
        },
    )
    if figures["num_unfinished"]:
        logger.warning("%d episodes went on for more than %d steps.", figures["num_unfinished"], MAX_EPISODE_STEPS)
    return 0


def load_policy(task: "RLTask[Any]") -> tuple[Path, Environment, NormalizedActorCritic]:
    """The path of the checkpoint that the config names, the environment to run it in, and its policy.

    Raises:
        ConfigError: There is no checkpoint, or it does not fit the task.
    """
    path = find_checkpoint(task.config.checkpoint)
    # Native MuJoCo on one device, whatever trained the policy: a check from one simulator to the other.
    task.layout = SingleDevice()
    task.environment = env = task.get_environment("mujoco", num_devices=1)
    initial, model = task.initial_learner()
    learner = load_checkpoint(path, initial)
    return path, env, NormalizedActorCritic(eqx.combine(learner.params, static_leaves(model)), learner.normalizer)


def evaluate(
    env: Environment, model: NormalizedActorCritic, *, num_envs: int, seed: int, chunk_steps: int = 50
) -> dict[str, float]:
    """Whole episodes of a deterministic policy, one per env.

    Args:
        env: The environment.
        model: The policy.
        num_envs: Episodes.
        seed: Seeds the episodes.
        chunk_steps: Control steps per compiled call; an episode is looked at for its end in between.

    Returns:
        `num_episodes`, `return_mean`, `return_std`, `length_mean` (control steps), `survival_rate` (the fraction
        that did not fall), `num_unfinished` (episodes given up after `MAX_EPISODE_STEPS`) and `env_steps_per_s`.
    """
    reset_key, rollout_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    state_e = jax.jit(lambda key: initial_env_states(env, key, num_envs, full_task=True))(reset_key)
    carry_e = initial_env_batch(model, state_e).model_carry

    @jax.jit
    def chunk(state_e: Any, carry_e: Any, key: Array) -> Any:
        key_e = jax.random.split(key, num_envs)
        trajectory, state_e, carry_e = unroll(
            env, model, state_e, carry_e, key_e, num_steps=chunk_steps, deterministic=True
        )
        return (trajectory.reward, trajectory.terminated, trajectory.done), state_e, carry_e

    total_e, length_e = np.zeros(num_envs), np.zeros(num_envs, int)
    running_e, fell_e = np.ones(num_envs, bool), np.zeros(num_envs, bool)
    start_s = time.perf_counter()
    for number in range(MAX_EPISODE_STEPS // chunk_steps):
        outputs, state_e, carry_e = chunk(state_e, carry_e, jax.random.fold_in(rollout_key, number))
        reward_et, terminated_et, done_et = (np.asarray(x) for x in outputs)
        for t in range(chunk_steps):
            # Not multiplied: an env that is done steps on, and 0 * nan is not 0.
            total_e += np.where(running_e, reward_et[:, t], 0.0)
            length_e += running_e
            fell_e |= running_e & terminated_et[:, t]
            running_e &= ~done_et[:, t]
        if not running_e.any():
            break
    elapsed_s = time.perf_counter() - start_s
    return {
        "num_episodes": num_envs,
        "return_mean": float(total_e.mean()),
        "return_std": float(total_e.std()),
        "length_mean": float(length_e.mean()),
        "survival_rate": float(1 - fell_e.mean()),
        "num_unfinished": int(running_e.sum()),
        "env_steps_per_s": float(length_e.sum() / elapsed_s),
    }
