"""run_mode=eval: evaluating the policy of a checkpoint."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx

from ksim.checkpoint.format import load_checkpoint
from ksim.checkpoint.snapshot import restored_policy
from ksim.errors import ConfigError
from ksim.evaluate.evaluator import Evaluation, Evaluator
from ksim.evaluate.reports import EpisodeReport, Failures
from ksim.host.files import whole_file
from ksim.host.terminal import print_figures
from ksim.log.run_log import run_log
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.layout import SingleDevice
from ksim.ppo.train_step import static_leaves
from ksim.rollout.environment import Environment
from ksim.train.signals import stop_on_signal

if TYPE_CHECKING:
    from ksim.task.rl import RLTask


def evaluate_checkpoint(task: "RLTask[Any]") -> int:
    """Loads a checkpoint, evaluates its policy and prints and writes the figures; see `RLTask.run`.

    Raises:
        ConfigError: There is no checkpoint, it does not fit the task, or there is nowhere to write.
    """
    path, _, model = load_task_policy(task)
    # <run>/checkpoints/<number>
    out_dir = output_dir("eval_output", task.config.eval_output, path.parents[1])
    with run_log(task.config.log_level) as log, stop_on_signal() as stop:
        log.open(out_dir)
        evaluation = Evaluator(task)(model, lambda: stop.signal is not None)
        if evaluation is None:
            return stop.exit_code
        record = {"checkpoint": str(path), **evaluation.record()}
        with whole_file(out_dir / "evaluation.json") as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")
        report = EpisodeReport(task, out_dir, Failures(), lambda: stop.signal is not None)
        report(model, f"iteration_{path.name}", with_video=task.config.video, with_plots=task.config.plots)
        written = {"figures": out_dir / "evaluation.json", **report.paths}
        figures = evaluation_figures(evaluation) | {name: str(file) for name, file in written.items()}
        print_figures(f"Evaluation of {path}", figures)
    return stop.exit_code


def evaluation_figures(evaluation: Evaluation) -> dict[str, str]:
    """An evaluation by name, in words."""
    estimates = evaluation.figures
    return {
        "episodes": f"{evaluation.num_episodes}, one per environment, most likely actions, in {evaluation.engine}",
        "return": f"{estimates['return'].words(3)} (95 % confidence)",
        "length": f"{estimates['length'].words(1)} control steps",
        "survived": estimates["survival"].percent_words(),
        **{name: estimate.words(3) for name, estimate in estimates.items() if name.startswith("error/")},
        "gap of return": evaluation.gap_words(),
        **({"given up": f"{evaluation.num_unfinished} episodes"} if evaluation.num_unfinished else {}),
    }


def load_task_policy(task: "RLTask[Any]") -> tuple[Path, Environment, NormalizedActorCritic]:
    """The path of the checkpoint that the config names, the environment to run it in, and its policy.

    Raises:
        ConfigError: There is no checkpoint, or it does not fit the task.
    """
    checkpoint = load_checkpoint(task.config.checkpoint, "checkpoint")
    # Native MuJoCo on one device, whatever trained the policy: a check from one simulator to the other.
    task.layout = SingleDevice(axis_name=task.device_axis)
    task.environment = env = task.eval_environment
    initial, model = task.initial_learner()
    learner = restored_policy(checkpoint, initial)
    return (
        checkpoint.path.absolute(),
        env,
        NormalizedActorCritic(eqx.combine(learner.params, static_leaves(model)), learner.normalizer),
    )


def output_dir(option: str, wanted: str | None, default: Path) -> Path:
    """The directory that an option names, or a default; made where there is none.

    Raises:
        ConfigError: It cannot be written to.
    """
    path = default if wanted is None else Path(wanted)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(f"Results cannot be written to {path} ({error.strerror}). Set {option}.") from error
    return path
