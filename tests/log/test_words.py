import pytest

from ksim.log.logger import error_labels, quantity_and_unit


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("error/velocity/lin_vel_m_s", ("velocity", "m/s")),
        ("error/velocity/yaw_rate_rad_s", ("yaw rate", "rad/s")),
        ("error/arm/joint_position_rad", ("joint position", "rad")),
        ("error/hand/position_m", ("position", "m")),
        ("error/mine/share", ("share", "")),
    ],
)
def test_quantities_and_units_of_errors(name, words):
    assert quantity_and_unit(name) == words


def test_errors_of_two_commands_are_told_apart():
    words = error_labels(["error/left/position_m", "error/right/position_m", "error/velocity/lin_vel_m_s"])
    assert list(words.values()) == ["position error (left), m", "position error (right), m", "velocity error, m/s"]
