import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim import ConfigError
from ksim.errors import near_misses
from ksim.physics import ModelActuators, PositionActuators, TorqueActuators, compile_model, load_spec
from ksim.physics.actuators import per_joint
from ksim.physics.names import base_height_of
from ksim.physics.rotations import heading_frame, multiply_quaternions, rotate, rotate_inverse, yaw_of
from ksim.robot.describe import look_at
from tests.support.robots import ACTUATORS, BIPED, biped_model, biped_spec


def test_joint_places_skip_the_free_joint():
    names = biped_model().names
    assert names.joints == ["left_hip", "right_hip"]
    np.testing.assert_array_equal(names.joint_qpos(["right_hip"]), [8])
    np.testing.assert_array_equal(names.joint_qvel(["right_hip"]), [7])


@pytest.mark.parametrize("kind", ["joint", "body", "site", "geom", "sensor", "actuator"])
def test_unknown_name_is_an_error_that_lists_the_near_misses(kind):
    near = {"body": "left_leg", "site": "left_foot", "geom": "left_foot", "sensor": "left_touch"}.get(kind, "left_hip")
    with pytest.raises(ConfigError, match=rf"no {kind} '{near}x'.*'{near}'"):
        biped_model().names.index(kind, near + "x")


def of_text(text):
    return compile_model(mujoco.MjSpec.from_string(text), dt=0.01, ctrl_dt=0.01)


def without_range(actuators, joint):
    """The biped with these actuators, one of them without a control range."""
    spec = biped_spec()
    spec.actuators[joint].ctrllimited = False
    return compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[actuators.edit_spec])


