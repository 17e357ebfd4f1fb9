import functools

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import observations
from ksim.physics import compile_model
from tests.support.contexts import biped, case, check_value, make_context, turned
from tests.support.robots import ACTUATORS, biped_spec

LEGS, FEET = ("left_leg", "right_leg"), ("left_foot", "right_foot")
DERIVED = ("cvel", "subtree_com", "xpos", "xquat", "site_xpos")
LEFT = {"orientation": turned("z", 90)}  # The base's forward is the world's y, and its left the world's -x.


def compile_biped(spec):
    return compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec])


def moving_left(*speeds):
    """Facing left, at these speeds along the world's x, which is the base's right."""
    return [LEFT | {"lin_vel_world": (speed, 0, 0)} for speed in speeds]


def rolling_left(*rates):
    return [LEFT | {"ang_vel_body": (rate, 0, 0)} for rate in rates]


# fmt: off
CASES = [
    case("gravity: down when upright", observations.ProjectedGravity(), [0, 0, -1], orientation=turned("z", 0)),
    case("gravity: a heading does not tilt it", observations.ProjectedGravity(), [0, 0, -1], **LEFT),
    # Nose down by 30 degrees: gravity pulls forward by sin 30.
    case("gravity: forward when nose down", observations.ProjectedGravity(), [0.5, 0, -np.sqrt(0.75)],
         orientation=turned("y", 30)),
    # On its right side: the base's left points up.
    case("gravity: to the right on the right side", observations.ProjectedGravity(), [0, -1, 0],
         orientation=turned("x", 90)),
    # What moves along the world's x, moves to the base's right.
    case("linear velocity: in the base's frame", observations.BaseLinearVelocity(), [0, -1, 0.5], **LEFT,
         lin_vel_world=(1, 0, 0.5)),
    case("linear velocity in the world: as MuJoCo stores it", observations.BaseLinearVelocityWorld(), [1, 2, 3], **LEFT,
         lin_vel_world=(1, 2, 3)),
    case("angular velocity: as MuJoCo stores it", observations.BaseAngularVelocity(), [1, 2, 3], **LEFT,
         ang_vel_body=(1, 2, 3)),
    case("angular velocity in the world: with turned axes", observations.BaseAngularVelocityWorld(), [-2, 1, 3], **LEFT,
         ang_vel_body=(1, 2, 3)),
    case("height: above the origin", observations.BaseHeight(), [0.42], height=0.42),
    case("position: from the origin", observations.BasePosition(), [1.5, -2, 0.4], ground_position=(1.5, -2),
         height=0.4, **LEFT),
    # cos 45 and, about z, sin 45
    case("orientation: w above zero", observations.BaseOrientation(), [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], **LEFT),
    case("orientation: w above zero for the negative too", observations.BaseOrientation(),
         [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], orientation=-turned("z", 90)),
    # (0.3 - 0.1) / 0.02 forward; at the reset and while the velocity stays, nothing.
    case("linear acceleration: the change per second", observations.BaseLinearAcceleration(),
         [[0, 0, 0], [10, 0, 0], [0, 0, 0]], episode=[{"lin_vel_world": (speed, 0, 0)} for speed in (0.1, 0.3, 0.3)]),
    # 0.2 / 0.02
    case("linear acceleration: in the base's frame", observations.BaseLinearAcceleration(), [[0, 0, 0], [0, -10, 0]],
         episode=moving_left(0, 0.2)),
    case("linear acceleration in the world: in its frame", observations.BaseLinearAccelerationWorld(),
         [[0, 0, 0], [10, 0, 0]], episode=moving_left(0, 0.2)),
    # (0.3 - 0.1) / 0.02 about the base's forward, which is the world's y.
    case("angular acceleration: in the base's frame", observations.BaseAngularAcceleration(),
         [[0, 0, 0], [10, 0, 0], [0, 0, 0]], episode=rolling_left(0.1, 0.3, 0.3)),
    case("angular acceleration in the world: in its frame", observations.BaseAngularAccelerationWorld(),
         [[0, 0, 0], [0, 10, 0], [0, 0, 0]], episode=rolling_left(0.1, 0.3, 0.3)),
    # (4 - 2) / 0.02
    case("joint acceleration: of named joints", observations.JointAcceleration(joints=("right_hip",)), [[0], [100]],
         episode=[{"joint_vel": (1, 2)}, {"joint_vel": (1, 4)}]),
    # 0.1 to the base's left is -0.1 along x.
    case("body position: in the order of the names, from the base",
         observations.BodyPosition(bodies=("right_leg", "left_leg")), [[0, -0.1, -0.2], [0, 0.1, -0.1]],
         ground_position=(1, 2), **LEFT, derived={"xpos": [[9, 9, 9], [1, 2, 0.5], [0.9, 2, 0.4], [1.1, 2, 0.3]]}),
    # Nose down by 90 degrees the base's forward points down: what is 0.2 below it is 0.2 in front.
    case("site position: from the base", observations.SitePosition(sites=("right_foot",)), [[0.2, 0, 0]],
         ground_position=(1, 2), orientation=turned("y", 90),
         derived={"site_xpos": [[9, 9, 9], [9, 9, 9], [1, 2, 0.3]]}),
    case("body orientation: in the order of the names", observations.BodyOrientation(bodies=("right_leg", "trunk")),
         [turned("x", 30), turned("x", 10)], derived={"xquat": [turned("x", degrees) for degrees in (0, 10, 20, 30)]}),
    case("body orientation: with one sign", observations.BodyOrientation(bodies=("trunk",)), [turned("x", 10)],
         derived={"xquat": -np.stack([turned("x", degrees) for degrees in (0, 10, 20, 30)])}),
    # Of the world, of the trunk and all it carries, and of the legs; 0.1 along the world's y is 0.1 forward.
    case("centre of mass: of the whole robot, from the base", observations.CenterOfMassPosition(), [0.1, 0, -0.1],
         ground_position=(1, 2), **LEFT, derived={"subtree_com": [[9, 9, 9], [1, 2.1, 0.4], [9, 9, 9], [9, 9, 9]]}),
    case("centre of mass's inertia: without the world", observations.CenterOfMassInertia(),
         np.arange(10, 40).reshape(3, 10), derived={"cinert": np.arange(40).reshape(4, 10)}),
    case("centre of mass's velocity: without the world", observations.CenterOfMassVelocity(),
         np.arange(6, 24).reshape(3, 6), derived={"cvel": np.arange(24).reshape(4, 6)}),
]
# fmt: on


