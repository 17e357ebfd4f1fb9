"""Robots from MJCF files: analysis of a model, and additions that training needs."""

from ksim.robot.describe import Leg as Leg, RobotDescription as RobotDescription, look_at as look_at
from ksim.robot.plan import (
    ArmRobot as ArmRobot,
    BalancingRobot as BalancingRobot,
    FixedRobot as FixedRobot,
    LeggedRobot as LeggedRobot,
    PlanarRobot as PlanarRobot,
    gains_of as gains_of,
)
from ksim.robot.pose import Stance as Stance, find_stance as find_stance
from ksim.robot.scene import (
    Foot as Foot,
    add_feet as add_feet,
    add_gravity as add_gravity,
    add_ground as add_ground,
    add_imu as add_imu,
    add_motors as add_motors,
    add_tip as add_tip,
    free_base as free_base,
    leave_out as leave_out,
    limit_controls as limit_controls,
    load as load,
    raise_base as raise_base,
    set_pose as set_pose,
    touch_ground_only as touch_ground_only,
    use_implicitfast as use_implicitfast,
    use_plain_contacts as use_plain_contacts,
)
