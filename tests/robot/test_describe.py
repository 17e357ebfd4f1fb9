import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.robot.describe import base_to_free, grouped, look_at, wheels
from tests.support import urdf
from tests.support.model_files import CART_POLE, DOG, HOPPER


def test_legs_of_a_dog_are_found_and_named_by_where_they_are():
    found = look_at(mujoco.MjModel.from_xml_string(DOG))
    assert (found.kind, found.base, found.drive, found.imu) == ("legged", "trunk", "none", None)
    assert [leg.name for leg in found.legs] == ["FL", "FR", "RL", "RR"]
    assert found.legs[0].joints == ("FL_roll", "FL_pitch", "FL_knee")
    # The sphere at the end of the shin, not the shin.
    np.testing.assert_allclose(found.legs[0].pos, [0, 0, -0.2], atol=0.01)
    assert found.legs[0].body == "FL_shin"


def test_numbers_that_agree_on_all_sides_share_a_pattern():
    knees = {"left_knee": 2.0, "right_knee": -2.0}
    values = {"FL_hip": 1.0, "FR_hip": 1.02, **knees, "hip_1": 3.0, "hip_2": 3.0, "neck": 4.0}
    assert grouped(values, digits=2) == {"*_hip": 1.0, **knees, "hip_*": 3.0, "neck": 4.0}


AXES = ("1 0 0", "0 1 0", "0 0 1")


def moved_by(*joints):
    """A dog whose trunk moves by these joints, in place of a free joint."""
    return mujoco.MjSpec.from_string(DOG.replace("<freejoint/>", "".join(joints)))


SLIDES = [f'<joint name="{name}" type="slide" axis="{axis}"/>' for name, axis in zip("xyz", AXES, strict=True)]
HINGES = [f'<joint name="r{name}" axis="{axis}"/>' for name, axis in zip("xyz", AXES, strict=True)]


@pytest.mark.parametrize(
    ("spec", "base"),
    [
        (mujoco.MjSpec.from_string(DOG), None),
        (moved_by(*SLIDES, *HINGES), "trunk"),
        (moved_by(*SLIDES, '<joint name="r" type="ball"/>'), "trunk"),
        (moved_by(*SLIDES[:2], HINGES[1]), None),
        (moved_by(), "trunk"),
        (mujoco.MjSpec.from_string(urdf.DOG), "trunk"),
        (mujoco.MjSpec.from_string(urdf.ARM), None),
        (mujoco.MjSpec.from_string(CART_POLE), None),
    ],
    ids=["free", "slides and hinges", "slides and a ball", "in a plane", "fixed", "URDF", "arm", "cart-pole"],
)
def test_base_that_moves_freely_in_reality_is_found(spec, base):
    assert base_to_free(spec) == base


def test_wheels_are_feet_that_turn_about_their_middle():
    foot = '<geom type="sphere" size=".02" pos="0 0 -.2" mass=".05"/>'
    wheel = (
        '<body name="rim" pos="0 0 -.2"><joint name="wheel" limited="false"/><geom type="sphere" size=".03"/></body>'
    )
    model = mujoco.MjModel.from_xml_string(DOG.replace(foot, wheel, 1))
    assert [wheels(model, leg) for leg in look_at(model).legs] == [["wheel"], [], [], []]


def test_robot_in_a_plane_is_told_by_two_slides_and_a_hinge_that_nothing_drives():
    found = look_at(mujoco.MjModel.from_xml_string(HOPPER))
    assert (found.kind, found.plane, found.driven) == ("plane", ("x", "z", "y"), ("hip", "knee"))
    assert found.tip[0] == "trunk"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<joint name="y"/>', '<joint name="y" axis="1 0 0"/>'),
        ('type="slide" axis="0 0 1"', 'type="slide" axis="0 0 -1"'),
        ('<joint name="y"/>', ""),
        ("<actuator>", '<actuator><motor joint="x"/>'),
    ],
    ids=["rolls", "down", "upright", "driven"],
)
def test_robot_on_other_slides_is_an_error(old, new):
    with pytest.raises(ConfigError, match="not on a slide along, a slide up and a hinge across"):
        look_at(mujoco.MjModel.from_xml_string(HOPPER.replace(old, new)))
