"""Evaluations, videos and plots during a run. They neither change nor end the training."""

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ksim.checkpoint.progress import Progress
from ksim.checkpoint.saver import Saver
from ksim.errors import ConfigError
from ksim.evaluate.curves import read_curves
from ksim.evaluate.evaluator import (
    Evaluation,
    Evaluator,
    Recorder,
    Recording,
    ShouldStop,
    evaluation_line,
    shortfall_message,
)
from ksim.evaluate.video import NO_GL, film, find_gl
from ksim.host.files import output_dir, write_whole
from ksim.host.signals import stop_on_signal
from ksim.host.terminal import Activity, Failures, print_figures, print_line, print_table
from ksim.log.jsonl import EVALUATIONS, read_evaluations
from ksim.log.logger import Loggers
from ksim.log.run_log import run_log
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.parallel.multihost import is_main_process
from ksim.policy.load import PolicyContext, load_task_policy, policy_context
from ksim.robot.describe import look_at
from ksim.robot.pose import stretched_height
from ksim.task.result import RunResult
from ksim.task.rl import RLTask
from ksim.types import LearnerState

logger = logging.getLogger(__name__)


class ReportedEpisode(NamedTuple):
    """An evaluated episode, with its video and plots as `AbstractLogger.log_files` takes them."""

    recording: Recording
    files: dict[str, Path]


class EpisodeReport:
    """Video and plots of one evaluated episode."""

    def __init__(
        self, get_context: Callable[[], PolicyContext], out_dir: Path, failures: Failures, should_stop: ShouldStop
    ) -> None:
        """`get_context` is called with the first episode, so that its failure is contained as well."""
        self._get_context, self._out_dir = get_context, out_dir
        self._failures, self._should_stop = failures, should_stop
        self._recorder: Recorder | None = None
        self._can_render = True
        self.paths: dict[str, Path] = {}

    def __call__(
        self, model: AbstractActorCritic, name: str, *, with_video: bool, with_plots: bool
    ) -> ReportedEpisode | None:
        """Runs the episode again, renders it to `videos/<name>` and plots it in `plots`.

        Returns:
            The episode with the files that could be written; None if no episode was recorded.
        """
        if not (with_video or with_plots):
            return None
        with self._failures.tolerate("recording"):
            self._recorder = self._recorder or _make_recorder(self._get_context())
            with Activity.doing("Recording an episode"):
                recording = self._recorder(model, self._should_stop)
            if recording is None:
                return None
            plots = self._plot(recording) if with_plots else {}
            videos = self._film(recording, name) if with_video else {}
            return ReportedEpisode(recording, plots | videos)
        return None

    def _plot(self, recording: Recording) -> dict[str, Path]:
        with self._failures.tolerate("plotting"), Activity.doing("Plotting"):
            from ksim.evaluate.plots import plot_episode  # noqa: PLC0415 - matplotlib is slow to import

            paths = plot_episode(recording, self._out_dir / "plots")
            self.paths |= {f"plot of the {path.stem}": path for path in paths}
            return {path.name: path for path in paths}
        return {}

    def _film(self, recording: Recording, name: str) -> dict[str, Path]:
        if recording.model is None:
            logger.info("No video: the environment shows no model (Environment.shown).")
            return {}
        if find_gl() is None:
            if self._can_render:  # reported once
                self._can_render = False
                logger.warning(NO_GL)
                print_line(f"Warning: no video. {NO_GL}")
            return {}
        with self._failures.tolerate("video"), Activity.doing("Filming"):
            paths = film(recording, self._out_dir / "videos" / name, self._should_stop)
            self.paths |= {f"video, {path.suffix[1:]}": path for path in paths}
            return {f"video{path.suffix}": path for path in paths}
        return {}


def _make_recorder(context: PolicyContext) -> Recorder:
    task = context.task
    return Recorder(context.env, seed=task.config.eval_seed, device=context.device, axis_name=task.device_axis)


