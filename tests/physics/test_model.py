"""Models as MuJoCo compiles them."""

import mujoco
import pytest

from ksim import ConfigError
from ksim.physics import compile_model
from tests.support.robots import BIPED


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ('<gyro name="gyro"', '<gyro name="gyro" delay=".01" nsample="4"', "sensor 'gyro'"),
        ('<motor name="left_hip"', '<motor name="left_hip" delay=".01" nsample="4"', "actuator 'left_hip'"),
    ],
)
def test_delays_of_the_mjcf_file_are_refused_as_simulations_would_share_them(old, new, name):
    spec = mujoco.MjSpec.from_string(BIPED.replace(old, new))
    with pytest.raises(ConfigError, match=rf"built-in delays, at {name}, .*Delayed, actions by ActionLatency"):
        compile_model(spec, dt=0.004, ctrl_dt=0.02)