ERRORS = {
    "a name like none: the names that are not empty": (lambda _: biped_model().names.index("geom", "zzz"),
        r"no geom 'zzz'\. Known names: floor, left_foot, right_foot, trunk"),
    "a free joint as a hinge": (lambda _: biped_model().names.joint_qpos(["root"]), r"'root' must be a hinge or slide"),
    "a base where there is none": (
        lambda _: of_text(
            "<mujoco><worldbody><body><joint name='j'/><geom size='1'/></body></worldbody></mujoco>"
        ).names.free_joint(),
        r"no free joint.* Add <freejoint/>",
    ),
    "steps that do not fit": (lambda _: compile_model(biped_spec(), dt=0.004, ctrl_dt=0.01), "multiple.*0.008"),
    "no step": (lambda _: compile_model(biped_spec(), dt=0.0, ctrl_dt=0.02), "positive"),
    "a control step below that of physics": (lambda _: compile_model(biped_spec(), dt=0.02, ctrl_dt=0.004), "0.02"),
    "a robot file that is missing": (lambda path: load_spec(path / "nowhere.xml"), "does not exist"),
    "a robot file that is broken": (lambda path: load_spec(path / "broken.xml"), "cannot read"),
    "the model's actuators without a control range": (
        lambda _: ModelActuators()(jnp.zeros(2), without_range(ModelActuators(), 1)),
        r"'right_hip' must be a position servo or have a control range"),
    "torque actuators without a control range": (lambda _: without_range(TorqueActuators(), 0),
        r"'left_hip' must have a torque limit"),
    "a pattern that matches nothing": (lambda _: per_joint({"*_knee": 1.0, "*": 2.0}, ["left_hip", "right_hip"], "kp"),
        r"'\*_knee' of kp matches no joint"),
    "a joint that no pattern matches": (lambda _: PositionActuators(kp=1.0, kd={"left_*": 1.0}).edit_spec(biped_spec()),
        r"No pattern of kd matches joint 'right_hip'"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS.values(), ids=ERRORS)
def test_is_an_error(make, message, tmp_path):
    (tmp_path / "broken.xml").write_text("<mujoco><worldbody><nonsense/></worldbody></mujoco>")
    with pytest.raises(ConfigError, match=message):
        make(tmp_path)


def test_patterns_are_tried_in_order_and_near_misses_are_no_empty_names():
    np.testing.assert_array_equal(per_joint({"left_*": 1.0, "*": 2.0}, ["left_hip", "right_hip"], "kp"), [1.0, 2.0])
    assert near_misses("hip", ["", "torso"]) == "Known names: torso."


def test_name_that_is_nearly_the_same_is_suggested_alone():
    known = ["max_iterations", "save_every_n_iterations", "activation"]
    assert near_misses("max_iteration", known) == "Did you mean 'max_iterations'?"
    assert near_misses("left", ["left_hip", "left_leg"]) == "Did you mean 'left_hip' or 'left_leg'?"


BALL = '<body name="ball" pos="1 0 .1"><freejoint/><geom size=".1" mass="1"/></body>'
CHAIN = "".join(f'<body name="link_{i}"><joint/><geom size=".1"/>' for i in range(4)) + "</body>" * 4


def beside(*bodies: str) -> mujoco.MjSpec:
    """The biped with other bodies before it in the file."""
    return mujoco.MjSpec.from_string(BIPED.replace("<worldbody>", f"<worldbody>{''.join(bodies)}"))


@pytest.mark.parametrize("bodies", [(BALL,), (BALL, CHAIN), (CHAIN,)])
def test_base_when_other_things_move_is_that_of_the_tree_with_the_driven_joints(bodies):
    model = compile_model(beside(*bodies), dt=0.004, ctrl_dt=0.02)
    assert model.mj_model.body(model.names.base_body()).name == "trunk"
    start, _ = model.names.free_joint()
    assert start == 7 * (BALL in bodies) + 4 * (CHAIN in bodies)
    assert base_height_of(model.mj_model, model.default_qpos) == 0.5  # the ball's is 0.1
    assert look_at(model.mj_model).base == "trunk"


def test_base_when_the_driven_tree_is_fixed_to_the_world_is_none():
    spec = mujoco.MjSpec.from_string(f"<mujoco><worldbody>{BALL}{CHAIN}</worldbody></mujoco>")
    for joint in spec.joints:
        joint.name = joint.parent.name
    spec.add_actuator(name="m", target="link_3", trntype=mujoco.mjtTrn.mjTRN_JOINT)
    assert not compile_model(spec, dt=0.01, ctrl_dt=0.01).names.has_base


def test_base_when_two_trees_may_be_the_robot_is_the_one_that_is_named_or_an_error():
    balls = BALL + BALL.replace("ball", "other")
    text = "<custom><text name='robot' data='{}'/></custom>"
    make = lambda named: of_text(f"<mujoco><worldbody>{balls}</worldbody>{named}</mujoco>")
    with pytest.raises(ConfigError, match=r"body 'ball' and body 'other' have 0 driven .* Say which"):
        make("").names.free_joint()
    assert make(text.format("other")).names.free_joint() == (7, 6)
    with pytest.raises(ConfigError, match=r"no moving body 'othe'.*'other'"):
        make(text.format("othe")).names.free_joint()


def test_position_actuators_hold_the_default_pose_and_stay_within_limits():
    model = biped_model()
    # 1 unit of action moves the target by 0.5 rad; the joints' limit is pi/3.
    np.testing.assert_allclose(ACTUATORS(jnp.array([1.0, 0.0]), model), [0.5, 0.0], rtol=1e-6)
    np.testing.assert_allclose(ACTUATORS(jnp.array([9.0, -9.0]), model), [np.pi / 3, -np.pi / 3], rtol=1e-6)


def test_position_actuators_keep_the_motors_torque_limit():
    model = biped_model().mj_model
    np.testing.assert_array_equal(model.actuator_forcerange, [[-20, 20]] * 2)
    data = mujoco.MjData(model)
    data.ctrl = [1.0, 0.1]
    mujoco.mj_forward(model, data)
    # kp * error: 40 * 1 = 40 is cut to 20; 40 * 0.1 = 4 is not.
    np.testing.assert_allclose(data.actuator_force, [20.0, 4.0])


def test_gear_gain_and_dynamics_keep_the_torque_limit_at_the_joint():
    spec = biped_spec()
    left, right = spec.actuators
    left.gear[0], left.forcelimited, left.forcerange = 10.0, True, [-1.0, 1.0]  # 10 N m at the joint
    right.gainprm[0], right.ctrlrange = 5.0, [-1.0, 1.0]  # 5 N m
    right.dyntype, right.dynprm[0] = mujoco.mjtDyn.mjDYN_FILTER, 0.5
    for actuators in (ACTUATORS, TorqueActuators()):
        model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[actuators.edit_spec]).mj_model
        data = mujoco.MjData(model)
        data.ctrl = [100.0, 100.0]
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(data.qfrc_actuator[6:], [10.0, 5.0])
        assert model.na == 0