class Reports:
    """Evaluations, videos and plots, during and after training, on process 0 alone.

    Attributes:
        paths: The newest files.
        last_line: The line of the last evaluation; empty if there was none.
    """

    def __init__(
        self,
        task: RLTask[Any],
        run_dir: Path,
        *,
        failures: Failures,
        should_stop: ShouldStop,
        loggers: Loggers,
        saver: Saver | None,
    ) -> None:
        """Reads the evaluations of a resumed run in process 0. `saver` is None in the others."""
        self._task, self._run_dir, self._failures, self._should_stop = task, run_dir, failures, should_stop
        self._loggers, self._saver = loggers, saver
        self._evaluator: Evaluator | None = None
        self._last_s = time.monotonic()
        self._last_iteration = 0
        self._num_evaluations = 0
        self._best_return = -math.inf
        self._episode_report = EpisodeReport(lambda: policy_context(task), run_dir, failures, should_stop)
        self.paths = self._episode_report.paths
        self.last_line = ""
        for record in read_evaluations(run_dir) if is_main_process() else ():
            self._last_iteration = record["iteration"]
            self._num_evaluations += 1
            mean_return = record["figures"]["return"]["mean"]
            self._best_return = max(self._best_return, -math.inf if mean_return is None else mean_return)

    @property
    def is_warm(self) -> bool:
        """Whether the first evaluation has begun: later ones do not compile."""
        return self._evaluator is not None

    def after_iteration(self, progress: Progress, learner: LearnerState) -> None:
        """Evaluates, and writes the video and plots of an episode if they are due."""
        self._evaluate(progress, learner)
        every = self._task.config.video_every_n_evaluations
        if every is not None and self._num_evaluations % every == 0 and progress.iterations_left != 0:
            self._report_episode(progress, learner)
        # Measured from the end of an evaluation, so that slow ones do not run back to back.
        self._last_s = time.monotonic()

    def at_end(self, progress: Progress, learner: LearnerState) -> None:
        """Evaluates the final policy, unless the run was asked to stop, and plots the learning curves."""
        was_done_before = not progress.num_done_here and self._last_iteration == progress.iteration
        if not is_main_process() or was_done_before:
            return
        config = self._task.config
        if config.eval_at_end and not self._should_stop():
            if self._last_iteration != progress.iteration:
                self._evaluate(progress, learner)
            self._report_episode(progress, learner)
        if config.plots:
            self._plot_learning(progress)

    def is_due(self, iteration: int) -> bool:
        """Whether an evaluation is due."""
        if not is_main_process() or self._should_stop():
            return False
        config = self._task.config
        by_iterations, by_seconds = config.eval_every_n_iterations, config.eval_every_n_seconds
        return (by_iterations is not None and iteration % by_iterations == 0) or (
            by_seconds is not None and time.monotonic() - self._last_s >= by_seconds
        )

    def _evaluate(self, progress: Progress, learner: LearnerState) -> None:
        self._num_evaluations += 1
        with self._failures.tolerate("evaluation"):
            evaluator = self._evaluator or Evaluator(policy_context(self._task))
            self._evaluator = evaluator
            with Activity.doing("Evaluating"):
                evaluation = evaluator(self._task.policy_of(learner), self._should_stop)
            if evaluation is None:
                return
            self._last_iteration = progress.iteration
            record = {"iteration": progress.iteration, "env_steps": progress.env_steps, **evaluation.record()}
            self._loggers.log_evaluation(record)
            mean_return = evaluation.figures["return"].mean
            if mean_return > self._best_return:
                self._best_return = mean_return
                if self._saver is not None:
                    self._saver.best = progress.iteration
            self.paths["evaluations"] = self._run_dir / EVALUATIONS
            shortfall = shortfall_message(evaluation, progress.last_episodes)
            self.last_line = evaluation_line(progress.iteration, evaluation)
            for line in filter(None, (self.last_line, shortfall)):
                print_line(line)
                logger.info(line)

    def _report_episode(self, progress: Progress, learner: LearnerState) -> None:
        if self._should_stop():
            return
        config, name, model = self._task.config, f"iteration_{progress.iteration}", self._task.policy_of(learner)
        episode = self._episode_report(model, name, with_video=config.video, with_plots=config.plots)
        if episode is not None:
            actions = {f"action/{name}": action_t for name, action_t in episode.recording.actions.items()}
            self._loggers.log_samples(actions, progress.iteration, progress.env_steps)
            self._loggers.log_files(episode.files, progress.iteration, progress.env_steps)

    def _plot_learning(self, progress: Progress) -> None:
        panels: dict[str, bytes] | None = None
        with self._failures.tolerate("plotting"), Activity.doing("Plotting"):
            from ksim.evaluate.plots import plot_learning  # noqa: PLC0415 - matplotlib is slow to import

            path = self._run_dir / "plots" / "learning.png"
            panels = plot_learning([read_curves(self._run_dir)], path, self._task.learner_info().plots)
            self.paths["learning curves"] = path
            self._loggers.log_files({path.name: path}, progress.iteration, progress.env_steps)
        with self._failures.tolerate("the report"), Activity.doing("Writing the report"):
            from ksim.evaluate.html_report import write_page  # noqa: PLC0415 - with the plots

            path = self._run_dir / "report.html"
            write_page([self._run_dir], path, panels)
            self.paths["report"] = path


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
        write_whole(out_dir / "evaluation.json", json.dumps(record, indent=2) + "\n")
        report = EpisodeReport(lambda: context, out_dir, Failures(), lambda: stop.signal is not None)
        episode = report(model, f"iteration_{path.name}", with_video=task.config.video, with_plots=task.config.plots)
        height = None if episode is None else height_words(episode.recording)
        written = {"figures": out_dir / "evaluation.json", **report.paths}
        figures = evaluation_figures(evaluation) | ({} if height is None else {"height of the base": height})
        figures |= {name: str(file) for name, file in written.items()}
        print_figures(f"Evaluation of {path}", figures)
        if evaluation.groups:
            print_table("By kind of episode", *group_rows(evaluation))
    return RunResult(
        exit_code=stop.exit_code, run_dir=path.parents[1], checkpoint=path, evaluation=record, output_dir=out_dir
    )


