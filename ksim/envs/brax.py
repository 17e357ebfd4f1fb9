"""Environments of Brax (`pip install brax`) by name, on any of its backends.

    python -m ksim.envs.brax ant num_envs=512
    python -m ksim.envs.brax humanoid env_options=[backend=spring]

Source: Freeman et al. 2021, "Brax" (arXiv:2106.13281).
"""

import inspect
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

PROGRAM = "python -m ksim.envs.brax"


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class BraxConfig(WrappedConfig):
    """Options of a Brax environment. `env_options=[backend=spring]` picks its physics."""

    def own_physics(self) -> str:
        return str(parsed_options(self.env_options).get("backend", "generalized"))

    def validate(self) -> None:
        super().validate()
        if self.engine != "auto" and self.own_physics() != "mjx":
            raise ConfigError(
                f"engine ({self.engine}) is for Brax's back end mjx, and {self.env} has {self.own_physics()}. Add "
                "env_options=[backend=mjx], or leave engine out."
            )

    def agrees_natively(self) -> bool:
        # tests/envs/test_contracts.py compares the trajectories of the package's own environments.
        is_brax_own = getattr(_brax()._envs.get(self.env), "__module__", "").startswith("brax.envs.")
        return is_brax_own and self.own_physics() == "mjx"


class BraxTask(WrappedTask[BraxConfig]):
    """PPO in a Brax environment: `BraxTask("ant").run()`."""

    @classmethod
    def published_config(cls, name: str) -> BraxConfig:
        """Options with which its environments learn; Brax publishes none."""
        check_name(name, sorted(_brax()._envs), PROGRAM)
        # With a standard deviation of 1, a third of the actions would be clipped. The rate is the one measured
        # beside Brax's PPO.
        return BraxConfig(env=name, init_std=0.5, learning_rate=3e-4, desired_kl=None)

    def make(self, config: BraxConfig) -> ExternalEnv:
        envs = _brax()
        check_name(config.env, sorted(envs._envs), PROGRAM)
        known = inspect.signature(envs._envs[config.env]).parameters.keys() - {"kwargs"}
        with external_errors(config, known):
            env = envs.get_environment(config.env, **parsed_options(config.env_options))
            return ExternalEnv(
                env=env,
                dt=float(env.sys.opt.timestep),
                ctrl_dt=float(env.dt),
                mj_model=env.sys.mj_model,
                mjx_model=env.sys if env.backend == "mjx" else None,
                package="brax" if type(env).__module__.startswith("brax.envs.") else "",
                shown=shown_state(
                    env.sys.mj_model,
                    float(env.dt),
                    config.action_repeat,
                    lambda state: (state.pipeline_state.q, state.pipeline_state.qd, {}),
                ),
            )


def _brax() -> Any:
    return imported("brax.envs", "Brax", extra="brax")


if __name__ == "__main__":
    main(BraxTask)
