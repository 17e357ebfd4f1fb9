"""Whether other people's robots walk: the five commands of a newcomer, unedited, for each robot's file.

python -m benchmarks.robots ROBOT.xml [ROBOT.xml ...] [--out DIR] [--options max_iterations=100 ...]
python -m benchmarks.robots --page docs/robots.jsonl > docs/robots.md

For each file `ksim.tools.new` writes a program, which is trained, evaluated and exported, and `examples/deploy.py` runs
the export. A robot walks if at least 95 % of the episodes of 10 s survive, and the velocity error is at most 0.2 m/s or
a quarter of the highest command; an arm reaches to within half the distance at which its reward begins. Training ends
early after two evaluations in a row with survival of at least 98 % and nine tenths of that error. Episodes are those of
the task's evaluations, whose commands, friction and noise are those of training. A robot with feet also has to step:
each foot is in the air for at least a tenth of the time, and lands at least once in two periods of the gait.

A line of JSON per robot is added to `robots.jsonl` in the directory, with the reason where a command fails, and a
picture is put beside it. `--page` writes such lines as a page.
"""

import argparse
import dataclasses
import json
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np

import ksim
from ksim.evaluate.evaluator import Evaluator, Recorder, Recording
from ksim.evaluate.plots import CONTACT_N
from ksim.log.jsonl import find_films, read_evaluations, read_metrics
from ksim.log.logger import quantity_and_unit
from ksim.policy.load import load_task_policy
from ksim.robot import ArmRobot
from ksim.robot.plan import Drives
from ksim.tools.new import module_name

ROOT = Path(__file__).parents[1]
MIN_SURVIVAL, MAX_ERROR, MAX_ERROR_PART = 0.95, 0.2, 0.25
STOP_SURVIVAL, STOP_ERROR_PART = 0.98, 0.9
"""Survival, and part of the largest error, at which training stops: the policy is judged in other episodes."""
MIN_AIR_PART, MIN_LANDINGS_PER_PERIOD = 0.1, 0.5
MOVING = 0.1
"""Norm of a velocity command, in m/s and rad/s together, above which it is one to move."""
EVERY, EPISODES = 25, 64
"""Iterations from one evaluation of the training to the next, and its episodes."""
PICTURE_WIDTH = 320
"""Pixels."""
PAGE = """# Robots

Other people's robots, each by five commands with nothing edited: `ksim.tools.new`, `python ROBOT.py`, `run_mode=eval`,
`run_mode=export`, `examples/deploy.py`. None of the files is ksim's; robots of ksim's examples are in
[learning.md](learning.md). `python -m benchmarks.robots` made the measurements, and this page from them.

A robot walks if at least 95 % of 64 episodes of 10 s survive, and the velocity error is at most 0.2 m/s or a quarter of
the highest command. *Minutes* is the time of the training on two cores, evaluations included, until it did so with some
margin in two evaluations in a row. So these policies are the first that walk, not the best: training goes on for as
long as you let it. The other figures are of the policy at that time: *in the air*, the least and the most of the feet,
while the command is to move; *deployed*, of one episode in plain MuJoCo, the time until it fell and the mean velocity
error. Arms reach for points, to within half the distance at which their reward begins.

In the videos the feet of the robots on legs leave the ground in turns, as the times in the air say. The rewards of
robots in a plane ask for no steps: the walker keeps one leg ahead.

Two cores of a shared machine with other programs beside it, 27 November 2026, native MuJoCo 4.0.0, JAX 0.10.2.
"""


def largest_error(robot: Drives) -> float:
    """The largest error, in m/s or m, of a robot that has learned."""
    if isinstance(robot, ArmRobot):
        return 0.5 * robot.coarse
    # A robot that balances has no error.
    return max(MAX_ERROR, MAX_ERROR_PART * getattr(robot, "forward", 0.0))


def walks(figures: dict[str, Any], limit: float, min_survival: float = MIN_SURVIVAL) -> bool:
    """Whether the figures of an evaluation are those of a robot that has learned."""
    errors = [figure["mean"] for name, figure in figures.items() if name.startswith("error/")]
    is_near = not errors or (errors[0] is not None and errors[0] <= limit)
    return is_near and figures["survival"]["mean"] >= min_survival


