"""The text of a robot's task: a program that its user reads, owns and changes."""

import json
import shlex
from pathlib import Path

from xax.utils.text import camelcase_to_snakecase

from ksim.robot.plan import Plan
from ksim.robot.program_fixed import arm_program, balance_program
from ksim.robot.program_legged import legged_program


def program_text(plan: Plan, *, class_name: str, mjcf: Path, output: Path) -> str:
    """The text of the program.

    Args:
        class_name: The name of the task's class.
        mjcf: The robot's file.
        output: Path of the program. Its path to the robot's file is relative to it.
    """
    make = {"legged": legged_program, "arm": arm_program, "balance": balance_program}[plan.findings.kind]
    purpose = {
        "legged": "learns to walk at a commanded velocity",
        "arm": "learns to reach for commanded points",
        "balance": "learns to balance",
    }[plan.findings.kind]
    head = f'''"""{class_name} {purpose}.

`python -m ksim.tools.new {mjcf.name}` wrote this. It is yours to change: comments tell what was guessed, and why.

python {shlex.quote(output.name)}
python {shlex.quote(output.name)} run_mode=view checkpoint={first_run_dir(class_name)}
"""

from pathlib import Path

import ksim
'''
    tail = f"""

if __name__ == "__main__":
    {class_name}.launch(CONFIG)
"""
    return head + make(plan, class_name, purpose, _path_code(mjcf, output)) + tail


def first_run_dir(class_name: str) -> str:
    """The directory of a task's first run, relative to the working directory of its program."""
    return f"runs/{camelcase_to_snakecase(class_name)}/run_000"


def _path_code(mjcf: Path, output: Path) -> str:
    """Code for the path of the robot's file: relative if it is beside or below the program, else absolute."""
    mjcf, folder = mjcf.absolute(), output.absolute().parent
    if mjcf.is_relative_to(folder):
        return f"Path(__file__).parent / {json.dumps(mjcf.relative_to(folder).as_posix())}"
    return f"Path({json.dumps(str(mjcf))})"
