"""A Unitree G1 learns to walk at a commanded velocity, on every device of the machine.

pip install -e '.[robots]'
python -m examples.unitree_g1
python -m examples.unitree_g1 run_mode=view checkpoint=pretrained

`python -m ksim.tools.new` wrote this for the MJCF file of the package robosuite-models; after it, by hand: where the
file is, and names.
"""

from pathlib import Path

from ksim.robot import Foot
from ksim.tasks import legged

from .pretrained import PRETRAINED
from .robots import in_package


class UnitreeG1Task(legged.LeggedTask[legged.LeggedConfig]):
    """A Unitree G1 learns to walk at a commanded velocity."""

    pretrained = PRETRAINED / "unitree_g1"
    robot = legged.LeggedRobot(
        # The origin of the base is raised to the centre of mass, in m; the file has it lower.
        lift=0.68,
        # A box around the lowest part of each leg, in its body's frame, in m; where contacts are felt.
        feet=(
            Foot("left_foot", "l_ankle_roll_link", pos=(0.035, 0.0, -0.03), size=(0.099, 0.024, 0.004)),
            Foot("right_foot", "r_ankle_roll_link", pos=(0.035, 0.0, -0.03), size=(0.099, 0.024, 0.004)),
        ),
        # Default pose (episode start, origin of actions), in rad. From legs bent so that the feet are under the centre
        # of mass: it stood for 3 s, helped against falling over.
        pose={
            "torso_joint": 0.0,
            "*_shoulder_pitch_joint": 0.0,
            "*_shoulder_roll_joint": 0.0,
            "*_shoulder_yaw_joint": 0.0,
            "*_elbow_pitch_joint": 0.0,
            "*_elbow_roll_joint": 0.0,
            "*_leg_hip_pitch_joint": -0.15,
            "*_leg_hip_roll_joint": 0.0,
            "*_leg_hip_yaw_joint": 0.0,
            "*_leg_knee_joint": 0.3,
            "*_leg_ankle_pitch_joint": -0.15,
            "*_leg_ankle_roll_joint": 0.0,
        },
        # Heights in m: of the base, of the base once the servos have given way, of the feet's boxes.
        height=0.655,
        standing_height=0.634,
        rest_height=0.001,
        # Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules.
        stiffness={
            "*_leg_hip_pitch_joint": 200.0,
            "*_leg_hip_roll_joint": 190.0,
            "*_leg_hip_yaw_joint": 120.0,
            "*_leg_knee_joint": 110.0,
            "*_leg_ankle_pitch_joint": 44.0,
            "*_leg_ankle_roll_joint": 12.0,
            "torso_joint": 43.0,
            "*_shoulder_pitch_joint": 15.0,
            "*_shoulder_roll_joint": 15.0,
            "*_shoulder_yaw_joint": 6.2,
            "*_elbow_pitch_joint": 6.2,
            "*_elbow_roll_joint": 0.8,
        },
        damping={
            "*_leg_hip_pitch_joint": 9.7,
            "*_leg_hip_roll_joint": 8.9,
            "*_leg_hip_yaw_joint": 2.9,
            "*_leg_knee_joint": 2.9,
            "*_leg_ankle_pitch_joint": 1.1,
            "*_leg_ankle_roll_joint": 0.29,
            "torso_joint": 2.7,
            "*_shoulder_pitch_joint": 0.97,
            "*_shoulder_roll_joint": 0.79,
            "*_shoulder_yaw_joint": 0.36,
            "*_elbow_pitch_joint": 0.36,
            "*_elbow_roll_joint": 0.02,
        },
        # Target of the servos per unit of action, in rad: 35 % of the torque limit / stiffness, within 0.25 and 0.4.
        action_scale={
            "*_leg_hip_pitch_joint": 0.25,
            "*_leg_hip_roll_joint": 0.25,
            "*_leg_hip_yaw_joint": 0.25,
            "*_leg_knee_joint": 0.4,
            "*_leg_ankle_pitch_joint": 0.32,
            "*_leg_ankle_roll_joint": 0.13,
            "torso_joint": 0.25,
            "*_shoulder_pitch_joint": 0.4,
            "*_shoulder_roll_joint": 0.4,
            "*_shoulder_yaw_joint": 0.4,
            "*_elbow_pitch_joint": 0.4,
            "*_elbow_roll_joint": 0.4,
        },
        # The gait, a walk: feet in turns. Larger animals step more slowly: 2.9 * sqrt(height / gravity).
        period_s=0.72,
        phases=(0.0, 0.5),
        swing_m=0.063,
        # Bend of each leg's joints, in rad, that lifts its foot by 1.6 * swing_m: servos lag behind.
        bends=(
            {"l_leg_hip_pitch_joint": -0.35, "l_leg_knee_joint": 0.71, "l_leg_ankle_pitch_joint": -0.36},
            {"r_leg_hip_pitch_joint": -0.35, "r_leg_knee_joint": 0.71, "r_leg_ankle_pitch_joint": -0.36},
        ),
        # Highest speed in m/s: it grows with the root of the height, as animals' does.
        forward=0.9,
        # A torque of weight times base height costs about 0.2.
        effort=5e-6,
        # In the origin of the base: the file has none.
        imu="imu_",
        imu_body="base",
    )

    def get_mjcf(self) -> Path:
        return in_package("robosuite_models", "assets/robots/g1/robot.xml")


CONFIG = legged.LeggedConfig(num_envs=512, max_iterations=2000, gamma=0.98, symmetry="augment")


if __name__ == "__main__":
    UnitreeG1Task.launch(CONFIG)
