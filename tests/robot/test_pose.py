import mujoco
import numpy as np
import pytest

import ksim
from ksim import robot
from ksim.robot.describe import Leg, look_at
from ksim.robot.pose import BENT_LEGS, STAYS_UP, bent_pose, find_stance, height_of, on_ground, settle
from tests.support.model_files import DOG


def dog_with_servos(kp, key="", level=0.0):
    spec = mujoco.MjSpec.from_string(DOG.replace("</mujoco>", f"{key}</mujoco>"))
    robot.add_ground(spec, level)
    robot.touch_ground_only(spec)
    robot.use_implicitfast(spec)
    for joint in spec.joints[1:]:
        servo = spec.add_actuator(name=joint.name, target=joint.name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        servo.set_to_position(kp=kp, kv=kp / 20)
    return spec.compile()


def held(model, qpos):
    """The targets of servos that hold a pose."""
    return np.array([qpos[model.joint(i).qposadr[0]] for i in model.actuator_trnid[:, 0]])


@pytest.mark.parametrize(("kp", "stands"), [(200.0, True), (4.0, False)])
def test_pose_stands_only_where_it_settles_near_its_height(kp, stands):
    model = dog_with_servos(kp)
    legs = look_at(model).legs
    qpos = on_ground(model, "trunk", bent_pose(model, "trunk", legs, 0.76))
    settled, upright_s, is_standing = settle(model, held(model, qpos), qpos, "trunk", legs, is_helped=False)
    assert (is_standing, settled[2] > STAYS_UP * qpos[2]) == (stands, stands)
    assert upright_s > 2.9  # soft servos let it down upright, on its feet


def test_heights_are_above_the_floor_wherever_it_is():
    heights = []
    for level in (0.0, -0.5):
        model = dog_with_servos(200.0, level=level)
        legs = look_at(model).legs
        qpos = on_ground(model, "trunk", bent_pose(model, "trunk", legs, 0.76))
        settled, _, is_standing = settle(model, held(model, qpos), qpos, "trunk", legs, is_helped=False)
        assert is_standing
        heights.append([height_of(model, x) for x in (qpos, settled)])
        assert qpos[2] == pytest.approx(level + heights[-1][0])
    np.testing.assert_allclose(*heights, atol=1e-3)


def test_leg_of_ball_joints_alone_is_refused():
    legs = (Leg("left", (), "trunk", np.zeros(3), np.full(3, 0.1), is_flat=False),)
    with pytest.raises(ksim.ConfigError, match="leg of 'trunk' has no hinge or slide joint, which a leg needs"):
        bent_pose(dog_with_servos(200.0), "trunk", legs, 0.76)


def test_keyframe_of_a_robot_that_lies_is_not_the_pose_to_walk_in():
    lying = f'<keyframe><key name="lying" qpos="0 0 .1 1 0 0 0 {"0 1.5 -2.4 " * 4}"/></keyframe>'
    model = dog_with_servos(200.0, lying)
    found = look_at(model)
    stance = find_stance(model, "trunk", found.legs, found.joints, lambda qpos: (model, held(model, qpos)))
    assert stance.crouches == ("keyframe 'lying'",)
    assert stance.stands
    assert stance.source == BENT_LEGS
