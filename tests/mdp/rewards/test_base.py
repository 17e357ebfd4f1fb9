"""Rewards made of something else."""

import jax.numpy as jnp
import pytest

from ksim.errors import ConfigError
from ksim.mdp import rewards
from tests.support.contexts import case, check_value, make_context
from tests.support.robots import biped_spec

CLIPPED = rewards.Clipped(rewards.VerticalVelocity(scale=-2.0), low=0.1, high=0.5)
# The reward itself is 2, a height of 0.5 m times 4; a quarter of it at level 0.
FOURFOLD = rewards.Custom(function=lambda context: 4 * context.physics.qpos[2], scale=-3.0)
SCALED = rewards.ScaledByLevel(reward=FOURFOLD, level="hardness", start=0.25)
CUSTOM = rewards.Custom(lambda context: context.derived("xpos")[0, 2], scale=2.0, needs=("xpos",))

# fmt: off
CASES = [
    case("clipped: at least low", CLIPPED, 0.1, lin_vel_world=(0, 0, 0.0)),
    case("clipped: the reward itself between", CLIPPED, 0.36, lin_vel_world=(0, 0, 0.6)),
    case("clipped: at most high", CLIPPED, 0.5, lin_vel_world=(0, 0, 3.0)),
    # (0.2 / 0.02)^2 + (0.4 / 0.02)^2 = 500
    case("clipped: of a reward with a memory", rewards.Clipped(rewards.JointAcceleration(), low=0.0, high=400.0),
         [0, 400], episode=[{"joint_vel": (1, 2)}, {"joint_vel": (1.2, 1.6)}]),
    case("scaled by level: its start at level 0", SCALED, 0.5, height=0.5, levels={"hardness": jnp.float32(0.0)}),
    case("scaled by level: between at level 0.5", SCALED, 1.25, height=0.5, levels={"hardness": jnp.float32(0.5)}),
    case("scaled by level: all of it at level 1", SCALED, 2.0, height=0.5, levels={"hardness": jnp.float32(1.0)}),
    case("custom: the function's value", CUSTOM, 0.25, derived={"xpos": [[0, 0, 0.25]]}),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def test_rewards_of_another_keep_its_scale_and_custom_its_own_fields():
    assert (CLIPPED.scale, SCALED.scale) == (-2.0, -3.0)
    assert (CUSTOM.needs, CUSTOM.scale) == (("xpos",), 2.0)


def test_clipped_when_the_reward_has_needs_and_sensors_passes_them_on():
    effort = rewards.Clipped(rewards.TorqueEffort(), low=0.0, high=1.0)
    assert [term.needs for term in effort.with_inner_terms()] == [(), ("actuator_force",)]
    spec = biped_spec()
    rewards.Clipped(rewards.FootClearance(sites=("left_foot",)), low=0.0, high=1.0).edit_spec(spec)
    assert spec.sensor("ksim_left_foot_velocity") is not None


def test_level_that_no_curriculum_has_is_an_error_with_near_misses():
    term = rewards.ScaledByLevel(reward=rewards.Alive(), level="hardnes")
    with pytest.raises(ConfigError, match=r"no curriculum 'hardnes'\. Did you mean 'hardness'"):
        term(make_context(levels={"hardness": jnp.float32(1.0)}))