def step_figures(recording: Recording, period_s: float) -> tuple[np.ndarray, np.ndarray]:
    """For each foot, the part of the time in the air, and landings per period, while the command is to move."""
    moving = np.linalg.norm(recording.commanded_velocity, axis=1) > MOVING
    down_tf = np.stack(list(recording.touch.values()), axis=1) > CONTACT_N
    landed_tf = down_tf[1:] & ~down_tf[:-1] & moving[1:, None]
    seconds = max(moving.sum() * (recording.dt or 0.02), 1e-9)
    return (~down_tf[moving]).mean(axis=0), landed_tf.sum(axis=0) * period_s / seconds


def task_of(program: Path, **options: Any) -> Any:
    """The task of a program."""
    names = runpy.run_path(str(program))
    (task_class,) = [
        x for x in names.values() if isinstance(x, type) and issubclass(x, ksim.RLTask) and x.__module__ == "<run_path>"
    ]
    return task_class(dataclasses.replace(names["CONFIG"], **options))


def judge(program: Path, run_dir: Path) -> dict[str, Any]:
    """The figures of a robot that was trained."""
    task = task_of(program, run_mode="eval", checkpoint=str(run_dir), eval_num_envs=EPISODES)
    _, context, model = load_task_policy(task)
    never = lambda: False
    evaluation = Evaluator(context)(model, never)
    recording = Recorder(context.env, seed=task.config.eval_seed, device=context.device)(model, never)
    assert evaluation is not None
    assert recording is not None
    assert recording.model is not None
    mj_model = recording.model.mj_model
    figures = {name: figure.record() for name, figure in evaluation.figures.items()}
    result: dict[str, Any] = {
        "mass_kg": float(mj_model.body_mass.sum()),
        "motors": int(mj_model.nu),
        "survival": figures["survival"],
        "errors": {name: figure for name, figure in figures.items() if name.startswith("error/")},
    }
    is_walking = walks(figures, largest_error(task.robot))
    if recording.touch:
        air_f, landings_f = step_figures(recording, task.robot.period_s)
        result |= {"air": [float(air_f.min()), float(air_f.max())]}
        result |= {"landings": [float(landings_f.min()), float(landings_f.max())]}
        is_walking &= bool(air_f.min() >= MIN_AIR_PART and landings_f.min() >= MIN_LANDINGS_PER_PERIOD)
    return result | {"walks": is_walking}


def has_learned(found: list[dict[str, Any]], limit: float) -> bool:
    """Whether the last two evaluations of a run are those of a robot that has learned."""
    return len(found) > 1 and all(walks(x["figures"], STOP_ERROR_PART * limit, STOP_SURVIVAL) for x in found[-2:])


class StepError(Exception):
    """A command of the five that failed, and its last words."""


