"""A Unitree Go2 learns to trot at a commanded velocity, on every device of the machine.

pip install -e '.[robots]'
python -m examples.unitree_go2
python -m examples.unitree_go2 run_mode=view checkpoint=pretrained

`python -m ksim.tools.new` wrote this for the MJCF file of the package robosuite-models; after it, by hand: where the
file is, and names.
"""

from pathlib import Path

from ksim.robot import Foot
from ksim.tasks import legged

from .pretrained import PRETRAINED
from .robots import in_package


class UnitreeGo2Task(legged.LeggedTask[legged.LeggedConfig]):
    """A Unitree Go2 learns to trot at a commanded velocity."""

    pretrained = PRETRAINED / "unitree_go2"
    robot = legged.LeggedRobot(
        # A box around the lowest part of each leg, in its body's frame, in m; where contacts are felt.
        feet=tuple(
            Foot(f"{leg}_foot", f"{leg}_calf", pos=(-0.002, 0.0, -0.213), size=(0.026, 0.026, 0.026))
            for leg in ("FL", "FR", "RL", "RR")
        ),
        # Default pose (episode start, origin of actions), in rad. From keyframe 'home': it stood for 3 s.
        pose={"*_hip_leg_joint": 0.0, "*_thigh_leg_joint": 0.9, "*_calf_leg_joint": -1.8},
        # Heights in m: of the base, of the base once the servos have given way, of the feet's boxes.
        height=0.288,
        standing_height=0.227,
        rest_height=0.022,
        # Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules.
        stiffness={"*_hip_leg_joint": 48.0, "*_thigh_leg_joint": 44.0, "*_calf_leg_joint": 35.0},
        damping={"*_hip_leg_joint": 1.2, "*_thigh_leg_joint": 1.1, "*_calf_leg_joint": 0.88},
        # Target of the servos per unit of action, in rad: 35 % of the torque limit / stiffness, within 0.25 and 0.4.
        action_scale={"*_hip_leg_joint": 0.25, "*_thigh_leg_joint": 0.25, "*_calf_leg_joint": 0.4},
        # The gait, a trot: diagonal feet together. Larger animals step more slowly: 2.9 * sqrt(height / gravity).
        period_s=0.44,
        phases=(0.0, 0.5, 0.5, 0.0),
        swing_m=0.045,
        # Highest speed in m/s: it grows with the root of the height, as animals' does.
        forward=0.7,
        # A torque of weight times base height costs about 0.2.
        effort=2e-4,
        # In the origin of the base: the file has none.
        imu="imu_",
        imu_body="body",
    )

    def get_mjcf(self) -> Path:
        return in_package("robosuite_models", "assets/robots/go2/robot.xml")


CONFIG = legged.LeggedConfig(max_iterations=700, symmetry="augment")


if __name__ == "__main__":
    UnitreeGo2Task.launch(CONFIG)