def test_joints_without_a_name_count_among_all_joints():
    spec = biped_spec()
    spec.joint("right_hip").name = ""
    spec.delete(spec.actuators[1])
    names = compile_model(spec, dt=0.004, ctrl_dt=0.02).names
    np.testing.assert_array_equal(names.joint_qpos(), [7, 8])


def test_torque_actuators_spend_the_control_range():
    model = compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, edits=[TorqueActuators().edit_spec])
    np.testing.assert_allclose(TorqueActuators(action_scale=0.5)(jnp.array([1.0, -4.0]), model), [10.0, -20.0])


def test_torque_actuators_turn_servos_into_motors_with_the_same_limit():
    edits = [ACTUATORS.edit_spec, TorqueActuators().edit_spec]
    model = compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, edits=edits)
    data = mujoco.MjData(model.mj_model)
    data.ctrl = TorqueActuators()(jnp.array([0.5, -1.0]), model)
    mujoco.mj_forward(model.mj_model, data)
    np.testing.assert_allclose(data.actuator_force, [10.0, -20.0])


def test_model_actuators_drive_motors_within_their_range_and_servos_around_the_default_pose():
    motors = compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, edits=[ModelActuators().edit_spec])
    np.testing.assert_allclose(ModelActuators()(jnp.array([0.5, -2.0]), motors), [10.0, -20.0])
    servos = biped_model()
    np.testing.assert_allclose(ModelActuators(action_scale=0.3)(jnp.array([1.0, -2.0]), servos), [0.3, -0.6], rtol=1e-6)


def test_rotations_agree_with_mujoco():
    a, b = (q / jnp.linalg.norm(q) for q in jax.random.normal(jax.random.key(0), (2, 4)))
    vector, product = np.zeros(3), np.zeros(4)
    mujoco.mju_rotVecQuat(vector, np.array([1.0, 2.0, 3.0]), np.asarray(a, float))
    mujoco.mju_mulQuat(product, np.asarray(a, float), np.asarray(b, float))
    np.testing.assert_allclose(rotate(jnp.array([1.0, 2.0, 3.0]), a), vector, rtol=1e-5)
    np.testing.assert_allclose(rotate_inverse(rotate(jnp.array([1.0, 2.0, 3.0]), a), a), [1.0, 2.0, 3.0], rtol=1e-5)
    np.testing.assert_allclose(multiply_quaternions(a, b), product, rtol=1e-5)


def test_heading_frame_of_a_body_turned_left_sees_the_worlds_y_as_forward():
    quarter_left = jnp.array([np.cos(np.pi / 4), 0.0, 0.0, np.sin(np.pi / 4)])
    np.testing.assert_allclose(yaw_of(quarter_left), np.pi / 2, rtol=1e-6)
    np.testing.assert_allclose(heading_frame(quarter_left, jnp.array([0.0, 1.0, 2.0])), [1.0, 0.0, 2.0], atol=1e-6)
