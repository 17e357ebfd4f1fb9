import mujoco
import numpy as np

from ksim.robot.describe import grouped, look_at
from tests.support.model_files import DOG


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
