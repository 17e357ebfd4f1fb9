"""A four-legged crawler learns to follow a commanded velocity. Copy this file and put in your robot and rewards.

python -m examples.minimal, or python my_task.py for your copy
"""

import jax.numpy as jnp
import mujoco

import ksim
from ksim.mdp import commands, rewards, terminations

CRAWLER = """
<mujoco>
  <default>
    <geom type="capsule" size=".03" density="500" contype="0" conaffinity="1" friction="1"/>
    <joint range="-40 40" armature=".01" damping=".2"/>
    <position kp="15" kv=".5" ctrlrange="-.7 .7" forcerange="-5 5"/>
  </default>
  <worldbody>
    <geom type="plane" size="20 20 .1" contype="1" conaffinity="0"/>
    <body name="trunk" pos="0 0 .2">
      <freejoint/>
      <geom type="ellipsoid" size=".15 .15 .05"/>
      <replicate count="4" euler="0 0 90">
        <body name="leg" pos=".1 .1 0" euler="0 0 45">
          <joint name="hip" axis="0 0 1"/>
          <geom fromto="0 0 0 .12 0 .05"/>
          <body name="shin" pos=".12 0 .05">
            <joint name="knee" axis="0 1 0"/>
            <geom fromto="0 0 0 .1 0 -.22"/>
          </body>
        </body>
      </replicate>
    </body>
  </worldbody>
  <actuator>
    <position joint="hip0"/> <position joint="hip1"/> <position joint="hip2"/> <position joint="hip3"/>
    <position joint="knee0"/> <position joint="knee1"/> <position joint="knee2"/> <position joint="knee3"/>
  </actuator>
</mujoco>
"""


class Progress(ksim.AbstractReward):
    """Speed along the commanded direction, in m/s, up to the commanded speed."""

    command: str
    scale: float = 1.0

    def __call__(self, context):
        velocity_2 = context.base.heading_velocity[:2]
        wanted_2 = context.command(self.command)[:2]
        speed = jnp.linalg.norm(wanted_2)
        return jnp.minimum(velocity_2 @ wanted_2 / jnp.maximum(speed, 1e-6), speed)


class CrawlerTask(ksim.PPOTask[ksim.PPOConfig]):
    """A crawler that learns to follow a commanded velocity."""

    def get_robot(self):
        return mujoco.MjSpec.from_string(CRAWLER)

    def get_commands(self, physics_model):
        return {"velocity": commands.VelocityCommand(forward=(-0.5, 0.5), leftward=(-0.5, 0.5), standing_fraction=0.0)}

    def get_rewards(self, physics_model):
        turn = rewards.TrackYawRate(command="velocity")
        return [Progress(command="velocity", scale=5.0), turn, rewards.BaseTilt(), rewards.ActionRate()]

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=10.0), terminations.BaseTilted()]


if __name__ == "__main__":
    CrawlerTask.launch(ksim.PPOConfig(max_iterations=200, actor_sizes=[64, 64]))
