"""Pictures of rewards that are values of a state: over the quantity that each measures."""

import math

import jax.numpy as jnp
import numpy as np

from docs.site.pictures.body import BEHIND, SIDE
from docs.site.pictures.panels import Draw, sweep
from docs.site.pictures.robot import FEET, TOUCH, commanding, context, joint_angles, model
from ksim.mdp import rewards

_STDS = (0.1, 0.25, 0.5)


def _at_standard_deviations(term, stds=_STDS, **fields):
    return {f"std={std}": term("command", std=std, **fields) for std in stds}


def _one_actuator(torque):
    """Forces of all actuators: this of the first, which turns the left hip sideways, and none of the others."""
    return jnp.zeros(model().mj_model.nu).at[0].set(torque)


def _foot_at(height, velocity=0.0):
    """The left foot at a height, in m, and at a speed, in m/s; the right one down."""
    standing = context(joints=joint_angles(hip=0, knee=0, ankle=0), touch=(0.0, 100.0))
    position = np.array(standing.physics.derived["site_xpos"])
    position[:, 2] = np.where(np.arange(len(position)) == model().names.index("site", "left_foot"), height, 0.5)
    sensors = {"ksim_left_foot_velocity": [velocity, 0, 0], "ksim_right_foot_velocity": [0, 0, 0]}
    return context(touch=(0.0, 100.0), sensors=sensors, derived={"site_xpos": position})


TRACKING: dict[type, Draw] = {
    rewards.TrackLinearVelocity: sweep(
        _at_standard_deviations(rewards.TrackLinearVelocity),
        lambda v: context(lin_vel=(v, 0, 0), **commanding(0.5, 0, 0)),
        (-0.5, 1.5),
        "forward velocity, m/s",
        marks={0.5: "command"},
    ),
    rewards.TrackYawRate: sweep(
        _at_standard_deviations(rewards.TrackYawRate),
        lambda v: context(ang_vel=(0, 0, v), **commanding(0, 0, 0.5)),
        (-1.0, 2.0),
        "yaw rate, rad/s",
        marks={0.5: "command"},
    ),
    rewards.TrackHeading: sweep(
        _at_standard_deviations(rewards.TrackHeading, (0.25, 0.5, 1.0)),
        lambda yaw: context(yaw=yaw, **commanding(1.0)),
        (-math.pi, math.pi),
        "heading of the base, rad",
        marks={1.0: "command"},
    ),
    rewards.TrackHeight: sweep(
        _at_standard_deviations(rewards.TrackHeight, (0.02, 0.05, 0.1)),
        lambda bend: context(joints=joint_angles(hip=-bend, knee=2 * bend, ankle=-bend), **commanding(0.5)),
        (0.2, 1.0),
        "bend of the hips, rad (the command: a height of 0.5 m)",
        view=SIDE,
    ),
    rewards.TrackRollPitch: sweep(
        _at_standard_deviations(rewards.TrackRollPitch, (0.1, 0.2, 0.4)),
        lambda pitch: context(pitch=pitch, **commanding(0.0, 0.2)),
        (-0.8, 0.8),
        "pitch, rad",
        view=SIDE,
        marks={0.2: "command"},
    ),
    rewards.TrackJointPose: sweep(
        _at_standard_deviations(rewards.TrackJointPose, (0.1, 0.3, 0.6), joints=("left_knee",)),
        lambda knee: context(joints=joint_angles(left_knee=knee), height=0.59, **commanding(0.9)),
        (0.0, 2.0),
        "left knee, rad",
        view=SIDE,
        marks={0.9: "command"},
    ),
    rewards.TrackPosition: sweep(
        _at_standard_deviations(rewards.TrackPosition, (0.05, 0.1, 0.2), site="left_foot"),
        lambda hip: context(joints=joint_angles(left_hip=hip), height=0.59, **commanding(0.3, 0.08, -0.46)),
        (-1.4, 0.6),
        "left hip, rad (the foot meets its command at the peak)",
        view=SIDE,
    ),
    rewards.StandStill: sweep(
        rewards.StandStill("command"),
        lambda bend: context(joints=joint_angles(hip=-bend, knee=2 * bend, ankle=-bend), **commanding(0, 0, 0)),
        (0.0, 0.8),
        "bend of the hips, rad, while commanded to stand",
        view=SIDE,
        marks={0.25: "default pose"},
    ),
}