def run(name: str, log: Path, *arguments: str) -> str:
    """The output of a command, which goes to a log as well."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    log.write_text(f"{done.stdout}\n{done.stderr}")
    if done.returncode:
        said = " ".join(f"{done.stdout}\n{done.stderr}".partition("Error: ")[2].split())
        raise StepError(f"{name}: {said or (done.stderr or done.stdout).strip().splitlines()[-1]}")
    return done.stdout


def train(program: Path, run_dir: Path, options: list[str]) -> float:
    """Trains until the robot walks or the program ends. Returns the minutes that it took."""
    limit, start_s = largest_error(task_of(program).robot), time.monotonic()
    given = [f"eval_every_n_iterations={EVERY}", f"eval_num_envs={EPISODES}", "video=false", *options]
    with program.with_suffix(".train.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), f"run_dir={run_dir}", *given], stdout=log, stderr=subprocess.STDOUT
        )
        while process.poll() is None:
            time.sleep(5)
            if has_learned(read_evaluations(run_dir), limit):
                minutes = (time.monotonic() - start_s) / 60
                process.send_signal(signal.SIGINT)
                process.wait()
                return minutes
    if process.returncode:
        raise StepError(f"train: exit code {process.returncode}")
    return (time.monotonic() - start_s) / 60


def try_robot(file: Path, out: Path, options: list[str]) -> dict[str, Any]:
    """The record of a robot: each command in a process of its own, as a user would."""
    stem = module_name(file.stem)
    program = next(path for path in (out / f"{stem}_{i}.py" for i in range(10**6)) if not path.exists())
    run_dir, log = out / program.stem, lambda name: program.with_suffix(f".{name}.log")
    record: dict[str, Any] = {"robot": file.stem, "steps": []}
    try:
        run("new", log("new"), "-m", "ksim.tools.new", str(file.absolute()), "--output", str(program))
        record["steps"].append("new")
        record["minutes"] = round(train(program, run_dir, options), 1)
        record["steps"].append("train")
        history = read_metrics(run_dir)
        record |= {"iterations": len(history), "env_steps": int(history[-1]["env_steps"])}
        given = (f"checkpoint={run_dir}", f"eval_num_envs={EPISODES}", "video=true")
        run("eval", log("eval"), str(program), "run_mode=eval", *given)
        record["steps"].append("eval")
        record |= json.loads(
            run("judge", log("judge"), "-m", "benchmarks.robots", "--judge", str(program), str(run_dir))
        )
        picture_of(run_dir, out / f"{program.stem}.jpg")
        run("export", log("export"), str(program), "run_mode=export", f"checkpoint={run_dir}")
        record["steps"].append("export")
        deployed = run("deploy", log("deploy"), str(ROOT / "examples/deploy.py"), str(run_dir / "export/policy.onnx"))
        record["steps"].append("deploy")
        record["deployed"] = deployed.strip().splitlines()[1:]
    except StepError as error:
        record["reason"] = str(error)
    return record | {"picture": f"{program.stem}.jpg"}


def picture_of(run_dir: Path, path: Path) -> None:
    """Writes a small picture from the middle of a run's newest film; nothing if it has none."""
    films = find_films(run_dir)
    if films:
        frames = iio.imread(films[-1])
        frame = frames[len(frames) // 2]
        step = max(1, frame.shape[1] // PICTURE_WIDTH)
        height, width = (size // step * step for size in frame.shape[:2])
        small = frame[:height, :width].reshape(height // step, step, width // step, step, 3).mean(axis=(1, 3))
        iio.imwrite(path, small.astype(np.uint8), quality=80)


def page(records: list[dict[str, Any]], folder: str = "images/robots") -> Iterator[str]:
    """The lines of the page of robots."""
    yield PAGE
    columns = ("", "robot", "mass, kg", "motors", "minutes", "steps, M", "survived", "error", "in the air", "deployed")
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    for record in sorted((x for x in records if x.get("walks")), key=lambda x: x["minutes"]):
        yield f"| {' | '.join(_cells(record, folder))} |"
    others = [x for x in records if not x.get("walks")]
    if others:
        yield "\n## Not walking\n\n| robot | commands that worked | reason |\n|---|---|---|"
    for record in others:
        survival, errors = record.get("survival"), record.get("errors", {})
        figures = f"{_percent(survival)} survived, {_error(errors)}" if survival else ""
        reason = record.get("why") or record.get("reason") or figures
        yield f"| {record['robot']} | {', '.join(record['steps']) or 'none'} | {reason.replace('|', '/')} |"


def _cells(record: dict[str, Any], folder: str) -> list[str]:
    air = record.get("air")
    said = " ".join(record.get("deployed", []))
    deployed = re.findall(r"Stood for ([\d.]+ s)|Velocity error: ([\d.]+ m/s)", said)
    return [
        f'<img src="{folder}/{record["picture"]}" alt="{record["robot"]}" width="160">',
        record["robot"] + (f", {record['source']}" if record.get("source") else ""),
        f"{record['mass_kg']:.3g}",
        str(record["motors"]),
        f"{record['minutes']:.0f}",
        f"{record['env_steps'] / 1e6:.1f}",
        _percent(record["survival"]),
        _error(record["errors"]),
        f"{air[0]:.0%} to {air[1]:.0%}" if air else "",
        ", ".join(time or error for time, error in deployed),
    ]


def _percent(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:.0%} ({100 * figure['low']:.0f}-{100 * figure['high']:.0f})"


def _error(errors: dict[str, Any]) -> str:
    return ", ".join(f"{figure['mean']:.2f} {quantity_and_unit(name)[1]}".strip() for name, figure in errors.items())


def main() -> int:
    """Tries robots, or writes their page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="*", type=Path, metavar="ROBOT.xml")
    parser.add_argument("--out", type=Path, default=Path("runs/robots"), help="directory of programs and runs")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="options of all trainings")
    parser.add_argument("--page", type=Path, metavar="FILE.jsonl", help="write the page of these records instead")
    parser.add_argument("--judge", action="store_true", help="judge PROGRAM RUN_DIR instead, and print JSON")
    args = parser.parse_args()
    if args.judge:
        print(json.dumps(judge(*args.robots)))
        return 0
    if args.page:
        print("\n".join(page([json.loads(line) for line in args.page.read_text().splitlines()])))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    for file in args.robots:
        record = try_robot(file, args.out, args.options)
        with (args.out / "robots.jsonl").open("a") as records:
            records.write(f"{json.dumps(record)}\n")
        print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
