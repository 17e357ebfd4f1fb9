"""Environments of MuJoCo Playground (`pip install playground`) by name.

    python -m ksim.envs.playground CheetahRun num_envs=512

Source: Zakka et al. 2025, "MuJoCo Playground" (arXiv:2502.08844).
"""

import importlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from ksim.envs.task import (
    ExternalEnv,
    WrappedConfig,
    WrappedTask,
    check_name,
    external_errors,
    imported,
    main,
    parsed_options,
)
from ksim.envs.wrapped import shown_state
from ksim.errors import ConfigError

PROGRAM = "python -m ksim.envs.playground"
SUITES = ("dm_control_suite", "locomotion", "manipulation")

BRAX_DEFAULTS = {
    "gae_lambda": 0.95,
    "clipping_epsilon": 0.3,
    "policy_hidden_layer_sizes": (32,) * 4,
    "value_hidden_layer_sizes": (256,) * 5,
}
"""Documented defaults of Brax's PPO, for hyper-parameters that Playground does not publish."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class PlaygroundConfig(WrappedConfig):
    """Options of a MuJoCo Playground environment."""

    def agrees_natively(self) -> bool:
        # tests/envs/test_contracts.py compares the trajectories of the suite's own environments.
        made = _playground().dm_control_suite._envs.get(self.env)
        return getattr(getattr(made, "func", made), "__module__", "").startswith("mujoco_playground.")


class PlaygroundTask(WrappedTask[PlaygroundConfig]):
    """PPO in a MuJoCo Playground environment: `PlaygroundTask("CheetahRun").run()`."""

    @classmethod
    def published_config(cls, name: str) -> PlaygroundConfig:
        """The options of ksim for the hyper-parameters that Playground publishes for Brax's PPO.

        Raises:
            ConfigError: Playground is not installed, or has no such environment.
        """
        return PlaygroundConfig(env=name, **options_of(published_for_brax(name)))

    def make(self, config: PlaygroundConfig) -> ExternalEnv:
        registry = _playground()
        check_name(config.env, _names(registry), PROGRAM)
        known = registry.get_default_config(config.env)
        overrides = {"impl": "jax"} if "impl" in known else {}
        overrides |= parsed_options(config.env_options)
        if overrides.get("impl", "jax") != "jax":
            raise ConfigError(
                f"env_options (impl={overrides['impl']}): the engine is an option of the task. Set engine=warp."
            )
        if overrides.get("vision"):
            raise ConfigError(
                "env_options (vision=true): ksim learns from vectors only, not from pixels. Leave it out."
            )
        known = {*known} - {"action_repeat", "episode_length"}  # read by training, not by the environment
        with external_errors(config, known):
            try:
                env = registry.load(config.env, config_overrides=overrides)
            except subprocess.CalledProcessError as error:
                raise ConfigError(
                    f"{config.env} needs robots that Playground downloads (mujoco_menagerie), which failed: {error}. "
                    "Connect this machine to the network once, or choose an environment of dm_control."
                ) from error
        return ExternalEnv(
            env=env,
            dt=env.sim_dt,
            ctrl_dt=env.dt,
            randomize=registry.get_domain_randomizer(config.env) if config.randomize else None,
            shown=shown_state(env.mj_model, env.dt, config.action_repeat, lambda state: _physics(env, state.data)),
            mj_model=env.mj_model,
            mjx_model=env.mjx_model,
            package="playground" if type(env).__module__.startswith("mujoco_playground.") else "",
            published_obs=_published_observations(config.env),
        )


def published_for_brax(name: str) -> Mapping[str, Any]:
    """The hyper-parameters that Playground publishes for Brax's PPO in an environment.

    Raises:
        ConfigError: Playground is not installed, or has no such environment.
    """
    registry = _playground()
    check_name(name, _names(registry), PROGRAM)
    return next(
        importlib.import_module(f"mujoco_playground.config.{suite}_params").brax_ppo_config(name)
        for suite in SUITES
        if name in getattr(registry, suite).ALL_ENVS
    )


def _names(registry: Any) -> list[str]:
    """All environments, including those registered by the program."""
    return [name for suite in SUITES for name in getattr(registry, suite).ALL_ENVS]


def options_of(published: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ksim for hyper-parameters of Brax's PPO.

    An iteration of Brax's PPO collects `batch_size * num_minibatches` pieces of `unroll_length` steps, several from
    each env. Here the pieces of an env are one rollout. Rewards are not scaled: values are normalised.
    """
    numbers = {**BRAX_DEFAULTS, **published, **published.get("network_factory", {})}
    pieces = numbers["batch_size"] * numbers["num_minibatches"] // numbers["num_envs"]
    options = {
        "num_envs": numbers["num_envs"],
        "rollout_length": numbers["unroll_length"] * max(1, pieces),
        "num_batches": numbers["num_minibatches"],
        "num_passes": numbers["num_updates_per_batch"],
        "gamma": numbers["discounting"],
        "gae_lambda": numbers["gae_lambda"],
        "learning_rate": numbers["learning_rate"],
        "desired_kl": None,
        "entropy_coef": numbers["entropy_cost"],
        "clip_param": numbers["clipping_epsilon"],
        "normalize_observations": numbers["normalize_observations"],
        "actor_sizes": list(numbers["policy_hidden_layer_sizes"]),
        "critic_sizes": list(numbers["value_hidden_layer_sizes"]),
        "max_env_steps": numbers["num_timesteps"],
        "max_iterations": None,
        "episode_length": numbers["episode_length"],
        "action_repeat": numbers["action_repeat"],
    }
    return options | {name: numbers[name] for name in ("max_grad_norm",) if numbers.get(name) is not None}


def published_observations(published: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The names of the policy's and the critic's observations; None where none is published.

    They are not options: Playground names them for whole suites, and Brax reads them only in environments with several
    observations.
    """
    factory = published.get("network_factory", {})
    return factory.get("policy_obs_key"), factory.get("value_obs_key")


def _published_observations(name: str) -> tuple[str | None, str | None]:
    try:
        return published_observations(published_for_brax(name))
    except ValueError:  # Playground has no parameters for environments registered by the program
        return None, None


def _playground() -> Any:
    return imported("mujoco_playground", "MuJoCo Playground", extra="playground").registry


def _physics(env: Any, data: Any) -> tuple[Any, Any, dict[str, Any]]:
    extra = {"mocap_pos": data.mocap_pos, "mocap_quat": data.mocap_quat} if env.mj_model.nmocap else {}
    return data.qpos, data.qvel, extra


if __name__ == "__main__":
    main(PlaygroundTask)