POSTURE: dict[type, Draw] = {
    rewards.Upright: sweep(
        rewards.Upright(), lambda x: context(pitch=x, height=0.5), (-1.6, 1.6), "tilt, rad", view=SIDE
    ),
    rewards.BaseTilt: sweep(
        rewards.BaseTilt(), lambda x: context(pitch=x, height=0.5), (-1.6, 1.6), "tilt, rad", view=SIDE
    ),
    rewards.BaseRoll: sweep(
        {f"target={t}": rewards.BaseRoll(target=t) for t in (0.0, 0.2)},
        lambda x: context(roll=x, height=0.5),
        (-1.0, 1.0),
        "roll, rad (to the right), seen from behind",
        view=BEHIND,
    ),
    rewards.BasePitch: sweep(
        {f"target={t}": rewards.BasePitch(target=t) for t in (0.0, 0.2)},
        lambda x: context(pitch=x, height=0.5),
        (-1.0, 1.0),
        "pitch, rad (nose down)",
        view=SIDE,
    ),
    rewards.BaseHeightError: sweep(
        rewards.BaseHeightError(target=0.55),
        lambda x: context(height=x),
        (0.35, 0.7),
        "height of the base, m",
        view=SIDE,
        marks={0.55: "target"},
    ),
    rewards.VerticalVelocity: sweep(
        rewards.VerticalVelocity(), lambda v: context(lin_vel=(0, 0, v)), (-1, 1), "vertical velocity, m/s"
    ),
    rewards.RollPitchRate: sweep(
        rewards.RollPitchRate(), lambda v: context(ang_vel=(0, v, 0)), (-2, 2), "pitch rate, rad/s"
    ),
    rewards.JointDeviation: sweep(
        rewards.JointDeviation(joints=("left_knee", "right_knee")),
        lambda x: context(joints=joint_angles(knee=x), height=0.59),
        (0, 2),
        "both knees, rad",
        view=SIDE,
        marks={0.5: "default pose"},
    ),
    rewards.JointLimits: sweep(
        {f"soft_fraction={f}": rewards.JointLimits(("left_knee",), soft_fraction=f) for f in (0.8, 0.9)},
        lambda x: context(joints=joint_angles(left_knee=x), height=0.59),
        (-0.2, 2.3),
        "left knee, rad",
        view=SIDE,
        marks={0.0: "limit", 2 * math.pi / 3: "limit"},
    ),
}

FEET_STATES: dict[type, Draw] = {
    rewards.FeetSlip: sweep(
        rewards.FeetSlip(("left_touch",), ("left_foot",)),
        {
            label: lambda v, force=force: context(touch=(force, 0), sensors={"ksim_left_foot_velocity": [v, 0, 0]})
            for label, force in {"foot down": 100, "foot in the air": 0}.items()
        },
        (-1, 1),
        "horizontal velocity of the foot, m/s",
    ),
    rewards.ImpactForce: sweep(
        rewards.ImpactForce(TOUCH, threshold=100.0),
        lambda f: context(touch=(f, 0)),
        (0, 300),
        "contact force of a foot, N",
        marks={100: "threshold"},
    ),
    rewards.FeetDistance: sweep(
        rewards.FeetDistance(FEET, distance=(0.15, 0.3)),
        lambda x: context(joints=joint_angles(left_roll=x, right_roll=-x), height=0.59),
        (-0.25, 0.5),
        "outward roll of both hips, rad (distance=(0.15, 0.3)), seen from behind",
        view=BEHIND,
    ),
    rewards.FeetFlat: sweep(
        rewards.FeetFlat(("left_foot",)),
        lambda x: context(joints=joint_angles(ankle=-0.25 + x), height=0.59),
        (-0.7, 0.7),
        "tilt of the foot, rad",
        view=SIDE,
    ),
    rewards.FootClearance: sweep(
        rewards.FootClearance(FEET),
        {f"foot at {speed} m/s": lambda z, speed=speed: _foot_at(z, speed) for speed in (1.0, 0.5, 0.0)},
        (0, 0.12),
        "height of the foot, m",
        marks={0.08: "target"},
    ),
}

