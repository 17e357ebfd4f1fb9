"""From a robot's file, MJCF or URDF, to a task: writes a program that trains it, with what it could find and guess.

python -m ksim.tools.new my_robot.xml

It inspects the model: base, legs and feet, joints, masses, actuators, IMU and keyframes. The task of a legged robot is
to walk at a commanded velocity, that of a robot in a plane to run at a commanded speed, that of an arm to reach for
points, that of a cart or a pendulum to balance. It writes `my_robot.py`, for the user to read and change, and prints
its findings, its guesses, what it could not determine, and the next command. The robot's file is not changed.
"""

import dataclasses
import functools
import importlib.machinery
import keyword
import re
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.checks import check_positive
from ksim.errors import ConfigError
from ksim.host.files import write_whole
from ksim.host.machine import python_word
from ksim.host.terminal import print_line
from ksim.mirror import mirror_robot
from ksim.physics import PhysicsModel, compile_model
from ksim.physics.files import unpacked
from ksim.physics.mujoco import silence_warnings
from ksim.physics.names import MAX_VELOCITY
from ksim.robot.choices import driven_model, fixed_plan, legged_plan
from ksim.robot.describe import base_lift, base_to_free, look_at, stray_bodies
from ksim.robot.plan import CTRL_DT, DT, USUAL, LeggedRobot, Plan, Report, Settings, report_found
from ksim.robot.scene import free_base, leave_out, limit_controls, load, raise_base
from ksim.tools import exit_code_of, make_parser
from ksim.tools.program import first_run_dir, program_text

DRIVEN_STEPS = 10
"""Control steps of the trial of a program."""
ACTION_STD = 0.5
"""Standard deviation of the random actions of the trial, about the same as at the beginning of training."""


