"""The robot of the pictures, and snapshots of it in a given state."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import mujoco
import numpy as np

from docs.site.pictures.snapshot import Physics, Snapshot
from ksim.mdp.observations import ImuAccelerometer, ImuGyro
from ksim.mdp.randomizers import RandomJointFriction
from ksim.mdp.rewards import FeetSlip, Stumble, UndesiredContact
from ksim.physics import PhysicsModel, PositionActuators, SlopeTile, StairsTile, Terrain, compile_model
from ksim.physics.engine import DERIVED_FIELDS

TOUCH, FEET = ("left_touch", "right_touch"), ("left_foot", "right_foot")
ACTUATORS = PositionActuators(kp=60.0, kd=2.0, action_scale=0.5)
STAND = {"hip": -0.25, "knee": 0.5, "ankle": -0.25}
DT = 0.02

_LEG = """
<body name="{side}_thigh" pos="0 {y} -.15">
  <joint name="{side}_roll" axis="1 0 0" range="-30 30" armature=".01" damping=".2"/>
  <joint name="{side}_hip" axis="0 1 0" range="-90 45" armature=".01" damping=".2" stiffness="1"/>
  <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".035" mass="1"/>
  <body name="{side}_shin" pos="0 0 -.2">
    <joint name="{side}_knee" axis="0 1 0" range="0 120" armature=".01" damping=".2"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.2" size=".028" mass=".6"/>
    <body name="{side}_foot" pos="0 0 -.2">
      <joint name="{side}_ankle" axis="0 1 0" range="-45 45" armature=".01" damping=".2"/>
      <geom name="{side}_foot" type="box" pos=".03 0 -.02" size=".08 .035 .02" mass=".3"/>
      <site name="{side}_foot" pos=".03 0 -.04" size=".1"/>
    </body>
  </body>
</body>"""
_MOTORS = "".join(
    f'<motor joint="{side}_{joint}" ctrlrange="-40 40"/>'
    for side in ("left", "right")
    for joint in ("roll", "hip", "knee", "ankle")
)
_MJCF = f"""
<mujoco>
  <option timestep="0.004"/>
  <default><geom contype="0" conaffinity="1"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1" contype="1" conaffinity="0"/>
    <body name="trunk" pos="0 0 .59">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".07 .1 .15" mass="6"/>
      <geom name="head" type="sphere" pos=".01 0 .21" size=".055" mass=".5"/>
      <site name="imu" pos=".02 0 .05"/>
      {_LEG.format(side="left", y=".08")}{_LEG.format(side="right", y="-.08")}
    </body>
  </worldbody>
  <actuator>{_MOTORS}</actuator>
  <sensor>
    <touch name="left_touch" site="left_foot"/>
    <touch name="right_touch" site="right_foot"/>
  </sensor>
