"""Properties of an option beyond its value, given in its declaration."""

import dataclasses
import math
from dataclasses import dataclass

import jax
import pytest

import ksim
from examples.point_mass import PointMassConfig
from ksim import ConfigError
from ksim.checkpoint.options import check_resumed, is_fixed
from ksim.config import changed_options, check_fields, field, hyperparameters, options_metadata, options_with
from ksim.envs.task import WrappedConfig


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class OtherDefaults(PointMassConfig):
    """Options that are declared anew, in the short way, and one of its own."""

    seed: int = 3
    num_arms: int = field(2, help="arms of the robot", fixed=True)


def test_options_by_their_roles():
    assert options_with(ksim.PPOConfig, "fixed") == [
        *("num_envs", "seed", "normalize_observations", "normalize_values", "activation", "init_std", "squash")
    ]
    assert options_with(ksim.PPOConfig, "network") == [
        *(
            "normalize_observations",
            "model",
            "actor_sizes",
            "critic_sizes",
            "memory_size",
            "activation",
            "std",
            "squash",
        )
    ]
    assert options_with(ksim.RLConfig, "per_process") == ["log_level"]
    assert set(options_with(ksim.DistributedPPOConfig, "per_process")) == {"log_level", "process_id"}


def test_hyperparameters_are_the_options_that_shape_what_is_learned():
    names = hyperparameters(OtherDefaults)
    assert {"num_envs", "seed", "learning_rate", "actor_sizes", "ctrl_dt", "num_arms"} <= set(names)
    assert not {"run_dir", "resume", "devices", "eval_num_envs", "video", "max_to_keep", "viewer", "log_level"} & set(
        names
    )


def test_changed_options_are_the_hyperparameters_that_differ_from_the_defaults_of_their_own_config():
    config = OtherDefaults()
    assert changed_options(config) == []
    changes = {"gamma": 0.5, "actor_sizes": [3], "eval_num_envs": 2, "run_dir": "x"}  # the last two do not affect it
    assert changed_options(dataclasses.replace(config, **changes)) == ["gamma", "actor_sizes"]
    assert changed_options(dataclasses.replace(config, actor_sizes=tuple(config.actor_sizes))) == []


def test_option_of_another_default_keeps_its_roles_and_a_new_one_has_its_own():
    config = OtherDefaults()
    assert is_fixed(config, "seed")
    assert is_fixed(config, "num_arms")
    assert not is_fixed(config, "gamma")
    with pytest.raises(ConfigError, match=r"seed \(3\) cannot change when a run is resumed: .* was made with 1"):
        check_resumed(config, {"seed": (1, 3)})
    check_resumed(config, {"actor_sizes": ([8], [9]), "gamma": (0.9, 0.99)})  # the arrays do not fit, or it may change


TINY = "at least 1.2e-38, the least that 32 bits can tell from zero"
HUGE = "at most 3.4e+38"
BOUNDS = [
    (
        "num_envs rollout_length eval_num_envs viewer_num_envs max_bad_updates max_to_keep num_passes memory_size "
        "batch_size num_batches num_devices grad_sync_period replica_check_interval num_processes discriminator_steps "
        "warp_contacts warp_constraints "
        "discriminator_batch_size replay_size episode_length action_repeat",
        [1, 2**31 - 1],
        {0: "positive", -1: "positive", 2**31: "at most 2147483647"},
    ),
    ("max_iterations max_env_steps eval_every_n_iterations save_every_n_iterations video_every_n_evaluations",
     [1, 2**63 - 1], {0: "positive", -1: "positive"}),
    (
        "eval_every_n_seconds save_every_n_seconds dt ctrl_dt learning_rate desired_kl max_grad_norm clip_param "
        "value_clip init_std min_std min_learning_rate max_learning_rate style_fps discriminator_learning_rate "
        "kl_bound",
        [1e-37, 1, 3.4e38],
        {0.0: "positive", -1e-9: "positive", 1e-39: TINY, 3.5e38: HUGE, math.inf: "positive", math.nan: "positive"},
    ),
    ("value_loss_coef entropy_coef symmetry_coef style_weight task_weight gradient_penalty latent_loss_coef",
     [0.0, -0.0, 1e-37, 3.4e38],
     {-5e-324: "zero or more", 1e-39: TINY, 3.5e38: HUGE, math.inf: "zero or more", math.nan: "zero or more"}),
    ("gamma gae_lambda", [0, 5e-324, 1.0], dict.fromkeys((-5e-324, 1 + 1e-15, math.nan), "from 0 to 1")),
    ("entropy_target", [-10, -0.5, 0.68], dict.fromkeys((-10.1, 0.69, -math.inf, math.nan), "from -10 to 0.68")),
    ("seed eval_seed", [0, 2**32 - 1], dict.fromkeys((-1, 2**32), "from 0 to 4294967295")),
    ("viewer_port", [1, 65535], dict.fromkeys((0, 65536), "from 1 to 65535")),
    ("hang_timeout_s", [1e-37, 1e6], {0: "positive", 1e-39: TINY, 1000000.1: "at most 1e+06", math.inf: "positive"}),
    ("connect_timeout_s heartbeat_timeout_s", [1, 10**6], {0: "positive", 10**6 + 1: "at most 1000000"}),
]  # fmt: skip
"""Options, numbers that they may be, and the rule in the message for others next to those."""
CASES = {name: (valid, refused) for names, valid, refused in BOUNDS for name in names.split()}
CONFIGS = {
    name: config
    for config in (ksim.AMPConfig(), ksim.REPPOConfig(), WrappedConfig(dt=0.01))
    for name in options_metadata(type(config))
}


@pytest.mark.parametrize("name", CASES)
def test_option_just_out_of_its_bounds_is_refused_with_the_rule(name):
    config, (valid, refused) = CONFIGS[name], CASES[name]
    for value in valid:
        check_fields(dataclasses.replace(config, **{name: value}))
    label = "Number of environments" if name == "num_envs" else name
    for value, rule in refused.items():
        with pytest.raises(ConfigError) as error:
            check_fields(dataclasses.replace(config, **{name: value}))
        assert str(error.value) == f"{label} ({value}) must be {rule}."


def test_every_option_with_bounds_has_a_case():
    configs = (ksim.AMPConfig, ksim.REPPOConfig, WrappedConfig)
    assert {name for config in configs for name in options_with(config, "bounds")} == {*CASES}


def test_option_of_another_default_keeps_its_bounds():
    with pytest.raises(ConfigError, match=r"seed \(-1\) must be from 0 to 4294967295"):
        check_fields(OtherDefaults(seed=-1))