def mirror_fault(text: str, class_name: str, output: Path) -> str | None:
    """The reason why a program's task has no mirror image, as a sentence; None if it has one.

    The program's path of the robot's file is relative to `output`, the program's own path.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # a single device is enough for the trial
            _ = _task_of(text, class_name, output).mirror
    except ConfigError as error:
        return str(error).partition(". ")[0]
    return None


def drive_fault(text: str, class_name: str, output: Path) -> str | None:
    """The fault in the first steps of a program's task, as text; None if there is none.

    Native MuJoCo steps the robot under random actions, from the pose in which episodes begin.

    Raises:
        ConfigError: The task rejects the program's config.
    """
    with warnings.catch_warnings(action="ignore"):
        env = _task_of(text, class_name, output).environment
    model, rng = env.engine.model, np.random.default_rng(0)
    data = mujoco.MjData(model.mj_model)
    data.qpos[:] = model.loops.closed(model.default_qpos)[0]
    for step in range(1, DRIVEN_STEPS + 1):
        action = jnp.asarray(rng.normal(0.0, ACTION_STD, env.action_size), jnp.float32)
        data.ctrl[:] = np.asarray(env.mdp.control(action, model))
        mujoco.mj_step(model.mj_model, data, model.decimation)
        fastest = np.abs(data.qvel).max(initial=0.0)
        if not np.isfinite(data.qpos).all() or not fastest < MAX_VELOCITY:
            return f"its physics blew up within {step * model.ctrl_dt:.2g} s of an episode, in steps of {model.dt:g} s"
    return None


def _task_of(text: str, class_name: str, output: Path) -> Any:
    """The task that a program makes."""
    program: dict[str, Any] = {"__name__": output.stem, "__file__": str(output.absolute())}
    exec(compile(text, str(output), "exec"), program)
    return program[class_name](program["CONFIG"])


_NO_MIRROR = "Its mirror image, so it learns without symmetry"

SMALL_DT = 0.002
"""MuJoCo's default timestep, in s. A file with a smaller one may need it."""
FINER_DTS = (0.0025, 0.002, 0.001, 0.0005, 0.00025, 0.0001)
"""Physics steps in s for robots that blow up with the default step. The largest one up to the file's step is used with
which they do not."""


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Writes a program for a robot."""
    parser = make_parser("new", __doc__)
    parser.add_argument(
        "robot",
        type=Path,
        metavar="ROBOT",
        help="the robot's MJCF file or URDF, or a zip file with it, which is unpacked",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE.py",
        help="program to write; default: in this directory, named as the robot",
    )
    parser.add_argument(
        "--whole", action="store_true", help="write every term of the task, instead of an import from ksim.tasks"
    )
    parser.add_argument(
        "--frequency-hz",
        type=float,
        metavar="HZ",
        help="natural frequency of the servos, by the inertia at each joint",
    )
    parser.add_argument("--damping-ratio", type=float, metavar="X", help="damping ratio of the servos; 1 is critical")
    parser.add_argument("--force", action="store_true", help="overwrite a program that is already there")
    options = parser.parse_args(argv)
    for option in ("frequency_hz", "damping_ratio"):
        if getattr(options, option) is not None:
            check_positive(f"--{option.replace('_', '-')}", getattr(options, option))
    silence_warnings()
    output = options.output or Path(f"{module_name(options.robot.stem)}.py")
    check_output(output, force=options.force)
    robot = options.robot
    if robot.suffix == ".zip":
        robot = unpacked(robot, output.parent / robot.stem)
        print_line(f"Unpacked {options.robot}. The robot's file: {robot}")
    settings = Settings(frequency_hz=options.frequency_hz, damping_ratio=options.damping_ratio)
    plan, text, fault = _driven_program(robot, output, settings, options.whole)
    finer_dts = [dt for dt in FINER_DTS if dt <= plan.file_dt] or FINER_DTS[-1:]
    for dt in finer_dts if fault is not None and plan.file_dt < DT else ():
        finer = _driven_program(robot, output, dataclasses.replace(settings, dt=dt), options.whole)
        if finer[2] is None:
            plan, text, fault = finer
            break
    if fault is not None:
        plan.report.unknown.append(
            f"Whether it can learn: {fault}. Set a smaller dt in CONFIG, or look at its start with run_mode=view."
        )
    _write(output, text)
    _print(plan, output)


def _driven_program(robot: Path, output: Path, settings: Settings, whole: bool) -> tuple[Plan, str, str | None]:
    """The plan of a robot, its program, and the fault of its first steps, if any."""
    plan, text = _program(make_plan(robot, settings), robot, output, whole)
    print_line("Trying the robot's first steps ...")
    return plan, text, drive_fault(text, class_name(output.stem), output)


def make_plan(path: Path, settings: Settings = USUAL) -> Plan:
    """Inspects a robot's file and chooses the parameters of its task.

    Raises:
        ConfigError: MuJoCo cannot read the file, or ksim does not support the model.
    """
    spec, dt = load(path), settings.dt
    compiled = lambda: compile_model(spec, dt=dt, ctrl_dt=CTRL_DT, source=path).mj_model
    model, report = compiled(), Report()
    freed = base_to_free(spec)
    if freed is not None:
        was = "moves by slides and hinges" if spec.body(freed).joints else "is fixed to the world"
        free_base(spec, freed)
        report.guessed.append(f"In the file {freed!r} {was}: the task gives it a free joint.")
        model = compiled()
    left_out = stray_bodies(model)
    if left_out:
        leave_out(spec, left_out)
        model = compiled()
        named = " and ".join(repr(name) for name in left_out)
        report.guessed.append(f"No part of the robot, though their joints have motors, and left out: {named}.")
    limited = limit_controls(spec)
    if limited:
        report.guessed.append(f"Control ranges of {', '.join(limited)}: the torque limits of the motors and joints.")
        model = compiled()
    step = float(spec.option.timestep)
    if dt < DT:
        report.guessed.append(
            f"Physics steps of {dt:g} s (the file's: {step:g} s): in steps of {DT:g} s its physics blew up."
        )
    elif step < SMALL_DT:
        report.guessed.append(f"Physics steps of {DT:g} s, where the file asks for {step:g} s: see dt in CONFIG.")
    lift = round(base_lift(model), 2)
    if lift:
        raise_base(spec, lift)
        model = compiled()
        report.guessed.append(f"The base's origin is near the ground: the task raises it by {lift} m.")
    found = look_at(model)
    report_found(report, model, found)
    if found.kind != "legged":
        plan = fixed_plan(spec, model, found, report, settings)
        return dataclasses.replace(plan, robot=dataclasses.replace(plan.robot, left_out=left_out), dt=dt, file_dt=step)
    plan = legged_plan(spec, found, report, settings)
    assert isinstance(plan.robot, LeggedRobot)
    numbers = dataclasses.replace(plan.robot, freed=freed, left_out=left_out, lift=lift)
    model = driven_model(spec, numbers, numbers.pose, numbers.height, dt)
    is_mirrored = _is_mirrored(model, plan)
    return dataclasses.replace(plan, robot=numbers, is_mirrored=is_mirrored, file_dt=step)


def _program(plan: Plan, robot: Path, output: Path, whole: bool) -> tuple[Plan, str]:
    """The plan and its program, without symmetry if the task has no mirror image."""
    name, unknown, guessed = class_name(output.stem), plan.report.unknown, plan.report.guessed
    write = functools.partial(program_text, class_name=name, mjcf=robot, output=output, whole=whole)
    text = write(plan)
    if plan.is_mirrored:
        why = mirror_fault(text, name, output)
        if why is not None:
            unknown.append(f"{_NO_MIRROR}: {why}.")
            plan = dataclasses.replace(plan, is_mirrored=False)
            return plan, write(plan)
        guessed.append("Its left is like its right: it learns from each step's mirror image, too (symmetry).")
    return plan, text


def _is_mirrored(model: PhysicsModel, plan: Plan) -> bool:
    """Whether the robot itself has a mirror image. If not, the reason is added to the report."""
    actuators = plan.robot.actuators()
    try:
        mirror_robot(model, lambda action: actuators(action, model), actuators.action_size(model))
    except ConfigError as error:
        plan.report.unknown.append(f"{_NO_MIRROR}: {str(error).partition('. ')[0]}.")
        return False
    return True


def module_name(stem: str) -> str:
    """A name for the program of a robot's file, which Python can import and which hides no other module."""
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_").lower() or "robot"
    name = f"robot_{name}" if name[0].isdigit() else name
    return f"{name}_robot" if keyword.iskeyword(name) or _hides_another(name) else name