def evaluation_figures(evaluation: Evaluation) -> dict[str, str]:
    """The results of an evaluation as printed: texts by name."""
    estimates = evaluation.figures
    return {
        "episodes": f"{evaluation.num_episodes}, one per environment, deterministic policy, in {evaluation.engine}",
        "return": f"{estimates['return'].words(3)} (95 % confidence)",
        "length": f"{estimates['length'].words(1)} control steps",
        "survived": estimates["survival"].count_words(evaluation.num_episodes),
        **{name: estimate.words(3) for name, estimate in estimates.items() if name.startswith("error/")},
        "gap of return": evaluation.gap_words(),
        **({"unfinished": f"{evaluation.num_unfinished} episodes"} if evaluation.num_unfinished else {}),
    }


def height_words(recording: Recording) -> str | None:
    """The mean height of a robot on legs in an episode, beside that with stretched legs: a low one crawls.

    None for robots without legs or a free base, and on terrain.
    """
    if recording.model is None or recording.model.terrain is not None or not len(recording.base_position):
        return None
    mj_model, level = recording.model.mj_model, recording.model.ground.level
    height = float(recording.base_position[:, 2].mean()) - level
    try:
        found = look_at(mj_model)
    except ConfigError:
        return None
    stretched = None if found.base is None else stretched_height(mj_model, found.base, found.legs)
    return None if stretched is None else f"{height:.2f} m, {height / stretched:.0%} of that with stretched legs"


def group_rows(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table of the kinds of episodes: the share completed, and the errors."""
    errors = [name for name in evaluation.figures if name.startswith("error/")]
    heads = ["", "completed", *(name.removeprefix("error/") for name in errors)]
    rows = [
        [group, figures["survival"].percent_words(), *(figures[name].words(3) for name in errors)]
        for group, figures in evaluation.groups.items()
    ]
    return heads, rows
