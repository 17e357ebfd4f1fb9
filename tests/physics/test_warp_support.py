"""Models that MuJoCo Warp does not support, reported in terms of the MJCF file; and some that only MJX refuses."""

import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.physics.contact_sizes import ContactSizes
from ksim.physics.select import make_engine
from tests.physics.test_mjx_support import REFUSED_BY_BOTH, model_with

pytest.importorskip("warp")
pytestmark = pytest.mark.long


def engine_of(**parts):
    return make_engine("warp", model_with(**parts), sizes=ContactSizes(8, 32))


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [*REFUSED_BY_BOTH, ("option", '<option><flag sleep="enable"/></option>', '<flag sleep="enable"/>')],
)
def test_refusal_of_warp_names_what_to_edit(part, text, message):
    with pytest.raises(ConfigError, match=message) as error:
        engine_of(**{part: text})
    error.match("MuJoCo Warp cannot simulate the model.*engine=mujoco")
    assert "mjt" not in str(error.value)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("option", '<option integrator="implicitfast" density="1"><flag midphase="disable"/></option>'),
        ("actuator", '<adhesion body="arm" ctrlrange="0 1"/>'),
        ("actuator", '<dcmotor joint="hinge" resistance="1" motorconst="1"/>'),
        ("sensor", '<contact subtree1="arm" reduce="netforce"/>'),
        ("geom", 'type="box"'),
    ],
)
def test_warp_accepts_some_models_that_mjx_refuses(part, text):
    assert np.isfinite(engine_of(**{part: text}).model.start().qpos).all()
