"""Properties of an option beyond its value, given in its declaration."""

from dataclasses import dataclass

import jax
import pytest

import ksim
from examples.point_mass import PointMassConfig
from ksim import ConfigError
from ksim.checkpoint.options import check_resumed, is_fixed
from ksim.config import field, hyperparameters, options_with


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class OtherDefaults(PointMassConfig):
    """Options that are declared anew, in the short way, and one of its own."""

    seed: int = 3
    num_arms: int = field(2, help="arms of the robot", fixed=True)


def test_options_by_their_roles():
    assert options_with(ksim.PPOConfig, "fixed") == [
        *("num_envs", "seed", "normalize_observations", "normalize_values", "init_std", "squash")
    ]
    assert options_with(ksim.PPOConfig, "network") == ["model", "actor_sizes", "critic_sizes", "memory_size", "std"]
    assert options_with(ksim.RLConfig, "per_process") == ["log_level"]
    assert set(options_with(ksim.DistributedPPOConfig, "per_process")) == {"log_level", "process_id"}


def test_hyperparameters_are_the_options_that_shape_what_is_learned():
    names = hyperparameters(OtherDefaults)
    assert {"num_envs", "seed", "learning_rate", "actor_sizes", "ctrl_dt", "num_arms"} <= set(names)
    assert not {"run_dir", "resume", "devices", "eval_num_envs", "video", "max_to_keep", "viewer", "log_level"} & set(
        names
    )


def test_option_of_another_default_keeps_its_roles_and_a_new_one_has_its_own():
    config = OtherDefaults()
    assert is_fixed(config, "seed")
    assert is_fixed(config, "num_arms")
    assert not is_fixed(config, "gamma")
    with pytest.raises(ConfigError, match=r"seed \(3\) cannot change when a run is resumed: .* was made with 1"):
        check_resumed(config, {"seed": (1, 3)})
    check_resumed(config, {"actor_sizes": ([8], [9]), "gamma": (0.9, 0.99)})  # the arrays do not fit, or it may change
