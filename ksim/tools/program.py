"""The program of a task, as text."""

import ast
import inspect
import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from xax.utils.text import camelcase_to_snakecase

from ksim.config import defaults_of
from ksim.robot.plan import DT, ArmRobot, BalancingRobot, Drives, FixedRobot, LeggedRobot, Plan, PlanarRobot
from ksim.robot.scene import Foot
from ksim.tasks import fixed, legged

WIDTH = 120
REMARK = "        # "


class _Kind(NamedTuple):
    """The library's task for a kind of robot: its module, names in it, and the robot's purpose."""

    module: ModuleType
    task: str
    config: str
    purpose: str


_KINDS = {
    "legged": _Kind(legged, "LeggedTask", "LeggedConfig", "learns to walk at a commanded velocity"),
    "arm": _Kind(fixed, "ReachTask", "FixedConfig", "learns to reach for commanded points"),
    "plane": _Kind(fixed, "PlaneTask", "FixedConfig", "learns to run in a plane at a commanded speed"),
    "balance": _Kind(fixed, "BalanceTask", "FixedConfig", "learns to balance"),
}

Row = tuple[str, dict[str, Any]]
"""A comment, and the numbers that it is about by name; those with their default value are not written."""


def program_text(plan: Plan, *, class_name: str, mjcf: Path, output: Path, whole: bool = False) -> str:
    """The text of the program, in which the path of the robot's file is relative to the program's path `output`.

    With `whole` it has the code of the library's task, with every term, instead of an import.
    """
    kind = _KINDS[plan.findings.kind]
    module = kind.module.__name__.rpartition(".")[2]
    program, prefix = shlex.quote(output.name), "" if whole else f"{module}."
    rows = _legged_rows(plan, plan.robot) if isinstance(plan.robot, LeggedRobot) else _fixed_rows(plan, plan.robot)
    robot = "".join(_row_lines(rows, plan.robot, "scene.Foot" if whole else "Foot"))
    foot = "from ksim.robot import Foot\n" if kind.module is legged else ""
    imports = f"from pathlib import Path\n\n{foot}from ksim.tasks import {module}\n"
    options = f"{prefix}{kind.config}({_options(plan)})"
    terms = "" if whole else f"\nTo change a term, override its hook: see ksim.tasks.{module}."
    return f'''"""{class_name} {kind.purpose}.

`python -m ksim.tools.new {mjcf.name}` wrote this. Comments tell where the numbers come from.{terms}

python {program}
python {program} run_mode=view checkpoint={first_run_dir(class_name)}
"""

{_library_source(kind.module) if whole else imports}

class {class_name}({prefix}{kind.task}[{prefix}{kind.config}]):
    """{class_name} {kind.purpose}."""

    robot = {prefix}{type(plan.robot).__name__}(
{robot}    )

    def get_mjcf(self):
        return {_path_code(mjcf, output)}


CONFIG = {options}


if __name__ == "__main__":
    {class_name}.launch(CONFIG)
'''


def first_run_dir(class_name: str) -> str:
    """The directory of a task's first run, relative to the working directory of its program."""
    return f"runs/{camelcase_to_snakecase(class_name)}/run_000"


def _legged_rows(plan: Plan, robot: LeggedRobot) -> list[Row]:
    gait = {2: "a walk: feet in turns", 4: "a trot: diagonal feet together"}.get(len(robot.feet), "neighbours in turns")
    scale = "35 % of the torque limit / stiffness, within 0.25 and 0.4"
    return [
        ("The body that moves freely, though the file has no free joint", {"freed": robot.freed}),
        ("Apart from the robot, with motors of its own", {"left_out": robot.left_out}),
        ("The origin of the base is raised to the centre of mass, in m; the file has it lower", {"lift": robot.lift}),
        (
            "A box around the lowest part of each leg, in its body's frame, in m; where contacts are felt",
            {"feet": robot.feet},
        ),
        (
            f"Default pose (episode start, origin of actions), in rad. From {plan.pose_source}: {plan.stands}",
            {"pose": robot.pose},
        ),
        (
            "Heights in m: of the base, of the base once the servos have given way, of the feet's boxes",
            {"height": robot.height, "standing_height": robot.standing_height, "rest_height": robot.rest_height},
        ),
        *_drive_rows(robot, plan.strength, scale),
        (
            f"The gait, {gait}. Larger animals step more slowly: 2.9 * sqrt(height / gravity)",
            {"period_s": robot.period_s, "phases": robot.phases, "swing_m": robot.swing_m},
        ),
        (
            "Bend of each leg's joints, in rad, that lifts its foot by 1.6 * swing_m: servos lag behind",
            {"bends": robot.bends},
        ),
        (
            "Highest speed in m/s: it grows with the root of the height, as animals' does",
            {"forward": robot.forward},
        ),
        ("A torque of weight times base height costs about 0.2", {"effort": robot.effort}),
        (
            "In the origin of the base: the file has none" if robot.imu_body else "A site with a gyro in the file",
            {"imu": robot.imu, "imu_body": robot.imu_body},
        ),
    ]


def _fixed_rows(plan: Plan, robot: FixedRobot) -> list[Row]:
    is_planar = isinstance(robot, PlanarRobot)
    return [
        ("Apart from the robot, with motors of its own", {"left_out": robot.left_out}),
        (
            "The origin of the base" if is_planar else "The point farthest along the last body, in m in its frame",
            {"tip": robot.tip},
        ),
        ("Below the robot, in m", {"floor": robot.floor}),
        ("Within the joints' ranges, which the file's reference pose is not", {"pose": robot.pose}),
        *_drive_rows(robot, plan.strength, "a quarter of the range, or of a turn"),
        *_task_rows(robot),
    ]