</mujoco>"""
_SENSORS = (
    FeetSlip(TOUCH, FEET),
    UndesiredContact(bodies=("trunk",)),
    Stumble(geoms=FEET),
    ImuGyro("imu"),
    ImuAccelerometer("imu"),
    RandomJointFriction(),
)
"""Terms whose sensors, and dry friction, the model has."""

SLOPE = Terrain(tiles=(SlopeTile(slope=(0.0, 0.5), platform_m=1.0),), num_levels=2, tile_m=4.0, border_m=1.0)
STAIRS = Terrain(tiles=(StairsTile(platform_m=1.0),), num_levels=3, tile_m=4.0, border_m=2.0)


@functools.cache
def model(ctrl_dt: float = DT, terrain: Terrain | None = None) -> PhysicsModel:
    """The robot on the floor or on a terrain; the first keyframe, `home`, stands with bent knees."""
    spec = mujoco.MjSpec.from_string(_MJCF)
    legs = [0.0, *STAND.values()] * 2
    crouched = [0.0, *(2 * angle for angle in STAND.values())] * 2
    spec.add_key(name="home", qpos=[0, 0, 0.59, 1, 0, 0, 0, *legs])
    spec.add_key(name="crouched", qpos=[0, 0, 0.54, 1, 0, 0, 0, *crouched])
    edits = [ACTUATORS.edit_spec, *(term.edit_spec for term in _SENSORS)]
    return compile_model(spec, dt=0.004, ctrl_dt=ctrl_dt, edits=edits, terrain=terrain)


def joint_angles(**angles: float) -> dict[str, float]:
    """Angles by joint: `knee=1` bends both knees, `left_knee=1` one."""
    named = {f"{side}_{joint}": angle for joint, angle in STAND.items() for side in ("left", "right")}
    for name, angle in angles.items():
        named |= {name: angle} if "_" in name else {f"{side}_{name}": angle for side in ("left", "right")}
    return named


def context(
    *,
    joints: Mapping[str, float] | None = None,
    joint_vel: Mapping[str, float] | None = None,
    at: Sequence[float] = (0.0, 0.0),
    height: float | None = None,
    roll: float = 0.0,
    pitch: float = 0.0,
    yaw: float = 0.0,
    lin_vel: Sequence[float] = (0.0, 0.0, 0.0),
    ang_vel: Sequence[float] = (0.0, 0.0, 0.0),
    touch: Sequence[float] = (0.0, 0.0),
    sensors: Mapping[str, Any] | None = None,
    derived: Mapping[str, Any] | None = None,
    accelerations: np.ndarray | None = None,
    of: PhysicsModel | None = None,
    **fields: Any,
) -> Snapshot:
    """A snapshot of the robot, which stands with bent knees unless the arguments differ.

    Args:
        joints: Angles, in rad, by name, as from `joint_angles`.
        joint_vel: Velocities of joints, in rad/s, by name.
        at: Position of the base along x and y, in m.
        height: Height of the base, in m; by default its lowest foot touches the ground.
        roll: Of the base, in rad, as are pitch and yaw.
        pitch: Nose down.
        yaw: Leftwards.
        lin_vel: Of the base in the world, in m/s.
        ang_vel: Of the base in its own frame, in rad/s.
        touch: Readings of the feet's touch sensors, in N.
        sensors: Other readings, by the sensor's name.
        derived: Derived fields that differ from MuJoCo's.
        accelerations: Of all degrees of freedom, as sensors see them; by default what MuJoCo's forces cause.
        of: The model.
        fields: Fields of the snapshot.
    """
    of = of or model()
    data = mujoco.MjData(of.mj_model)
    data.qpos[:] = of.default_qpos
    data.qpos[:3] = [*at, 0.59 if height is None else height]
    data.qpos[3:7] = quaternion(roll, pitch, yaw)
    data.qvel[:6] = [*lin_vel, *ang_vel]
    for name, angle in (joints or joint_angles()).items():
        data.qpos[of.names.joint_qpos((name,))] = angle
    for name, velocity in (joint_vel or {}).items():
        data.qvel[of.names.joint_qvel((name,))] = velocity
    if height is None:
        mujoco.mj_kinematics(of.mj_model, data)
        data.qpos[2] -= min(lowest_point(of.mj_model, data, f"{side}_foot") for side in ("left", "right"))
    return of_data(of, data, touch=touch, sensors=sensors, derived=derived, accelerations=accelerations, **fields)


def of_data(
    of: PhysicsModel,
    data: mujoco.MjData,
    *,
    touch: Sequence[float] = (0.0, 0.0),
    sensors: Mapping[str, Any] | None = None,
    derived: Mapping[str, Any] | None = None,
    accelerations: np.ndarray | None = None,
    **fields: Any,
) -> Snapshot:
    """A snapshot of a state of MuJoCo's; contacts read zero but for what is given."""
    mujoco.mj_forward(of.mj_model, data)
    if accelerations is not None:
        data.qacc = accelerations
        mujoco.mj_rnePostConstraint(of.mj_model, data)
        mujoco.mj_sensorAcc(of.mj_model, data)
    sensordata = data.sensordata.copy()
    readings = dict.fromkeys(("ksim_trunk_contact", *(f"ksim_{foot}_geom_contact" for foot in FEET)), 0.0)
    for name, reading in (readings | dict(zip(TOUCH, touch, strict=True)) | dict(sensors or {})).items():
        sensordata[of.names.sensor(name)] = reading
    floats = lambda x: np.array(x, np.float32)
    values = {name: getattr(data, name) for name in DERIVED_FIELDS} | {"sensordata": sensordata} | dict(derived or {})
    zeros = np.zeros(of.mj_model.nu, np.float32)
    actions: dict[str, Any] = {"action": zeros, "previous_action": zeros, "control": zeros} | fields
    return Snapshot(
        model=of,
        physics=Physics(
            qpos=floats(data.qpos),
            qvel=floats(data.qvel),
            act=floats(data.act),
            qacc_warmstart=np.zeros(of.mj_model.nv, np.float32),
            time=floats(data.time),
            derived={name: floats(value) for name, value in values.items()},
            applied={"xfrc_applied": np.zeros((of.mj_model.nbody, 6), np.float32)},
        ),
        **actions,
    )


def quaternion(roll: float = 0.0, pitch: float = 0.0, yaw: float = 0.0) -> np.ndarray:
    """The orientation after a turn by roll, then pitch, then yaw about the world's axes."""
    turned = np.array([1.0, 0, 0, 0])
    for axis, angle in enumerate((roll, pitch, yaw), start=1):
        turn, product = np.zeros(4), np.zeros(4)
        turn[0], turn[axis] = math.cos(angle / 2), math.sin(angle / 2)
        mujoco.mju_mulQuat(product, turn, turned)
        turned = product
    return turned


def lowest_point(mj_model: mujoco.MjModel, data: mujoco.MjData, geom: str) -> float:
    """The height of the lowest corner of a box, in m."""
    index = mj_model.geom(geom).id
    extent = np.abs(data.geom_xmat[index].reshape(3, 3)) @ mj_model.geom_size[index]
    return float(data.geom_xpos[index][2] - extent[2])


def commanding(*numbers: float) -> dict[str, Any]:
    """A field of a snapshot: a command named `command`."""
    return {"commands": {"command": np.array(numbers, np.float32)}}