@pytest.mark.parametrize(("term", "given", "expected"), CASES)
def test_value(term, given, expected):
    check_value(term, given, expected)


def test_body_and_site_position_when_mujoco_placed_them_are_those_of_the_mjcf_file():
    model = biped()
    data = mujoco.MjData(model.mj_model)
    data.qpos[:7] = [1, 2, 3, *turned("x", 40)]
    mujoco.mj_forward(model.mj_model, data)
    placed = {"xpos": data.xpos, "site_xpos": data.site_xpos}
    context = make_context(ground_position=(1, 2), height=3, orientation=turned("x", 40), derived=placed)
    # The leg hangs 0.1 m left of and below the trunk, the foot 0.35 m further down.
    leg_b3 = observations.BodyPosition(bodies=("left_leg",))(context)
    foot_s3 = observations.SitePosition(sites=("left_foot",))(context)
    np.testing.assert_allclose([leg_b3[0], foot_s3[0]], [[0, 0.1, -0.1], [0, 0.1, -0.45]], atol=1e-5)


@functools.cache
def moving():
    """MuJoCo's data of the biped amid a tumble, and a context that sees it."""
    motion = {
        "ground_position": (1, 2), "height": 3.0, "orientation": turned("y", 120), "lin_vel_world": (0.5, -1, 2),
        "ang_vel_body": (1, 2, -3), "joint_pos": (0.4, -0.2), "joint_vel": (2, -5),
    }  # fmt: skip
    physics = make_context(**motion).physics
    model = make_context().model.mj_model
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = physics.qpos, physics.qvel
    mujoco.mj_forward(model, data)
    return data, make_context(**motion, derived={name: getattr(data, name) for name in DERIVED})


def mujoco_velocity(kind, name):
    """Linear and angular velocity in the world frame, as MuJoCo itself tells."""
    data, context = moving()
    velocity_6 = np.zeros(6)
    index = context.model.names.index(kind, name)
    object_type = getattr(mujoco.mjtObj, {"body": "mjOBJ_XBODY", "site": "mjOBJ_SITE"}[kind])
    mujoco.mj_objectVelocity(context.model.mj_model, data, object_type, index, velocity_6, 0)
    return velocity_6[3:], velocity_6[:3]


def in_base_frame(vector_n3):
    data, context = moving()
    return vector_n3 @ data.xmat[context.model.names.index("body", "trunk")].reshape(3, 3)


