"""A Unitree G1 learns to walk at a commanded velocity, on every device of the machine.

pip install -e '.[robots]'
python -m examples.unitree_g1
python -m examples.unitree_g1 run_mode=view checkpoint=pretrained

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
FEET = (
    robot.Foot("left_foot", "l_ankle_roll_link", pos=(0.035, 0.0, -0.03), size=(0.099, 0.024, 0.004)),
    robot.Foot("right_foot", "r_ankle_roll_link", pos=(0.035, 0.0, -0.03), size=(0.099, 0.024, 0.004)),
)
SITES, TOUCH = tuple(foot.name for foot in FEET), tuple(foot.touch for foot in FEET)
# Joints in rad and height of the base in m, where episodes start and actions are relative to. From
# legs bent so that the feet are under the centre of mass: it stood for 3 s, helped against falling over.
POSE = {
    "torso_joint": 0.0, "*_shoulder_pitch_joint": 0.0, "*_shoulder_roll_joint": 0.0, "*_shoulder_yaw_joint": 0.0,
    "*_elbow_pitch_joint": 0.0, "*_elbow_roll_joint": 0.0, "*_leg_hip_pitch_joint": -0.15, "*_leg_hip_roll_joint": 0.0,
    "*_leg_hip_yaw_joint": 0.0, "*_leg_knee_joint": 0.3, "*_leg_ankle_pitch_joint": -0.15,
    "*_leg_ankle_roll_joint": 0.0,
}  # fmt: skip
HEIGHT, STANDING_HEIGHT = 0.655, 0.634  # STANDING: once the servos have given way
# Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules.
STIFFNESS = {
    "*_leg_hip_pitch_joint": 200.0, "*_leg_hip_roll_joint": 190.0, "*_leg_hip_yaw_joint": 120.0,
    "*_leg_knee_joint": 110.0, "*_leg_ankle_pitch_joint": 44.0, "*_leg_ankle_roll_joint": 12.0, "torso_joint": 43.0,
    "*_shoulder_pitch_joint": 15.0, "*_shoulder_roll_joint": 15.0, "*_shoulder_yaw_joint": 6.2,
    "*_elbow_pitch_joint": 6.2, "*_elbow_roll_joint": 0.8,
}  # fmt: skip
DAMPING = {
    "*_leg_hip_pitch_joint": 9.7, "*_leg_hip_roll_joint": 8.9, "*_leg_hip_yaw_joint": 2.9, "*_leg_knee_joint": 2.9,
    "*_leg_ankle_pitch_joint": 1.1, "*_leg_ankle_roll_joint": 0.29, "torso_joint": 2.7, "*_shoulder_pitch_joint": 0.97,
    "*_shoulder_roll_joint": 0.79, "*_shoulder_yaw_joint": 0.36, "*_elbow_pitch_joint": 0.36,
    "*_elbow_roll_joint": 0.02,
}  # fmt: skip
# rad of the servos' target per unit of action: 35 % of the torque limit / stiffness, within 0.25 and 0.4.
ACTION_SCALE = {
    "*_leg_hip_pitch_joint": 0.25, "*_leg_hip_roll_joint": 0.25, "*_leg_hip_yaw_joint": 0.25, "*_leg_knee_joint": 0.4,
    "*_leg_ankle_pitch_joint": 0.32, "*_leg_ankle_roll_joint": 0.13, "torso_joint": 0.25, "*_shoulder_pitch_joint": 0.4,
    "*_shoulder_roll_joint": 0.4, "*_shoulder_yaw_joint": 0.4, "*_elbow_pitch_joint": 0.4, "*_elbow_roll_joint": 0.4,
}  # fmt: skip
# The gait, a walk: feet in turns. Larger animals step more slowly: 2.9 * sqrt(height / gravity), rounded.
PERIOD_S, PHASES, SWING_M = 0.72, (0.0, 0.5), 0.063
# rad by which the joints of each leg bend to lift its foot by 1.6 * SWING_M: servos lag behind.
BENDS = (
    {"l_leg_hip_pitch_joint": -0.35, "l_leg_knee_joint": 0.71, "l_leg_ankle_pitch_joint": -0.36},
    {"r_leg_hip_pitch_joint": -0.35, "r_leg_knee_joint": 0.71, "r_leg_ankle_pitch_joint": -0.36},
)

# Few environments and a small init_std learn in the fewest steps, as a CPU needs.
# Its left is like its right, so each step's mirror image is learned from as well.
CONFIG = ksim.DistributedPPOConfig(
    num_envs=512, max_iterations=2000, dt=0.005, ctrl_dt=0.02,
    actor_sizes=[128, 128], critic_sizes=[128, 128], gamma=0.98,
    learning_rate=1e-3, desired_kl=0.02, num_passes=5, entropy_coef=0.002, init_std=0.5, symmetry="augment",
)  # fmt: skip


class UnitreeG1Task(ksim.DistributedPPOTask[ksim.DistributedPPOConfig]):
    """A Unitree G1 learns to walk at a commanded velocity."""

    pretrained = PRETRAINED / "unitree_g1"

    def get_robot(self):
        spec = robot.load(in_package("robosuite_models", "assets/robots/g1/robot.xml"))
        robot.raise_base(spec, 0.68)  # to its centre of mass; the file has its origin lower
        robot.add_ground(spec)  # floor, light, sky: the file has none
        robot.touch_ground_only(spec)  # parts of the robot pass through each other: faster
        robot.use_implicitfast(spec)  # stable with the servos' damping, and fast
        robot.add_feet(spec, FEET)
        robot.add_imu(spec, "base", "imu_")  # in the origin of the base: the file has none
        robot.set_pose(spec, POSE, HEIGHT)
        return spec

    def get_actuators(self):
        return ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)

    def get_commands(self, physics_model):
        # m/s and rad/s; forward is taken to be the x axis of the base. The highest speed grows with the root of the
        # height, as that of animals does.
        forward, leftward, yaw_rate = (0.0, 0.9), (-0.4, 0.4), (-0.5, 0.5)
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
        legs, bend = tuple(tuple(leg) for leg in BENDS), tuple(tuple(leg.values()) for leg in BENDS)
        still = tuple(joint for joint in physics_model.names.joints if not any(joint in leg for leg in legs))
        return [
            rewards.TrackLinearVelocity(command="velocity", std=0.3, scale=2.0),
            rewards.TrackYawRate(command="velocity", std=0.4, scale=1.5),
            # Steps in the rhythm of the gait; without these two it may slide or shuffle.
            rewards.FeetPhase(sensors=TOUCH, **gait, scale=1.0),
            rewards.FootSwingHeight(sites=SITES, height=SWING_M, rest_height=0.001, **gait, scale=-38.0),
            # Lifts the feet from the first steps on, without which two legs shuffle.
            rewards.SwingPose(legs=legs, bend=bend, **gait, scale=-5.0),
            rewards.FeetSlip(sensors=TOUCH, sites=SITES, scale=-0.1),
            rewards.BaseTilt(scale=-2.0),
            rewards.RollPitchRate(scale=-0.05),
            rewards.VerticalVelocity(scale=-0.5),
            rewards.BaseHeightError(target=STANDING_HEIGHT, scale=-10.0),
            rewards.JointDeviation(joints=still, scale=-0.15),
            rewards.JointLimits(scale=-1.0),
            rewards.ActionRate(scale=-0.01),
            # The torque that holds the weight at arm's length of the height costs about 0.2.
            rewards.TorqueEffort(scale=-5e-06),
            rewards.Alive(scale=1.0),
            rewards.TerminationPenalty(scale=-100.0),
        ]

    def get_terminations(self, physics_model):
        # A base at half its standing height lies or kneels.
        return [terminations.TimeLimit(seconds=10.0), terminations.BaseTooLow(height=0.32), terminations.BaseTilted()]

    def get_resets(self, physics_model):
        return [resets.RandomHeading(), resets.RandomJointPositions(), resets.RandomBaseVelocity()]

    def get_events(self, physics_model):
        # Jumps of the velocity, in m/s. Harder ones than it should stand make two legs robust.
        return [] if self.evaluating else [events.PushVelocity(speed=(0.0, 0.8))]

    def get_randomizers(self, physics_model):
        return [randomizers.RandomFriction(friction=(0.6, 1.2))]


if __name__ == "__main__":
    UnitreeG1Task.launch(CONFIG)
