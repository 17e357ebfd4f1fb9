"""A teacher and its students in one table: the loss from fewer observations.

python -m benchmarks.teacher_student --teacher runs/TEACHER --students runs/MLP runs/GRU runs/PPO

The deterministic policies of examples.walking_teacher and examples.walking_student, in the same episodes.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from examples.walking_student import HumanoidStudentTask
from examples.walking_teacher import HumanoidTeacherTask

from ksim.checkpoint.options import make_config
from ksim.evaluate.evaluator import Estimate
from ksim.evaluate.evaluator import Evaluator
from ksim.policy.load import load_task_policy

HEADS = ("policy", "return", "of the teacher's", "survived", "velocity error, m/s", "yaw rate error, rad/s")
VELOCITY, YAW_RATE = "error/velocity/lin_vel_m_s", "error/velocity/yaw_rate_rad_s"


def figures_of(task_class: type[Any], run: str, num_episodes: int) -> Mapping[str, Estimate]:
    """The figures of an evaluation of a run's policy: `return`, `survival` and `error/...`.

    Raises:
        ConfigError: There is no checkpoint, or it does not fit the task.
    """
    base = dataclasses.replace(
        task_class.get_config_class()(), run_mode="eval", checkpoint=run, eval_num_envs=num_episodes
    )
    argv = [f"eval_num_envs={num_episodes}"]
    task = task_class(make_config(base, argv, task_class.__name__, task_class.pretrained))
    _, context, model = load_task_policy(task)
    evaluation = Evaluator(context)(model, lambda: False)
    assert evaluation is not None  # it is never stopped
    return evaluation.figures


def table(rows: Mapping[str, Mapping[str, Estimate]]) -> str:
    """The figures of policies by name as Markdown; the first is the teacher."""
    reference = next(iter(rows.values()))["return"].mean
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for name, figures in rows.items():
        cells = [
            name,
            figures["return"].words(2),
            f"{figures['return'].mean / reference:.1%}",
            figures["survival"].percent_words(),
            figures[VELOCITY].words(3),
            figures[YAW_RATE].words(3),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True, help="run of examples.walking_teacher")
    parser.add_argument("--students", nargs="+", required=True, help="runs of examples.walking_student")
    parser.add_argument("--episodes", type=int, default=64, help="episodes of each policy")
    options = parser.parse_args(argv)
    rows = {f"teacher ({options.teacher})": figures_of(HumanoidTeacherTask, options.teacher, options.episodes)}
    for run in options.students:
        rows[run] = figures_of(HumanoidStudentTask, run, options.episodes)
    print(table(rows))


if __name__ == "__main__":
    main()
