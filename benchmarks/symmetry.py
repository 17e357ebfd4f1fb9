"""The symmetry of a robot's gait: the time of each foot in the air, left against right.

python -m benchmarks.symmetry examples.quadruped:QuadrupedTask RUN_DIR [RUN_DIR ...] [--episodes 64]

For each run, whole episodes of its newest policy, deterministic, on the terms of training. A foot's part of the time in
the air counts control steps under a command to move, in its whole steps: from the first time that it lifts off to the
last. (In 12.5 periods of a gait one foot swings 13 times and its partner 12 times, which is no asymmetry.) Feet are
compared in pairs, in the order of the task's touch sensors: first with second, third with fourth. Commands are as often
to the left as to the right, so a robot that walks evenly has a difference near 0. Prints a row per run, as Markdown:
return, survival, velocity error, and for each pair the difference (left - right) in per cent of the mean of both;
intervals of 95 % over episodes.
"""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.learning_task import task_of
from benchmarks.robots import CONTACT_N, MOVING

from ksim.checkpoint.options import make_config
from ksim.evaluate.evaluator import estimate_fraction, estimate_mean
from ksim.evaluate.evaluator import Recorder, Recording
from ksim.policy.load import load_task_policy

ERROR = "error/velocity/lin_vel_m_s"


def recorded(task_name: str, run_dir: Path, num_episodes: int) -> list[Recording]:
    """The first episodes of an evaluation of a run's newest policy."""
    task_class, config = task_of(task_name)
    of_run = dataclasses.replace(config, run_mode="eval", checkpoint=str(run_dir))
    task: Any = task_class(make_config(of_run, [], task_class.__name__, task_class.pretrained))
    _, context, model = load_task_policy(task)
    recorder = Recorder(context.env, seed=task.config.eval_seed, device=context.device, num_envs=num_episodes)
    return recorder.episodes(model, lambda: False)


def air_parts(recording: Recording) -> np.ndarray:
    """For each foot, the part of its whole steps that it is in the air; 0 for one that does not step."""
    moving_t = np.linalg.norm(recording.commanded_velocity, axis=1) > MOVING
    parts = []
    for touch_t in recording.touch.values():
        down_t = touch_t > CONTACT_N
        lifted = np.flatnonzero(down_t[:-1] & ~down_t[1:]) + 1
        counted = np.zeros_like(moving_t)
        if len(lifted):
            counted[lifted[0] : lifted[-1]] = moving_t[lifted[0] : lifted[-1]]
        parts.append((~down_t[counted]).mean() if counted.any() else 0.0)
    return np.array(parts)


def row(run_dir: Path, recordings: list[Recording], most_steps: int) -> str:
    """A run's row of the table."""
    told_to_move = [x for x in recordings if (np.linalg.norm(x.commanded_velocity, axis=1) > MOVING).any()]
    air_ef = np.array([air_parts(recording) for recording in told_to_move])
    left_ep, right_ep = air_ef[:, 0::2], air_ef[:, 1::2]
    uneven_ep = 100 * (left_ep - right_ep) / ((left_ep + right_ep) / 2).mean(axis=0)
    cells = [
        str(run_dir),
        estimate_mean(np.array([x.reward.sum() for x in recordings])).words(),
        estimate_fraction(np.array([len(x.reward) == most_steps for x in recordings])).percent_words(),
        estimate_mean(np.array([x.metrics[ERROR].mean() for x in recordings])).words(3),
        ", ".join(f"{left:.3f} and {right:.3f}" for left, right in zip(left_ep.mean(0), right_ep.mean(0), strict=True)),
        ", ".join(f"{estimate_mean(uneven_e).words(1)} %" for uneven_e in uneven_ep.T),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", metavar="MODULE:CLASS")
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR")
    parser.add_argument("--episodes", type=int, default=64)
    args = parser.parse_args()
    heads = ("run", "return", "survived", "velocity error, m/s", "in the air, left and right", "difference")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
    for run_dir in args.run_dirs:
        recordings = recorded(args.task, run_dir, args.episodes)
        most_steps = max(len(x.reward) for x in recordings)
        print(row(run_dir, recordings, most_steps), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
