"""Whether other people's robots walk: a task by `ksim.tools.new`, unedited, trained and evaluated, for each MJCF file.

python -m benchmarks.robots ROBOT.xml [ROBOT.xml ...] [--out DIR] [--options max_iterations=100 ...]

A robot walks if all episodes of 10 s survive, the velocity error is at most 0.2 m/s, and every foot steps: it is in the
air for at least a tenth of the time, and lands at least once in two periods of the gait. Episodes are those of the
task's evaluations: commands, friction and noise are those of training, and so are pushes of robots on more than two
legs. `survived, pushed` is under the pushes of training. The policy is deterministic. Prints a row per robot, as
Markdown.
"""

import argparse
import dataclasses
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

import ksim
from ksim.evaluate.evaluator import Evaluator
from ksim.evaluate.plots import CONTACT_N
from ksim.evaluate.evaluator import Recorder, Recording
from ksim.log.jsonl import read_metrics
from ksim.policy.load import load_task_policy
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.tools.new import module_name

MAX_ERROR_M_S, MIN_AIR_PART, MIN_LANDINGS_PER_PERIOD = 0.2, 0.1, 0.5
MOVING = 0.1
"""Norm of a velocity command, in m/s and rad/s together, above which it is one to move."""
COLUMNS = (
    "robot", "mass, kg", "iterations", "environment steps", "training, min", "survived", "survived, pushed",
    "velocity error, m/s", "yaw rate error, rad/s", "in the air, of the time", "landings per period", "walks",
)  # fmt: skip


def step_figures(recording: Recording, period_s: float) -> tuple[np.ndarray, np.ndarray]:
    """For each foot, the part of the time in the air, and landings per period, while the command is to move."""
    moving = np.linalg.norm(recording.commanded_velocity, axis=1) > MOVING
    down_tf = np.stack(list(recording.touch.values()), axis=1) > CONTACT_N
    landed_tf = down_tf[1:] & ~down_tf[:-1] & moving[1:, None]
    seconds = max(moving.sum() * (recording.dt or 0.02), 1e-9)
    return (~down_tf[moving]).mean(axis=0), landed_tf.sum(axis=0) * period_s / seconds


def judge(program: Path, run_dir: Path) -> dict[str, Any]:
    """The row of a robot that was trained."""
    names = runpy.run_path(str(program))
    (task_class,) = [
        x for x in names.values() if isinstance(x, type) and issubclass(x, ksim.RLTask) and x.__module__ == "<run_path>"
    ]
    config = dataclasses.replace(names["CONFIG"], run_mode="eval", checkpoint=str(run_dir))
    _, context, model = load_task_policy(task_class(config))
    never = lambda: False
    evaluation = pushed = Evaluator(context)(model, never)
    env, training_env = context.env, context.task.get_environment("mujoco", num_devices=1)
    assert isinstance(env, MdpEnvironment)
    assert isinstance(training_env, MdpEnvironment)
    if not eqx.tree_equal(env.mdp.events, training_env.mdp.events):
        pushed = Evaluator(dataclasses.replace(context, env=training_env))(model, never)
    recording = Recorder(context.env, seed=config.eval_seed, device=context.device)(model, never)
    assert evaluation is not None
    assert pushed is not None
    assert recording is not None
    assert recording.model is not None
    air_f, landings_f = step_figures(recording, names["PERIOD_S"])
    figures, history = evaluation.figures, read_metrics(run_dir)
    survived, error = figures["survival"].mean, figures["error/velocity/lin_vel_m_s"].mean
    steps = air_f.min() >= MIN_AIR_PART and landings_f.min() >= MIN_LANDINGS_PER_PERIOD
    return {
        "mass, kg": f"{recording.model.mj_model.body_mass.sum():.3g}",
        "iterations": len(history),
        "environment steps": f"{history[-1]['env_steps'] / 1e6:.1f} M",
        "survived": figures["survival"].percent_words(),
        "survived, pushed": pushed.figures["survival"].percent_words(),
        "velocity error, m/s": figures["error/velocity/lin_vel_m_s"].words(2),
        "yaw rate error, rad/s": figures["error/velocity/yaw_rate_rad_s"].words(2),
        "in the air, of the time": f"{air_f.min():.2f} to {air_f.max():.2f}",
        "landings per period": f"{landings_f.min():.1f} to {landings_f.max():.1f}",
        "walks": "yes" if survived == 1.0 and error <= MAX_ERROR_M_S and steps else "no",
    }


def run_robot(mjcf: Path, out: Path, options: list[str]) -> dict[str, Any]:
    """Writes, trains and judges in processes of their own, as a user would."""
    program = next(
        path for path in (out / f"{module_name(mjcf.stem)}_{i}.py" for i in range(10**6)) if not path.exists()
    )
    run_dir = out / program.stem
    command = [sys.executable, "-m", "ksim.tools.new", str(mjcf.absolute()), "--output", str(program)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    start_s = time.monotonic()
    command = [sys.executable, str(program), f"run_dir={run_dir}", "video=false", "plots=false", *options]
    with (out / f"{program.stem}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)
    minutes = (time.monotonic() - start_s) / 60
    command = [sys.executable, "-m", "benchmarks.robots", "--judge", str(program), str(run_dir)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {"robot": mjcf.stem, "training, min": f"{minutes:.1f}", **json.loads(done.stdout.splitlines()[-1])}


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robots", nargs="+", type=Path, metavar="ROBOT.xml")
    parser.add_argument("--out", type=Path, default=Path("runs/robots"), help="directory of programs and runs")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="options of all trainings")
    parser.add_argument("--judge", action="store_true", help="judge PROGRAM RUN_DIR instead, and print JSON")
    args = parser.parse_args()
    if args.judge:
        print(json.dumps(judge(*args.robots)))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    walks = True
    for mjcf in args.robots:
        row = run_robot(mjcf, args.out, args.options)
        walks = walks and row["walks"] == "yes"
        print(f"| {' | '.join(str(row[column]) for column in COLUMNS)} |", flush=True)
    return 0 if walks else 1


if __name__ == "__main__":
    sys.exit(main())