@pytest.mark.parametrize(
    ("kind", "names", "world", "base", "which"),
    [
        ("body", LEGS, observations.BodyLinearVelocityWorld, observations.BodyLinearVelocity, 0),
        ("body", LEGS, observations.BodyAngularVelocityWorld, observations.BodyAngularVelocity, 1),
        ("site", FEET, observations.SiteLinearVelocityWorld, observations.SiteLinearVelocity, 0),
        ("site", FEET, observations.SiteAngularVelocityWorld, observations.SiteAngularVelocity, 1),
    ],
    ids=["body_linear", "body_angular", "site_linear", "site_angular"],
)
def test_body_and_site_velocities_when_all_moves_are_those_of_mujoco_in_the_frame_they_say(
    kind, names, world, base, which
):
    _, context = moving()
    expected_n3 = np.stack([mujoco_velocity(kind, name)[which] for name in names])
    np.testing.assert_allclose(world(names)(context), expected_n3, atol=1e-4)
    np.testing.assert_allclose(base(names)(context), in_base_frame(expected_n3), atol=1e-4)


def test_body_and_site_position_world_are_those_of_mujoco():
    data, context = moving()
    leg_b3 = observations.BodyPositionWorld(bodies=("left_leg",))(context)
    foot_s3 = observations.SitePositionWorld(sites=("left_foot",))(context)
    np.testing.assert_allclose(leg_b3[0], data.body("left_leg").xpos, rtol=1e-5)
    np.testing.assert_allclose(foot_s3[0], data.site("left_foot").xpos, rtol=1e-5)


def test_body_orientation_in_base_when_base_tumbles_is_the_joints_angle():
    # Hips turn about y, by 0.4 and by -0.2 rad: (cos 0.2, sin 0.2) and (cos 0.1, -sin 0.1).
    _, context = moving()
    orientation_b4 = observations.BodyOrientationInBase(bodies=LEGS)(context)
    expected_b4 = [[np.cos(0.2), 0, np.sin(0.2), 0], [np.cos(0.1), 0, -np.sin(0.1), 0]]
    np.testing.assert_allclose(orientation_b4, expected_b4, atol=1e-6)


@pytest.mark.parametrize(("degrees", "sign"), [(20, 1), (200, -1)])
def test_site_orientation_when_its_site_is_turned_in_its_body_is_both_turns_with_w_above_zero(degrees, sign):
    # A site turned by 20 degrees on a body turned by 30; in all 50. By 200: 230, whose w is negative.
    spec = biped_spec()
    spec.site("imu").quat = turned("x", degrees)
    model = compile_biped(spec)
    context = make_context(model=model, derived={"xquat": [turned("x", 30)] * 4})
    orientation_s4 = observations.SiteOrientation(sites=("imu",))(context)
    np.testing.assert_allclose(orientation_s4[0], sign * turned("x", 30 + degrees), atol=1e-6)


def test_center_of_mass_is_the_robots_without_the_furniture():
    spec = biped_spec()
    table = spec.worldbody.add_body(name="table", pos=[10, 0, 0])
    table.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.5, 0.5, 0.5], mass=100)
    positions = []
    for model in (compile_biped(biped_spec()), compile_biped(spec)):
        data = mujoco.MjData(model.mj_model)
        mujoco.mj_forward(model.mj_model, data)
        context = make_context(model=model, derived={"subtree_com": jnp.asarray(data.subtree_com, jnp.float32)})
        positions.append(observations.CenterOfMassPosition()(context))
    np.testing.assert_allclose(positions[0], positions[1], atol=1e-6)


@pytest.mark.parametrize(
    "term",
    [
        observations.BodyPosition(bodies=("left_lag",)), observations.BodyOrientation(bodies=("left_lag",)),
        observations.SitePosition(sites=("left_fot",)), observations.BodyLinearVelocity(bodies=("left_lag",)),
        observations.BodyOrientationInBase(bodies=("left_lag",)), observations.SiteLinearVelocity(sites=("left_fot",)),
        observations.SiteOrientation(sites=("left_fot",)),
    ],
    ids=lambda term: type(term).__name__,
)  # fmt: skip
def test_body_and_site_terms_when_name_is_unknown_name_the_near_misses(term):
    with pytest.raises(ConfigError, match=r"no (body 'left_lag'.*'left_leg'|site 'left_fot'.*'left_foot')"):
        term(moving()[1])
