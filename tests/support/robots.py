"""A small robot for tests: cheap to compile, with all that a term may ask for."""

import mujoco

from ksim.physics import PhysicsModel, PositionActuators, compile_model

BIPED = """
<mujoco>
  <option timestep="0.004" iterations="8" ls_iterations="8"><flag eulerdamp="disable"/></option>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1" contype="1" conaffinity="0"/>
    <body name="trunk" pos="0 0 .5">
      <freejoint name="root"/>
      <geom name="trunk" type="box" size=".1 .15 .1" mass="5" contype="0" conaffinity="0"/>
      <site name="imu"/>
      <body name="left_leg" pos="0 .1 -.1">
        <joint name="left_hip" axis="0 1 0" range="-60 60" armature=".01" damping=".2"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1" contype="0" conaffinity="0"/>
        <geom name="left_foot" type="sphere" pos="0 0 -.35" size=".05" mass=".2" contype="0" conaffinity="1"/>
        <site name="left_foot" pos="0 0 -.35" size=".06"/>
      </body>
      <body name="right_leg" pos="0 -.1 -.1">
        <joint name="right_hip" axis="0 1 0" range="-60 60" armature=".01" damping=".2"/>
        <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1" contype="0" conaffinity="0"/>
        <geom name="right_foot" type="sphere" pos="0 0 -.35" size=".05" mass=".2" contype="0" conaffinity="1"/>
        <site name="right_foot" pos="0 0 -.35" size=".06"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="left_hip" joint="left_hip" ctrlrange="-20 20"/>
    <motor name="right_hip" joint="right_hip" ctrlrange="-20 20"/>
  </actuator>
  <sensor>
    <gyro name="gyro" site="imu"/>
    <touch name="left_touch" site="left_foot"/>
    <touch name="right_touch" site="right_foot"/>
  </sensor>
</mujoco>
"""

ACTUATORS = PositionActuators(kp=40.0, kd=2.0, action_scale=0.5)


def biped_spec() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(BIPED)


def biped_model() -> PhysicsModel:
    return compile_model(biped_spec(), dt=0.004, ctrl_dt=0.02, edits=[ACTUATORS.edit_spec])
