"""Parts of a task's program that several kinds of tasks share."""

import json
from collections.abc import Mapping, Sequence

from ksim.robot.plan import Plan

WIDTH = 120


def class_head(plan: Plan, class_name: str, purpose: str) -> str:
    """The head of the task's class, up to the lines of `get_robot` that all robots share."""
    return f'''class {class_name}(ksim.PPOTask[ksim.PPOConfig]):
    """{class_name} {purpose}."""

    def get_robot(self):
        spec = robot.load(MJCF)
{_base_lines(plan)}        {_ground_line(plan)}
        robot.touch_ground_only(spec)  # parts of the robot pass through each other: faster'''


def drive_constants(plan: Plan) -> str:
    """The constants of the actuators, with comments on the rules behind them."""
    lines = []
    if plan.torque:
        what = "the robot's weight times the reach of the leg" if plan.feet else "twice the weight times the reach"
        lines += [f"# The file has no actuators. Motors of so many N m: {what}.", table("TORQUE", plan.torque)]
    if plan.stiffness:
        lines += [
            "# Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.gains for the rules.",
            table("STIFFNESS", plan.stiffness),
            table("DAMPING", plan.damping),
        ]
    if plan.action_scale:
        why = "35 % of the torque limit / stiffness, within 0.25 and 0.4" if plan.feet else "a quarter of the range"
        lines += [f"# rad of the servos' target per unit of action: {why}.", table("ACTION_SCALE", plan.action_scale)]
    return "\n".join(lines)


def actuators_call(plan: Plan) -> str:
    """The expression that `get_actuators` returns."""
    if plan.stiffness:
        return "ksim.PositionActuators(kp=STIFFNESS, kd=DAMPING, action_scale=ACTION_SCALE)"
    if plan.action_scale:
        return "ksim.ModelActuators(action_scale=ACTION_SCALE)  # the file's own servos"
    return "ksim.ModelActuators()  # the file's own: -1 and 1 are the ends of their ranges"


def _ground_line(plan: Plan) -> str:
    what = ", ".join(plan.added)
    if not what:
        return "robot.add_ground(spec)  # does nothing: the file has a floor, a light and a sky"
    height = f", height={plan.floor}" if plan.floor else ""
    return f"robot.add_ground(spec{height})  # {what}: the file has none"


def _base_lines(plan: Plan) -> str:
    lines = []
    if plan.left_out:
        lines.append(f"robot.leave_out(spec, {json.dumps(list(plan.left_out))})  # apart from the robot, with motors")
    if plan.lift:
        lines.append(f"robot.raise_base(spec, {plan.lift})  # to its centre of mass; the file has its origin lower")
    if plan.lacks_gravity:
        lines.append("robot.add_gravity(spec)  # the file has none")
    return method_lines(lines)


def optional_lines(plan: Plan) -> str:
    """The lines of `get_robot` that only some robots need."""
    lines = []
    if plan.imu and plan.findings.imu is None:
        base = json.dumps(plan.findings.base)
        lines.append(f'robot.add_imu(spec, {base}, "{plan.imu}")  # in the origin of the base: the file has none')
    if plan.torque:
        lines.append("robot.add_motors(spec, TORQUE)")
    if plan.pose and not plan.feet:
        lines.append("robot.set_pose(spec, POSE)")
    return method_lines(lines)


def method_lines(lines: Sequence[str]) -> str:
    """Lines of a method of a class."""
    return "".join(f"        {line}\n" for line in lines)


def table(name: str, values: Mapping[str, float]) -> str:
    """A dictionary as code, on one line if it fits."""
    items = [f"{json.dumps(key)}: {value!r}" for key, value in values.items()]
    line = f"{name} = {{{', '.join(items)}}}"
    if len(line) <= WIDTH:
        return line
    rows, row = [], ""
    for item in items:  # as many on a line as fit
        if row and len(row) + len(item) + 7 > WIDTH:
            rows.append(row)
            row = ""
        row = f"{row}, {item}" if row else item
    rows.append(row)
    return "\n".join([f"{name} = {{", *(f"    {row}," for row in rows), "}  # fmt: skip"])