def _task_rows(robot: FixedRobot) -> list[Row]:
    """The numbers of a fixed robot that its kind of task needs."""
    match robot:
        case ArmRobot():
            return [
                ("Where the tip is in most of 1,000 random poses, in m in the world", {"reach": robot.reach}),
                ("Distance from the target, in m, at which a reward begins to matter", {"coarse": robot.coarse}),
            ]
        case BalancingRobot():
            heights = {"tip_heights": robot.tip_heights, "starts_up": robot.starts_up}
            return [
                ("Heights of the tip in m: hanging, and upright; whether it starts upright", heights),
                ("Joints with motors", {"driven": robot.driven}),
            ]
        case PlanarRobot():
            speed = "Highest speed in m/s: it grows with the root of the height, as animals' does"
            return [
                ("The slides along and up, and the hinge that tilts it, which nothing drives", {"plane": robot.plane}),
                ("Height of the base at the start, in m", {"height": robot.height}),
                (speed, {"forward": robot.forward}),
            ]
    raise AssertionError(f"no rows for {type(robot).__name__}")


def _drive_rows(robot: Drives, strength: str, scale: str) -> list[Row]:
    return [
        (f"Motors of so many N m, because the file has none: {strength}", {"torque": robot.torque}),
        (
            "Servos, in N m/rad and N m s/rad, from weight, reach and inertias: see ksim.robot.plan for the rules",
            {"stiffness": robot.stiffness, "damping": robot.damping},
        ),
        (f"Target of the servos per unit of action, in rad: {scale}", {"action_scale": robot.action_scale}),
        ("Targets beyond the pose in rad, with which the servos carry the weight in it", {"offset": robot.offset}),
    ]


def _row_lines(rows: Sequence[Row], robot: LeggedRobot | FixedRobot, foot: str) -> Iterator[str]:
    """The lines of a call with the numbers of a robot."""
    usual = defaults_of(type(robot))
    for comment, numbers in rows:
        written = {name: value for name, value in numbers.items() if value != usual[name]}
        if not written:
            continue
        yield f"{textwrap.fill(f'{comment}.', WIDTH, initial_indent=REMARK, subsequent_indent=REMARK)}\n"
        line = ", ".join(f"{name}={_code(value, foot)}" for name, value in written.items())
        if len(line) + 9 <= WIDTH:
            yield f"        {line},\n"
            continue
        for name, value in written.items():
            yield from _long_argument(name, value, foot)


def _long_argument(name: str, value: Any, foot: str) -> Iterator[str]:
    """An argument on one line if it fits, else with as many items on a line as fit."""
    line = f"        {name}={_code(value, foot)},\n"
    if len(line) <= WIDTH:
        yield line
        return
    is_mapping = isinstance(value, Mapping)
    items = (
        [f"{_code(key, foot)}: {_code(x, foot)}" for key, x in value.items()]
        if is_mapping
        else [_code(x, foot) for x in value]
    )
    yield f"        {name}={'{' if is_mapping else '('}\n"
    row = ""
    for item in items:
        if row and len(row) + len(item) + 15 > WIDTH:
            yield f"            {row},\n"
            row = ""
        row = f"{row}, {item}" if row else item
    yield f"            {row},\n        {'}' if is_mapping else ')'},\n"


def _code(value: Any, foot: str) -> str:
    if isinstance(value, Foot):
        return f"{foot}({json.dumps(value.name)}, {json.dumps(value.body)}, pos={value.pos}, size={value.size})"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_code(key, foot)}: {_code(x, foot)}' for key, x in value.items())}}}"
    if isinstance(value, tuple):
        return f"({', '.join(_code(x, foot) for x in value)}{',' * (len(value) == 1)})"
    return repr(value)


def _options(plan: Plan) -> str:
    """The options that are not the defaults of the task, as code."""
    options: dict[str, Any] = {} if plan.dt == DT else {"dt": plan.dt}
    if isinstance(plan.robot, LeggedRobot):
        # Two legs take longer to learn, from more environments at a time.
        biped = {"num_envs": 512, "max_iterations": 2000, "gamma": 0.98}
        options |= biped if plan.robot.is_biped else {"max_iterations": 700}
        options |= {"symmetry": "augment"} if plan.is_mirrored else {}
    elif plan.findings.kind == "plane":
        options |= {"max_iterations": 400}
    elif plan.findings.kind == "balance":
        options |= {"num_envs": 256, "max_iterations": 150, "actor_sizes": [64, 64], "critic_sizes": [64, 64]}
    return ", ".join(f"{name}={_code(value, '')}" for name, value in options.items())


def _library_source(module: ModuleType) -> str:
    """The code of a module, without its docstring."""
    source = inspect.getsource(module)
    return "".join(source.splitlines(keepends=True)[ast.parse(source).body[0].end_lineno :]).strip("\n") + "\n"


def _path_code(mjcf: Path, output: Path) -> str:
    """Code for the path of the robot's file: relative if it is beside or below the program, else absolute."""
    mjcf, folder = mjcf.absolute(), output.absolute().parent
    if mjcf.is_relative_to(folder):
        return f"Path(__file__).parent / {json.dumps(mjcf.relative_to(folder).as_posix())}"
    return f"Path({json.dumps(str(mjcf))})"
