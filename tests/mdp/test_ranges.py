"""Numbers that make no sense are errors where a term is made."""

import math

import pytest

from ksim.errors import ConfigError
from ksim.mdp import events, randomizers, resets, rewards, terminations

TOUCH, FEET = ("left_touch", "right_touch"), ("left_foot", "right_foot")
CLOCK = {"sensors": TOUCH, "command": "velocity"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: randomizers.RandomFriction(friction=(1.2, 0.5)), r"RandomFriction has friction=\(1.2, 0.5\)"),
        (lambda: randomizers.RandomFriction(friction=(-0.1, 0.5)), r"the smaller first, at least 0\."),
        (lambda: randomizers.RandomBodyMass(body="trunk", added=(1.0, -1.0)), r"added=\(1.0, -1.0\)"),
        (lambda: randomizers.RandomMassFactor(bodies=("trunk",), factor=(0.0, 1.0)), r"above 0\."),
        (lambda: randomizers.RandomInertia(body="trunk", factor=(0.0, 1.0)), r"above 0\."),
        (lambda: randomizers.RandomCenterOfMass(body="trunk", max_offset=-0.1), r"max_offset=-0.1, .* a number"),
        (lambda: randomizers.RandomArmature(factor=(-1.0, 1.0)), r"at least 0\."),
        (lambda: randomizers.RandomDamping(factor=(2.0, 1.0)), r"the smaller first"),
        (lambda: randomizers.RandomJointFriction(friction=(-1.0, 1.0)), r"at least 0\."),
        (lambda: randomizers.RandomJointStiffness(factor=(0.0, 1.0)), r"above 0\."),
        (lambda: randomizers.RandomJointZero(max_offset=-1.0), r"at least 0\."),
        (lambda: randomizers.RandomActuatorGains(kp_factor=(1.2, 0.5)), r"kp_factor"),
        (lambda: randomizers.RandomActuatorGains(kd_factor=(1.2, 0.5)), r"kd_factor"),
        (lambda: randomizers.RandomMotorStrength(factor=(-0.5, 0.5)), r"at least 0\."),
        (lambda: randomizers.RandomGravity(magnitude=-0.5), r"at least 0\."),
        (lambda: randomizers.RandomImuAlignment(site="imu", max_angle=-0.5), r"at least 0\."),
        (lambda: resets.RandomJointPositions(magnitude=-0.5), r"at least 0\."),
        (lambda: resets.RandomJointVelocities(magnitude=math.nan), r"magnitude=nan"),
        (lambda: resets.RandomBasePosition(max_lift=-0.5), r"max_lift"),
        (lambda: resets.RandomHeading(max_yaw=-0.5), r"at least 0\."),
        (lambda: resets.RandomBaseTilt(max_roll=-0.5), r"max_roll"),
        (lambda: resets.RandomBaseVelocity(max_yaw_rate=-0.5), r"max_yaw_rate"),
        (lambda: resets.RandomBaseMotion(max_ang_vel=(0.1, -0.1, 0.1)), r"max_ang_vel=\(0.1, -0.1, 0.1\)"),
        (lambda: resets.ToPose(pose={}), r"empty pose"),
        (lambda: resets.ToKeyframe(keyframes=()), r"names no keyframe"),
        (lambda: events.PushVelocity(interval_s=(0.0, 1.0)), r"interval_s=\(0.0, 1.0\), .* above 0\."),
        (lambda: events.PushVelocity(speed=(1.0, 0.5)), r"speed=\(1.0, 0.5\)"),
        (lambda: terminations.TimeLimit(seconds=0.0), r"above 0\."),
        (lambda: terminations.BaseTooFast(max_lin_vel=0.0), r"max_lin_vel"),
        (lambda: terminations.TooFar(distance=-1.0), r"above 0\."),
        (lambda: terminations.FarFromStart(distance=0.0), r"above 0\."),
        (lambda: terminations.JointOutOfRange(margin=-0.1), r"at least 0\."),
        (lambda: terminations.JointTooFast(max_vel=0.0), r"above 0\."),
        (lambda: terminations.BaseTilted(max_tilt=90.0), r"above 0, at most 3.14159\."),
        (lambda: terminations.BodyContact(), r"neither bodies nor geoms"),
        (lambda: rewards.TrackYawRate(command="velocity", std=0.0), r"above 0\."),
        (lambda: rewards.JointLimits(soft_fraction=1.1), r"at most 1\."),
        (lambda: rewards.TorqueLimits(soft_fraction=1.1), r"at most 1\."),
        (lambda: rewards.JointVelocityLimits(max_vel=0.0), r"max_vel"),
        (lambda: rewards.CostOfTransport(min_speed=0.0), r"min_speed"),
        (lambda: rewards.FeetAirTime(**CLOCK, threshold_s=0.3, max_s=0.2), r"max_s=0.2, .* at least 0.3\."),
        (lambda: rewards.ImpactForce(sensors=TOUCH, threshold=-1.0), r"at least 0\."),
        (lambda: rewards.FeetPhase(**CLOCK, period_s=0.0), r"period_s"),
        (lambda: rewards.FeetPhase(**CLOCK, duty=1.5), r"duty=1.5"),
        (lambda: rewards.FeetPhase(**CLOCK, offsets=(0.0, 0.5, 0.5)), r"offsets=\(0.0, 0.5, 0.5\) for 2 feet"),
        (lambda: rewards.FootSwingHeight(sites=FEET, command="velocity", height=-0.1), r"height=-0.1"),
        (lambda: rewards.FeetDistance(sites=FEET, distance=(0.4, 0.2)), r"distance=\(0.4, 0.2\)"),
        (lambda: rewards.FeetFlat(sites=FEET, sensors=("left_touch",)), r"1 sensors and 2 sites"),
        (lambda: rewards.Symmetry(pairs=(("a", "b"),), command="velocity", signs=(0.5,)), r"must be 1 or -1"),
        (lambda: rewards.Symmetry(pairs=(), command="velocity"), r"no pairs"),
        (lambda: rewards.Clipped(rewards.Alive(), low=1.0, high=0.0), r"low=1.0"),
        (lambda: rewards.UndesiredContact(), r"neither bodies nor geoms"),
        (lambda: rewards.Stumble(geoms=FEET, ratio=0.0), r"ratio"),
    ],
)
def test_term_when_a_number_makes_no_sense_is_an_error_with_value_and_rule(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
