"""A Unitree Go2 learns to trot at a commanded velocity, on every device of the machine.

pip install -e '.[robots]'
python -m examples.unitree_go2
python -m examples.unitree_go2 run_mode=view checkpoint=pretrained

`python -m ksim.tools.new` wrote this for the MJCF file of the package robosuite-models; after it, by hand: where the
file is, names, and all devices in place of one.
"""

import ksim
from ksim import robot
from ksim.mdp import commands, events, observations as obs, randomizers, resets, rewards, terminations
from ksim.mdp.noise import UniformNoise

from .pretrained import PRETRAINED
from .robots import in_package

# A box around the lowest part of each leg, in its body's frame, in m; where contacts are felt.
FEET = tuple(
    robot.Foot(f"{leg}_foot", f"{leg}_calf", pos=(-0.002, 0.0, -0.213), size=(0.026, 0.026, 0.026))
    for leg in ("FL", "FR", "RL", "RR")
)
SITES, TOUCH = tuple(foot.name for foot in FEET), tuple(foot.touch for foot in FEET)
# Joints in rad and height of the base in m, where episodes start and actions are relative to. From
# keyframe 'home': it stood for 3 s.
POSE = {"*_hip_leg_joint": 0.0, "*_thigh_leg_joint": 0.9, "*_calf_leg_joint": -1.8}
HEIGHT, STANDING_HEIGHT = 0.288, 0.227  # STANDING: once the servos have given way
# Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules.
STIFFNESS = {"*_hip_leg_joint": 48.0, "*_thigh_leg_joint": 44.0, "*_calf_leg_joint": 35.0}
DAMPING = {"*_hip_leg_joint": 1.2, "*_thigh_leg_joint": 1.1, "*_calf_leg_joint": 0.88}
# rad of the servos' target per unit of action: 35 % of the torque limit / stiffness, within 0.25 and 0.4.
ACTION_SCALE = {"*_hip_leg_joint": 0.25, "*_thigh_leg_joint": 0.25, "*_calf_leg_joint": 0.4}
# The gait, a trot: diagonal feet together. Larger animals step more slowly: 2.9 * sqrt(height / gravity), rounded.
PERIOD_S, PHASES, SWING_M = 0.44, (0.0, 0.5, 0.5, 0.0), 0.045

# Few environments and a small init_std learn in the fewest steps, as a CPU needs.
# Its left is like its right, so each step's mirror image is learned from as well.
CONFIG = ksim.DistributedPPOConfig(
    num_envs=256, max_iterations=700, dt=0.005, ctrl_dt=0.02,
    actor_sizes=[128, 128], critic_sizes=[128, 128], gamma=0.99,
    learning_rate=1e-3, desired_kl=0.02, num_passes=5, entropy_coef=0.002, init_std=0.5, symmetry="augment",
)  # fmt: skip


class UnitreeGo2Task(ksim.DistributedPPOTask[ksim.DistributedPPOConfig]):
    """A Unitree Go2 learns to trot at a commanded velocity."""

    pretrained = PRETRAINED / "unitree_go2"

    def get_robot(self):
        spec = robot.load(in_package("robosuite_models", "assets/robots/go2/robot.xml"))
        robot.add_gravity(spec)  # the file has none
        robot.add_ground(spec)  # floor, light, sky: the file has none
        robot.touch_ground_only(spec)  # parts of the robot pass through each other: faster
        robot.use_implicitfast(spec)  # stable with the servos' damping, and fast
        robot.use_plain_contacts(spec)  # pyramidal cones, sliding friction: up to four times as fast
        robot.add_feet(spec, FEET)
        robot.add_imu(spec, "body", "imu_")  # in the origin of the base: the file has none
        robot.set_pose(spec, POSE, HEIGHT)
        return spec

    def get_actuators(self):
        return ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)

    def get_commands(self, physics_model):
        # m/s and rad/s; forward is taken to be the x axis of the base. The highest speed grows with the root of the
        # height, as that of animals does.
        forward, leftward, yaw_rate = (-0.3, 0.7), (-0.3, 0.3), (-0.8, 0.8)
        return {"velocity": commands.VelocityCommand(forward=forward, leftward=leftward, yaw_rate=yaw_rate)}

    def get_observations(self, physics_model):
        actor = {
            "gravity": obs.ProjectedGravity(noise=UniformNoise(0.03)),
            "gyro": obs.ImuGyro(site="imu_", noise=UniformNoise(0.2)),
            "joint_position": obs.JointPosition(noise=UniformNoise(0.01)),
            "joint_velocity": obs.JointVelocity(noise=UniformNoise(0.5)),
            "command": obs.CommandValue(command="velocity"),
            "phase": obs.PhaseClock(period_s=PERIOD_S),
            "last_action": obs.LastAction(),
        }
        # The critic runs only in simulation, so it may see what no sensor of the robot measures.
        seen = {"lin_vel": obs.BaseLinearVelocity(), "height": obs.BaseHeight()}
        return {"actor": actor, "critic": actor | seen | {"contact": obs.FootContact(sensors=TOUCH)}}

    def get_rewards(self, physics_model):
        gait = {"command": "velocity", "period_s": PERIOD_S, "offsets": PHASES}
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.3, scale=2.0),
            rewards.TrackYawRate(command="velocity", std=0.4, scale=1.0),
            # Steps in the rhythm of the gait; without these two it may slide or shuffle.
            rewards.FeetPhase(sensors=TOUCH, **gait, scale=1.0),
            rewards.FootSwingHeight(sites=SITES, height=SWING_M, rest_height=0.022, **gait, scale=-74.0),
            rewards.FeetSlip(sensors=TOUCH, sites=SITES, scale=-0.1),
            rewards.BaseTilt(scale=-1.0),
            rewards.RollPitchRate(scale=-0.05),
            rewards.VerticalVelocity(scale=-0.5),
            rewards.BaseHeightError(target=STANDING_HEIGHT, scale=-8.0),
            rewards.JointDeviation(scale=-0.05),
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.01),
            # The torque that holds the weight at arm's length of the height costs about 0.2.
            rewards.TorqueEffort(scale=-2e-04),
            rewards.Alive(scale=1.0),
            rewards.TerminationPenalty(scale=-50.0),
        ]

    def get_terminations(self, physics_model):
        # A base at half its standing height lies or kneels.
        return [terminations.TimeLimit(seconds=10.0), terminations.BaseTooLow(height=0.11), terminations.BaseTilted()]

    def get_resets(self, physics_model):
        return [resets.RandomHeading(), resets.RandomJointPositions(), resets.RandomBaseVelocity()]

    def get_events(self, physics_model):
        return [events.PushVelocity(speed=(0.0, 0.3))]

    def get_randomizers(self, physics_model):
        return [randomizers.RandomFriction(friction=(0.6, 1.2))]


if __name__ == "__main__":
    UnitreeGo2Task.launch(CONFIG)