CONTACTS: dict[type, Draw] = {
    rewards.UndesiredContact: sweep(
        rewards.UndesiredContact(bodies=("trunk",), threshold=1.0),
        lambda f: context(sensors={"ksim_trunk_contact": f}),
        (0, 4),
        "contact force on the trunk, N",
        marks={1.0: "threshold"},
        num=201,
    ),
    rewards.Stumble: sweep(
        rewards.Stumble(("left_foot",), ratio=4.0),
        lambda f: context(sensors={"ksim_left_foot_geom_contact": [20, f, 0, 0, 0, 1, 1, 0, 0]}),
        (0, 160),
        "horizontal force on a foot, N (vertical force: 20 N, ratio=4)",
        marks={80: "ratio * vertical force"},
        num=201,
    ),
}

EFFORT: dict[type, Draw] = {
    rewards.JointVelocityEffort: sweep(
        rewards.JointVelocityEffort(("left_knee",)),
        lambda v: context(joint_vel={"left_knee": v}),
        (-5, 5),
        "velocity of the joint, rad/s",
    ),
    rewards.JointVelocityLimits: sweep(
        {f"soft_fraction={f}": rewards.JointVelocityLimits(10.0, ("left_knee",), soft_fraction=f) for f in (0.7, 0.9)},
        lambda v: context(joint_vel={"left_knee": v}),
        (-14, 14),
        "velocity of the joint, rad/s",
        marks={-10: "-max_vel", 10: "max_vel"},
    ),
    rewards.TorqueEffort: sweep(
        rewards.TorqueEffort(),
        lambda torque: context(derived={"actuator_force": _one_actuator(torque)}),
        (-40, 40),
        "torque of one actuator, N m",
    ),
    rewards.TorqueLimits: sweep(
        {f"soft_fraction={f}": rewards.TorqueLimits(soft_fraction=f) for f in (0.5, 0.8)},
        lambda torque: context(derived={"actuator_force": _one_actuator(torque)}),
        (-40, 40),
        "torque of one actuator, N m (its force range: -40 to 40)",
    ),
    rewards.MechanicalPower: sweep(
        rewards.MechanicalPower(),
        {
            f"torque {torque} N m": lambda v, torque=torque: context(
                joint_vel={"left_roll": v}, derived={"actuator_force": _one_actuator(torque)}
            )
            for torque in (5, 10, 20)
        },
        (-5, 5),
        "velocity of the joint, rad/s",
    ),
    rewards.CostOfTransport: sweep(
        {f"min_speed={v}": rewards.CostOfTransport(min_speed=v) for v in (0.1, 0.2)},
        lambda v: context(
            lin_vel=(v, 0, 0), joint_vel={"left_roll": 5.0}, derived={"actuator_force": _one_actuator(10.0)}
        ),
        (0, 2),
        "horizontal speed, m/s, at a mechanical power of 50 W",
    ),
}

WRAPPERS: dict[type, Draw] = {
    rewards.Clipped: sweep(
        {
            "VerticalVelocity()": rewards.VerticalVelocity(),
            "clipped to low=0, high=0.5": rewards.Clipped(rewards.VerticalVelocity(), low=0.0, high=0.5),
        },
        lambda v: context(lin_vel=(0, 0, v)),
        (-1, 1),
        "vertical velocity, m/s",
    ),
    rewards.ScaledByLevel: sweep(
        {
            f"start={start}": rewards.ScaledByLevel(rewards.VerticalVelocity(), level="penalties", start=start)
            for start in (0.0, 0.5)
        },
        lambda level: context(lin_vel=(0, 0, 1), levels={"penalties": jnp.float32(level)}),
        (0, 1),
        "level of the curriculum (the wrapped reward's value: 1)",
    ),
    rewards.Custom: sweep(
        rewards.Custom(lambda seen: jnp.cos(3 * seen.physics.qpos[2])),
        lambda x: context(height=x),
        (0.3, 1.0),
        "height of the base, m, for function=lambda c: cos(3 * c.physics.qpos[2])",
    ),
}

PICTURES = TRACKING | POSTURE | FEET_STATES | CONTACTS | EFFORT | WRAPPERS
