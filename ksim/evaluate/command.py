"""run_mode=eval: evaluating the policy of a checkpoint."""

import json
from typing import Any

from ksim.evaluate.evaluator import Evaluation, Evaluator
from ksim.evaluate.reports import EpisodeReport, Failures
from ksim.host.files import output_dir, whole_file
from ksim.host.signals import stop_on_signal
from ksim.host.terminal import Activity, print_figures, print_table
from ksim.log.run_log import run_log
from ksim.policy.load import load_task_policy
from ksim.task.result import RunResult
from ksim.task.rl import RLTask


def evaluate_checkpoint(task: RLTask[Any]) -> RunResult:
    """Loads a checkpoint, evaluates its policy, and prints and writes the results; see `RLTask.run`.

    Raises:
        ConfigError: There is no checkpoint, it does not fit the task, or the output cannot be written.
    """
    path, context, model = load_task_policy(task)
    # <run>/checkpoints/<number>
    out_dir = output_dir("eval_output", task.config.eval_output, path.parents[1])
    with run_log(task.config.log_level) as log, stop_on_signal() as stop:
        log.open(out_dir)
        with Activity.doing("Evaluating"):
            evaluation = Evaluator(context)(model, lambda: stop.signal is not None)
        if evaluation is None:
            return RunResult(exit_code=stop.exit_code, run_dir=path.parents[1], checkpoint=path)
        record = {"checkpoint": str(path), **evaluation.record()}
        with whole_file(out_dir / "evaluation.json") as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")
        report = EpisodeReport(lambda: context, out_dir, Failures(), lambda: stop.signal is not None)
        report(model, f"iteration_{path.name}", with_video=task.config.video, with_plots=task.config.plots)
        written = {"figures": out_dir / "evaluation.json", **report.paths}
        figures = evaluation_figures(evaluation) | {name: str(file) for name, file in written.items()}
        print_figures(f"Evaluation of {path}", figures)
        if evaluation.groups:
            print_table("By kind of episode", *group_rows(evaluation))
    return RunResult(
        exit_code=stop.exit_code,
        run_dir=path.parents[1],
        checkpoint=path,
        evaluation=record,
        output_dir=out_dir,
    )


def evaluation_figures(evaluation: Evaluation) -> dict[str, str]:
    """The results of an evaluation as printed: texts by name."""
    estimates = evaluation.figures
    return {
        "episodes": f"{evaluation.num_episodes}, one per environment, deterministic policy, in {evaluation.engine}",
        "return": f"{estimates['return'].words(3)} (95 % confidence)",
        "length": f"{estimates['length'].words(1)} control steps",
        "survived": estimates["survival"].percent_words(),
        **{name: estimate.words(3) for name, estimate in estimates.items() if name.startswith("error/")},
        "gap of return": evaluation.gap_words(),
        **({"unfinished": f"{evaluation.num_unfinished} episodes"} if evaluation.num_unfinished else {}),
    }


def group_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the kinds of episodes: the share completed, and the errors."""
    errors = [name for name in evaluation.figures if name.startswith("error/")]
    heads = ["", "completed", *(name.removeprefix("error/") for name in errors)]
    rows = [
        [group, figures["survival"].percent_words(), *(figures[name].words(3) for name in errors)]
        for group, figures in evaluation.groups.items()
    ]
    return heads, rows
