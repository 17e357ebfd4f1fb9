"""Robot files of which programs are written, for tests, and the writing."""

import copy
import functools
import runpy
from pathlib import Path
from unittest import mock

from ksim.tools import new

LEG = """
<body name="{name}_hip" pos="{x} {y} 0">
  <joint name="{name}_roll" axis="1 0 0" range="-40 40"/>
  <geom type="sphere" size=".03" mass=".2"/>
  <body name="{name}_thigh">
    <joint name="{name}_pitch" range="-90 90"/>
    <geom fromto="0 0 0 0 0 -.2" mass=".3"/>
    <body name="{name}_shin" pos="0 0 -.2">
      <joint name="{name}_knee" range="-140 -20"/>
      <geom fromto="0 0 0 0 0 -.18" mass=".1"/> <geom type="sphere" size=".02" pos="0 0 -.2" mass=".05"/>
    </body>
  </body>
</body>"""
# Without actuators, sensors, floor, light or keyframe; feet are geoms without a name.
DOG = f"""
<mujoco>
  <default><joint axis="0 1 0" armature=".005" damping=".1"/><geom type="capsule" size=".015"/></default>
  <worldbody>
    <body name="trunk" pos="0 0 .5">
      <freejoint/>
      <geom type="box" size=".2 .08 .04" mass="6"/>
      {LEG.format(name="FL", x=0.18, y=0.1)} {LEG.format(name="FR", x=0.18, y=-0.1)}
      {LEG.format(name="RL", x=-0.18, y=0.1)} {LEG.format(name="RR", x=-0.18, y=-0.1)}
    </body>
  </worldbody>
</mujoco>"""
CART_POLE = """
<mujoco>
  <worldbody>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" range="-1 1"/>
      <geom type="box" size=".1 .1 .05" mass="1"/>
      <body name="pole">
        <joint name="pole" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 .5" size=".02" mass=".1"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" ctrlrange="-1 1" gear="10"/></actuator>
</mujoco>"""
ARM = """
<mujoco>
  <worldbody>
    <body name="upper" pos="0 0 .3">
      <joint name="yaw" axis="0 0 1" range="-120 120"/> <joint axis="0 1 0" range="-90 90"/>
      <geom type="capsule" fromto="0 0 0 .3 0 0" size=".03" mass="1"/>
      <body name="lower" pos=".3 0 0">
        <joint name="elbow" axis="0 1 0" range="-120 120"/>
        <geom type="capsule" fromto="0 0 0 .25 0 0" size=".02" mass=".5"/>
      </body>
    </body>
  </worldbody>
</mujoco>"""
# A base on the ground below the trunk, turned and with a frame.
FOOTPRINT = """
<mujoco>
  <worldbody>
    <body name="footprint" pos=".3 0 0" quat=".924 0 0 .383">
      <freejoint/> <site name="imu" pos=".1 0 .5"/>
      <frame pos="0 0 .5"><geom type="box" size=".1 .1 .05" mass="5"/></frame>
      <geom type="capsule" fromto="0 0 .5 0 .1 .5" size=".02"/>
      <body name="leg" pos="0 .1 .5">
        <joint name="hip" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.48" size=".02"/>
      </body>
      <body name="other_leg" pos="0 -.1 .5">
        <joint name="other_hip" axis="0 1 0" range="-60 60"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.48" size=".02"/>
      </body>
    </body>
  </worldbody>
  <keyframe><key name="turned" qpos="0 0 0 .707107 0 .707107 0 .2"/></keyframe>
</mujoco>"""
# A robot that moves in a plane.
HOPPER = """
<mujoco>
  <default><geom type="capsule" size=".04"/><joint axis="0 1 0"/><motor gear="60" ctrlrange="-1 1"/></default>
  <worldbody>
    <geom type="plane" size="20 20 .1"/>
    <body name="trunk" pos="0 0 1">
      <joint name="x" type="slide" axis="1 0 0"/>
      <joint name="z" type="slide" axis="0 0 1"/>
      <joint name="y"/>
      <geom fromto="0 0 0 0 0 .3" mass="4"/>
      <body name="thigh">
        <joint name="hip" range="-60 60"/> <geom fromto="0 0 0 0 0 -.5" mass="2"/>
        <body name="shin" pos="0 0 -.5">
          <joint name="knee" range="-120 60"/> <geom fromto="0 0 0 0 0 -.45" mass="1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="hip" joint="hip"/><motor name="knee" joint="knee"/></actuator>
</mujoco>
"""


make_plan = new.make_plan


@functools.cache
def plan_of(_, settings):
    """The plan for the model in my_robot.xml, whose text is the first argument."""
    return make_plan(Path("my_robot.xml"), settings)


def written(text, *options, mirror_fault=lambda *_: None):
    """The names in the program that is written for a model. The look for a mirror image would take seconds.

    So does a plan, which is made once for each text and settings.
    """
    Path("my_robot.xml").write_text(text)
    plan = lambda _, settings: copy.deepcopy(plan_of(text, settings))
    with mock.patch.multiple(new, mirror_fault=mirror_fault, make_plan=plan):
        assert new.main(["my_robot.xml", *options]) == 0
    return runpy.run_path("my_robot.py")
