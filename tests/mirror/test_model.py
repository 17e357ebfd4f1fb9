"""The mirror image of a model: joints, states, controls, and motions."""

import dataclasses

import mujoco
import numpy as np
import pytest

from examples.robots import HUMANOID, QUADRUPED
from ksim.errors import ConfigError
from ksim.mirror import SignedPermutation, mirror_model, mirror_robot
from ksim.mirror.model import mirrored_dynamics_gap
from ksim.physics import PositionActuators, compile_model, load_spec
from tests.support.robots import BIPED, biped_model

ROLLING = BIPED.replace('name="left_hip" axis="0 1 0"', 'name="left_hip" axis="1 0 0"').replace(
    'name="right_hip" axis="0 1 0"', 'name="right_hip" axis="1 0 0"'
)


def model_of(text):
    return compile_model(mujoco.MjSpec.from_string(text), dt=0.004, ctrl_dt=0.02)


def test_joints_that_pitch_turn_the_same_way_as_their_images():
    assert mirror_model(biped_model()).pairs == (("left_hip", "right_hip", 1), ("right_hip", "left_hip", 1))


def test_joints_that_roll_turn_the_other_way():
    # A leg that turns about x by q moves to the left; its image moves to the right.
    assert mirror_model(model_of(ROLLING)).pairs[0] == ("left_hip", "right_hip", -1)


def test_state_of_a_base_is_reflected_across_the_plane_through_x_and_z():
    mirror = mirror_model(biped_model())
    # Position (1, 2, 3); turned by q = (w, x, y, z); hips 0.1 and 0.2.
    qpos = np.array([1, 2, 3, 0.5, 0.1, 0.2, 0.3, 0.1, 0.2])
    np.testing.assert_allclose(mirror.qpos(qpos), [1, -2, 3, 0.5, -0.1, 0.2, -0.3, 0.2, 0.1])
    # Velocity is a vector, angular velocity an axis: what rolls right rolls left, what pitches pitches.
    np.testing.assert_allclose(mirror.qvel(np.arange(1.0, 9.0)), [1, -2, 3, -4, 5, -6, 8, 7])
    np.testing.assert_allclose(mirror.ctrl(np.array([3.0, 4.0])), [4, 3])


@pytest.mark.parametrize("path", [HUMANOID, QUADRUPED])
def test_mirrored_motions_of_the_examples_are_motions(path):
    model = compile_model(load_spec(path), dt=0.005, ctrl_dt=0.02)
    mirror = mirror_model(model)
    for image in (mirror.qpos, mirror.qvel, mirror.act, mirror.ctrl):
        assert image.is_involution
    assert mirrored_dynamics_gap(model, mirror) < 1e-6


def test_wrong_image_does_not_move_as_the_robot_does():
    model = biped_model()
    mirror = mirror_model(model)
    unchanged = SignedPermutation.of([0, 1], [1, 1])
    assert mirrored_dynamics_gap(model, mirror) < 1e-6
    assert mirrored_dynamics_gap(model, dataclasses.replace(mirror, ctrl=unchanged)) > 0.05


def with_infinite_pose():
    model = biped_model()
    model.default_qpos = np.where(np.arange(9) == 8, np.nan, model.default_qpos)
    return model


KEY = '<keyframe><key name="home" qpos="0 0 .5 1 0 0 0 .3 -.3"/></keyframe></mujoco>'
RIGHT = '<motor name="right_hip" joint="right_hip" ctrlrange="-20 20"/>'
ERRORS = {
    "joint without an image": (
        lambda: model_of(BIPED.replace('name="left_leg" pos="0 .1 -.1"', 'name="left_leg" pos="0 .2 -.1"')),
        r"joint 'left_hip' has no mirror image: .* 'right_hip'.*symmetry=off"),
    "actuator without an image": (lambda: model_of(BIPED.replace(RIGHT, "")),
        r"actuator 'left_hip' has no mirror image: nothing alike drives .*right_hip"),
    "default pose that is not its own image": (lambda: model_of(BIPED.replace("</mujoco>", KEY)),
        r"default pose is not its own mirror image: joint 'left_hip' is off by 0.6"),
    "default pose that is not finite": (with_infinite_pose,
        r"default pose is not its own mirror image: joint '.*_hip' is off by nan"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS.values(), ids=ERRORS)
def test_without_an_image_is_an_error_that_names_it(make, message):
    with pytest.raises(ConfigError, match=message):
        mirror_model(make())


def test_image_of_servos_is_that_of_their_joints():
    spec = mujoco.MjSpec.from_string(ROLLING)
    actuators = PositionActuators(kp=40.0, kd=2.0)
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[actuators.edit_spec])
    mirror = mirror_model(model)
    np.testing.assert_allclose(mirror.ctrl(np.array([0.3, -0.2])), [0.2, -0.3])
    assert mirrored_dynamics_gap(model, mirror) < 1e-6


# Controls are a tenth of their range; MuJoCo starts anew from 1e10 N m, and from 1e10 rad/s^2 at 0.15 kg m^2.
@pytest.mark.parametrize("limit", ["1e12", "9e10"])
def test_robot_that_flies_apart_is_an_error_and_not_a_mirror_that_is_off_by_nan(limit):
    model = model_of(BIPED.replace("-20 20", f"-{limit} {limit}"))
    assert np.isnan(mirrored_dynamics_gap(model, mirror_model(model)))
    with pytest.raises(ConfigError, match=r"does not stay finite for 0.05 s .* dt=0.004 s"):
        mirror_robot(model, lambda action: action, 2)