def class_name(stem: str) -> str:
    """The name of the task class in a program: `MyRobot` for `my_robot`."""
    return "".join(part[:1].upper() + part[1:] for part in stem.split("_") if part)


def check_output(output: Path, *, force: bool) -> None:
    """Raises ConfigError unless a program can be written to `output`, and Python can run and import it."""
    if output.suffix != ".py" or not output.stem.isidentifier() or keyword.iskeyword(output.stem):
        raise ConfigError(
            f"--output ({output}) must be a .py file with a name that Python can import, such as "
            f"{output.with_name(module_name(output.stem) + '.py')}."
        )
    if not output.stem.strip("_"):
        raise ConfigError(f"--output ({output}) must have a letter in its name.")
    if _hides_another(output.stem):
        raise ConfigError(
            f"--output ({output}) would hide the module {output.stem!r} when it runs. Choose another name."
        )
    if output.exists() and not (force and output.is_file()):
        raise ConfigError(f"{output} already exists. Add --force to overwrite it, or choose another by --output.")


def _hides_another(name: str) -> bool:
    """Whether a program of this name would be imported in place of an installed module."""
    if name in sys.stdlib_module_names:
        return True
    here = {"", str(Path.cwd())}
    return importlib.machinery.PathFinder.find_spec(name, [path for path in sys.path if path not in here]) is not None


def _write(output: Path, text: str) -> None:
    try:
        write_whole(output, text)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror}). Choose another by --output.") from error


def _print(plan: Plan, output: Path) -> None:
    report = plan.report
    for title, lines in (("Found", report.found), ("Guessed", report.guessed), ("Could not tell", report.unknown)):
        if lines:
            print_line(f"{title}:")
            for line in lines:
                print_line(f"  - {line}")
    print_line(f"Wrote {output}. Read it: its comments tell what was guessed. Next:")
    program = f"{python_word()} {shlex.quote(str(output))}"
    print_line(f"  {program}")
    print_line(f"  {program} run_mode=view checkpoint={first_run_dir(class_name(output.stem))}")


if __name__ == "__main__":
    sys.exit(main())
