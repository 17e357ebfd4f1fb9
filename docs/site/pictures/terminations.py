"""Pictures of terminations: the conditions under which each ends the episode."""

import jax.numpy as jnp
import numpy as np

from docs.site.pictures.body import SIDE
from docs.site.pictures.panels import Draw, sweep
from docs.site.pictures.robot import DT, SLOPE, context, joint_angles, model
from ksim.mdp import terminations


class _FarFromStartAtTwo(terminations.FarFromStart):
    """As in an episode that began at x = 2 m."""

    def init(self, context):
        return jnp.array([2.0, 0.0])


PICTURES: dict[type, Draw] = {
    terminations.TimeLimit: sweep(
        terminations.TimeLimit(seconds=20.0),
        lambda s: context(episode_step=np.int32(s / DT)),
        (0, 25),
        "time since the reset, s",
        marks={20: "seconds"},
    ),
    terminations.BaseTooLow: sweep(
        terminations.BaseTooLow(height=0.4),
        lambda bend: context(joints=joint_angles(hip=-bend, knee=2 * bend, ankle=-bend)),
        (1.4, 0.2),
        "bend of the hips, rad (height=0.4)",
        view=SIDE,
    ),
    terminations.BaseTooHigh: sweep(
        terminations.BaseTooHigh(height=0.75),
        lambda z: context(height=z),
        (0.59, 0.95),
        "height of the base, m",
        view=SIDE,
        marks={0.75: "height"},
    ),
    terminations.BaseTooFast: sweep(
        terminations.BaseTooFast(max_lin_vel=10.0),
        lambda v: context(lin_vel=(v, 0, 0)),
        (0, 15),
        "speed of the base, m/s",
        marks={10: "max_lin_vel"},
    ),
    terminations.TooFar: sweep(
        terminations.TooFar(distance=5.0),
        lambda x: context(at=(x, 0)),
        (-8, 8),
        "position of the base from the world's origin, m",
        marks={-5: "-distance", 5: "distance"},
    ),
    terminations.FarFromStart: sweep(
        _FarFromStartAtTwo(distance=3.0),
        lambda x: context(at=(x, 0)),
        (-4, 8),
        "position of the base, m, in an episode that started at 2 m",
        marks={-1: "start - distance", 5: "start + distance"},
    ),
    terminations.OffTerrain: sweep(
        terminations.OffTerrain(margin=1.0),
        lambda x: context(at=(x, 0), of=model(DT, SLOPE)),
        (-6, 6),
        "position of the base, m, on a heightfield from -5 m to 5 m",
        marks={-5: "edge", 5: "edge"},
    ),
    terminations.JointOutOfRange: sweep(
        terminations.JointOutOfRange(("left_knee",), margin=0.1),
        lambda x: context(joints=joint_angles(left_knee=x), height=0.59),
        (-0.5, 2.6),
        "left knee, rad",
        view=SIDE,
        marks={0.0: "limit", 2 * np.pi / 3: "limit"},
    ),
    terminations.JointTooFast: sweep(
        terminations.JointTooFast(max_vel=15.0, joints=("left_knee",)),
        lambda v: context(joint_vel={"left_knee": v}),
        (-25, 25),
        "velocity of the joint, rad/s",
        marks={-15: "-max_vel", 15: "max_vel"},
    ),
    terminations.BodyContact: sweep(
        terminations.BodyContact(bodies=("trunk",), threshold=1.0),
        lambda f: context(sensors={"ksim_trunk_contact": f}),
        (0, 4),
        "contact force on the trunk, N",
        marks={1.0: "threshold"},
    ),
    terminations.SensorAbove: sweep(
        terminations.SensorAbove("left_touch", threshold=150.0),
        lambda f: context(touch=(f, 0)),
        (0, 300),
        "reading of the sensor, in its own unit",
        marks={150: "threshold"},
    ),
    terminations.BaseTilted: sweep(
        terminations.BaseTilted(max_tilt=1.0),
        lambda x: context(pitch=x, height=0.5),
        (-1.6, 1.6),
        "tilt of the base, rad",
        view=SIDE,
        marks={-1.0: "max_tilt", 1.0: "max_tilt"},
    ),
    terminations.Custom: sweep(
        terminations.Custom(lambda seen: seen.physics.qpos[1] > 0.5),
        lambda y: context(at=(0, y)),
        (-1, 1),
        "position of the base along y, m, for function=lambda c: c.physics.qpos[1] > 0.5",
    ),
}
