"""Models that MJX does not support, reported in the terms of the MJCF file."""

import mujoco
import pytest

from ksim.errors import ConfigError
from ksim.physics import compile_model
from ksim.physics.select import make_engine

MODEL = """
<mujoco>
  {option}
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="cart">
      <freejoint/>
      <geom size=".1"/>
      <site name="tip"/>
      <site name="rail"/>
      <body name="arm"><joint name="hinge" range="-1 1" {joint}/><geom {geom} size=".1 .1 .1"/></body>
      <body name="ball"><joint name="ball" type="ball"/><geom name="ball" size=".1"/></body>
    </body>
    <body name="roller"><freejoint/><geom name="roll" type="cylinder" size=".1 .1"/></body>
  </worldbody>
  <actuator>{actuator}</actuator>
  <sensor>{sensor}</sensor>
  <tendon>{tendon}</tendon>
  <contact>{pair}</contact>
</mujoco>
"""
OF_HINGE = '<joint joint="hinge" coef="1"/>'
HINGE = r"actuator 0 \(unnamed, drives joint 'hinge'\)"


def model_with(**parts):
    return compile_model(mujoco.MjSpec.from_string(text_with(**parts)), dt=0.01, ctrl_dt=0.01)


def text_with(**parts):
    return MODEL.format(
        **dict.fromkeys(("option", "geom", "joint", "actuator", "sensor", "tendon", "pair"), "") | parts
    )


def refusal(**parts):
    model = model_with(**parts)
    with pytest.raises(ConfigError) as error:
        make_engine("mjx", model)
    return error


REFUSED_BY_BOTH = (
    ("option", '<option><flag energy="enable"/></option>', '<flag energy="enable"/> in <option> .* take it out'),
    ("option", '<option integrator="implicit"/>', '<option integrator="implicit"> .* write implicitfast'),
    ("option", '<option solver="PGS"/>', '<option solver="PGS"> .* write Newton'),
    ("option", '<option actuatorgroupdisable="1"/>', 'actuatorgroupdisable="..."> would be ignored'),
    ("actuator", '<orientation joint="ball" kp="1"/>', "drives joint 'ball'.*biastype=\"so3\".*<orientation>"),
    ("actuator", '<pid joint="hinge" kp="1"/>', f'{HINGE} has gaintype="pid"; write a <motor>'),
    ("actuator", '<motor joint="hinge" armature=".1"/>', f'{HINGE} has armature="...", .*give it to the joint'),
)
"""Refusals of MJX and MuJoCo Warp alike: a part of the model, its text, and a pattern of the message."""


@pytest.mark.parametrize(
    ("part", "text", "message"),
    [
        *REFUSED_BY_BOTH,
        ("option", '<option><flag fwdinv="enable"/></option>', '<flag fwdinv="enable"/>'),
        ("option", '<option><flag override="enable"/></option>', '<flag override="enable"/>'),
        ("option", '<option integrator="implicitfast" density="1"/>', 'integrator="implicitfast".*density'),
        ("actuator", '<adhesion body="arm" ctrlrange="0 1"/>',
         r"actuator 0 \(unnamed, drives body 'arm'\).*<adhesion>"),
        ("actuator", '<motor name="crank" cranksite="tip" slidersite="rail" cranklength="1"/>',
         "actuator 'crank' drives a slider-crank .cranksite=\"...\""),
        ("actuator", '<dcmotor joint="hinge" resistance="1" motorconst="1"/>', f'{HINGE} has dyntype="dcmotor"'),
        ("actuator", '<motor joint="hinge" damping="0 1"/>', f'{HINGE} has damping="..."'),
        ("actuator", '<general joint="hinge" dyntype="filter" actearly="true"/>', f'{HINGE} has actearly="..."'),
        ("sensor", '<jointlimitpos joint="hinge"/>', r"sensor 0 \(unnamed\) is a <jointlimitpos>.*take it out"),
        ("sensor", '<distance name="gap" geom1="floor" body2="arm"/>', "sensor 'gap' is a <distance>"),
        ("sensor", '<contact geom1="floor" reduce="netforce"/>', '<contact> with reduce="netforce"; write'),
        ("sensor", '<contact body1="arm"/>', "<contact> that matches by body1"),
        ("sensor", '<contact subtree1="arm"/>', "<contact> that matches by .*subtree1"),
        ("sensor", '<framelinacc name="imu" objtype="site" objname="tip" cutoff="1"/>', "sensor 'imu' has cutoff="),
        ("joint", 'damping="1 2"', r"joint 'hinge' has damping=\"...\" of several numbers, .*; write one"),
        ("joint", 'stiffness="1 2 3"', "joint 'hinge' has stiffness="),
        ("tendon", f'<fixed name="cord" stiffness="1 2">{OF_HINGE}</fixed>', "tendon 'cord' has stiffness="),
        ("tendon", f'<fixed name="cord" damping="1 2">{OF_HINGE}</fixed>', "tendon 'cord' has damping="),
        ("geom", 'name="hand" adhesion="1"', "geom 'hand' has adhesion=\"...\", .*; take it out"),
        ("geom", 'name="hand" surfacevel="1 0 0 0 0 0"', "geom 'hand' has surfacevel="),
        ("pair", '<pair name="both" geom1="floor" geom2="ball" adhesion="1"/>', "pair 'both' has adhesion="),
        ("option", '<option><flag damper="disable"/></option>', '<flag damper="disable"/> .* every passive force'),
        ("option", '<option noslip_iterations="3"/>', 'noslip_iterations="..."> would be ignored'),
        ("geom", 'type="box"', r"geom 'roll'; type=\"box\": geom 2 \(unnamed, of body 'arm'\)\).*contype"),
    ],
)  # fmt: skip
def test_refusal_of_mjx_names_what_to_edit(part, text, message):
    error = refusal(**{part: text})
    error.match(message)
    error.match("engine=mujoco")
    assert "mjt" not in str(error.value)


def test_shape_in_a_fluid_is_refused_as_mjx_would_leave_it_out():
    shape = 'name="hand" fluidshape="ellipsoid"'
    refusal(option='<option integrator="Euler" density="1"/>', geom=shape).match("geom 'hand' has fluidshape=")
    make_engine("mjx", model_with(option='<option integrator="Euler"/>', geom=shape))


def test_refusal_of_mjx_lists_all_at_once():
    error = refusal(
        option='<option solver="PGS"><flag energy="enable"/></option>', actuator='<pid joint="hinge" kp="1"/>' * 9
    )
    error.match(r'(?s)solver="PGS".*energy="enable".*actuator 5 .*3 more')


def test_plugin_is_refused_as_mjx_would_leave_it_out():
    extension = '<extension><plugin plugin="mujoco.pid"/></extension>'
    servo = '<plugin plugin="mujoco.pid" joint="hinge"><config key="kp" value="4"/></plugin>'
    refusal(option=extension, actuator=servo).match(f"{HINGE} has a <plugin>, which would be ignored; take it out")


def test_touch_sensor_of_what_cannot_touch_is_an_error_that_names_it():
    spec = mujoco.MjSpec.from_string(text_with(sensor='<touch name="sole" site="tip"/>'))
    for geom in spec.geoms:
        geom.contype = geom.conaffinity = 0
    with pytest.raises(ConfigError, match=r"sensor 'sole' is a <touch>, but no two geoms can collide"):
        make_engine("mjx", compile_model(spec, dt=0.01, ctrl_dt=0.01))
