"""Pictures of randomizers: the distribution of what each draws, beside the model's own value."""

from typing import Any

import jax.numpy as jnp

from docs.site.pictures.panels import Draw, histogram
from docs.site.pictures.robot import model
from ksim.mdp import randomizers

_MODEL = model().mj_model
_TRUNK, _KNEE = model().names.index("body", "trunk"), int(model().names.joint_qvel(("left_knee",))[0])
_KNEE_JOINT = int(_MODEL.dof_jntid[_KNEE])
_KNEE_SERVO = model().names.actuator_joints().index("left_knee")
_IMU = model().names.index("site", "imu")
_HIP = int(model().names.joint_qvel(("left_hip",))[0])


def _angle(quaternion_4: Any) -> Any:
    """The angle of a turn, in rad."""
    return 2 * jnp.arctan2(jnp.linalg.norm(quaternion_4[1:]), quaternion_4[0])


PICTURES: dict[type, Draw] = {
    randomizers.RandomBodyMass: histogram(
        randomizers.RandomBodyMass("trunk"),
        lambda o: o["body_mass"][_TRUNK],
        "mass of the trunk, kg",
        _MODEL.body_mass[_TRUNK],
    ),
    randomizers.RandomMassFactor: histogram(
        randomizers.RandomMassFactor(("trunk",)),
        lambda o: o["body_mass"][_TRUNK],
        "mass of the trunk, kg",
        _MODEL.body_mass[_TRUNK],
    ),
    randomizers.RandomInertia: histogram(
        randomizers.RandomInertia("trunk"),
        lambda o: o["body_inertia"][_TRUNK, 0],
        "largest moment of inertia of the trunk, kg m²",
        _MODEL.body_inertia[_TRUNK, 0],
    ),
    randomizers.RandomCenterOfMass: histogram(
        randomizers.RandomCenterOfMass("trunk"),
        lambda o: o["body_ipos"][_TRUNK, 0],
        "centre of mass of the trunk along x, m",
        _MODEL.body_ipos[_TRUNK, 0],
    ),
    randomizers.RandomArmature: histogram(
        randomizers.RandomArmature(),
        lambda o: o["dof_armature"][_KNEE],
        "armature of the knee, kg m²",
        _MODEL.dof_armature[_KNEE],
    ),
    randomizers.RandomDamping: histogram(
        randomizers.RandomDamping(),
        lambda o: o["dof_damping"][_KNEE],
        "damping of the knee, N m s/rad",
        _MODEL.dof_damping[_KNEE],
    ),
    randomizers.RandomJointFriction: histogram(
        randomizers.RandomJointFriction(),
        lambda o: o["dof_frictionloss"][_KNEE],
        "dry friction of the knee, N m",
        _MODEL.dof_frictionloss[_KNEE],
    ),
    randomizers.RandomJointStiffness: histogram(
        randomizers.RandomJointStiffness(),
        lambda o: o["jnt_stiffness"][_MODEL.dof_jntid[_HIP]],
        "stiffness of the hip's spring, N m/rad",
        _MODEL.jnt_stiffness[_MODEL.dof_jntid[_HIP]],
    ),
    randomizers.RandomJointZero: histogram(
        randomizers.RandomJointZero(),
        lambda o: o["jnt_range"][_KNEE_JOINT, 0],
        "reading at the knee's lower limit, rad",
        _MODEL.jnt_range[_KNEE_JOINT, 0],
    ),
    randomizers.RandomActuatorGains: histogram(
        randomizers.RandomActuatorGains(),
        lambda o: o["actuator_gainprm"][_KNEE_SERVO, 0],
        "kp of the knee, N m/rad",
        _MODEL.actuator_gainprm[_KNEE_SERVO, 0],
    ),
    randomizers.RandomMotorStrength: histogram(
        randomizers.RandomMotorStrength(),
        lambda o: o["actuator_forcerange"][_KNEE_SERVO, 1],
        "largest torque of the knee, N m",
        _MODEL.actuator_forcerange[_KNEE_SERVO, 1],
    ),
    randomizers.RandomFriction: histogram(
        randomizers.RandomFriction(), lambda o: o["geom_friction"][0, 0], "sliding friction", _MODEL.geom_friction[0, 0]
    ),
    randomizers.RandomGravity: histogram(
        randomizers.RandomGravity(), lambda o: o["opt.gravity"][2], "gravity along z, m/s²", _MODEL.opt.gravity[2]
    ),
    randomizers.RandomImuAlignment: histogram(
        randomizers.RandomImuAlignment("imu"),
        lambda o: _angle(o["site_quat"][_IMU]),
        "angle by which the IMU is turned, rad",
        0.0,
    ),
}
