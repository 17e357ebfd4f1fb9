r"""Returns of several variants at equal numbers of steps, over seeds.

    python -m benchmarks.learning runs/learning --tasks playground/CartpoleBalance playground/CheetahRun \
        --seeds 0 1 2 --steps 1_000_000 --options num_envs=512 rollout_length=32 num_batches=8 num_passes=8 \
        --variant ksim --variant squash squash=true --variant brax learner=brax

Tasks are `playground/ENV`, `brax/ENV` or `MODULE:CLASS`, such as `examples.point_mass:PointMassTask`. A variant is a
name and options that it adds. Two of them are the benchmark's own: `learner=reppo` trains with ksim's REPPO and
`learner=brax` with Brax's PPO, patched to run (see `benchmarks.brax_ppo`), and `reward_scale=10` multiplies the rewards
that the learner sees.

Runs follow each other, each in a process of its own, with an empty compilation cache unless `--cache` names one. A run
that is done becomes a line of `results.jsonl` in the directory. Started again, the benchmark leaves it out, and resumes
a run of ksim that was cut off from its last checkpoint; Brax's starts again. So seeds, tasks and variants can be added
later. A result with other options is an error.

- *return*: of the deterministic policy over whole episodes, not scaled; mean over seeds, with Student's 95 % interval,
  mean +- t(0.975, n - 1) s / sqrt(n), where s is the standard deviation of the n seeds. Evaluations are as many and
  after the same steps for all variants with the same batch; others are interpolated linearly.
- *steps/s*: control steps over all environments per second of training, without compilation and evaluations: ksim's
  from its third iteration on, Brax's from its second evaluation on. On a CPU ksim takes one device per core with MJX,
  and Brax one device; `num_devices` sets both.
- *first update*: seconds from the start of the process to the end of its first iteration, with nothing cached. Brax's
  is measured in a process of its own, without evaluations. It is left out with `--cache`.

It prints the table as Markdown and draws the curves to `curves.png`.
"""

import argparse
import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.brax_ppo import FIRST_UPDATE
from benchmarks.learning_table import draw_curves, table
from benchmarks.learning_task import SUITES, task_of
from benchmarks.startup import timed_lines

from ksim.checks import check_choice, check_count, check_positive, check_rule, pick_num_batches
from ksim.envs.playground import published_for_brax
from ksim.envs.task import parsed_options
from ksim.errors import ConfigError
from ksim.host.files import write_whole
from ksim.host.plain_yaml import FRACTION
from ksim.log.jsonl import read_evaluations, read_metrics
from ksim.task.overrides import parse_overrides

OWN = ("learner", "reward_scale")
"""Options of a variant that are the benchmark's."""
QUIET = ("video=false", "plots=false", "tensorboard=false", "eval_every_n_seconds=null", "eval_at_end=false")
SET = (
    *("seed", "max_iterations", "max_env_steps", "run_dir", "resume", "eval_every_n_iterations"),
    *(option.partition("=")[0] for option in QUIET),
)
"""Options that the benchmark sets itself."""
WARM_UP = 2
"""Iterations of ksim that do not count for its speed."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        task: The task's name.
        variant: The variant's name.
        seed: The seed.
        options: Options, as on the command line.
        learner: `ksim`, `reppo` or `brax`.
        reward_scale: What the rewards that the learner sees are multiplied by.
        steps: Control steps over all environments, rounded up to whole iterations between evaluations.
        num_evaluations: Evaluations, equally far apart.
    """

    task: str
    variant: str
    seed: int
    options: tuple[str, ...]
    learner: str
    reward_scale: float
    steps: int
    num_evaluations: int

    @property
    def name(self) -> str:
        """A unique name of the run, used for its directory."""
        return f"{self.task}-{self.variant}-{self.seed}".replace("/", "_").replace(":", "_")

    def record(self) -> dict[str, Any]:
        """The fields of the run, as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def config(self) -> Any:
        """The task's options.

        Raises:
            ConfigError: There is no such task, or no such option.
        """
        return parse_overrides(task_of(self.task, self.learner)[1], [*self.options, f"seed={self.seed}"])

    def iterations_per_evaluation(self, config: Any) -> int:
        """Whole iterations between two evaluations."""
        return -(-self.steps // (config.num_envs * config.rollout_length * self.num_evaluations))


def train_with_ksim(run: Run, directory: Path, cache: Path | None) -> dict[str, Any]:
    """Trains with ksim, from the last checkpoint where there is one; returns what its result says."""
    config, run_dir = run.config(), directory / run.name
    period = run.iterations_per_evaluation(config)
    limits = [f"max_iterations={period * run.num_evaluations}", "max_env_steps=null"]
    reports = [*QUIET, f"eval_every_n_iterations={period}"]
    where = [f"run_dir={run_dir}", "resume=auto", f"seed={run.seed}"]
    options = [f"learner={run.learner}", f"reward_scale={run.reward_scale}", *run.options, *limits, *reports, *where]
    seen = directory / f"{run.name}.first_update"
    command, log = ["-m", "benchmarks.learning_task", run.task, *options], directory / f"{run.name}.log"
    for elapsed_s, line in logged(command, log, cache):
        if line.startswith(FIRST_UPDATE) and cache is None:
            seen.write_text(f"{elapsed_s}\n")
    spent = ("iteration", "logging", "saving", "callbacks")
    rows = [row for row in read_metrics(run_dir) if row["iteration"] > WARM_UP]
    seconds = sum(row.get(f"time/{name}_s") or 0.0 for row in rows for name in spent)
    steps = len(rows) * config.num_envs * config.rollout_length
    evaluations = read_evaluations(run_dir)
    # ksim and Brax count the repeated steps of an action.
    return {
        "evaluations": [
            {"env_steps": x["env_steps"] // config.steps_per_action, "return": x["figures"]["return"]["mean"]}
            for x in evaluations
        ],
        "steps_per_s": steps / seconds if rows else None,
        "first_update_s": float(seen.read_text()) if seen.exists() else None,
    }


def train_with_brax(run: Run, directory: Path, cache: Path | None) -> dict[str, Any]:
    """Trains with Brax's PPO from its start; returns what its result says."""
    arguments, out = json.dumps(brax_arguments(run)), directory / f"{run.name}.evaluations.jsonl"
    command, log = ["-m", "benchmarks.brax_ppo", run.task, arguments], directory / f"{run.name}.log"
    first_s = None
    if cache is None:
        for elapsed_s, line in logged([*command, "--first-update"], log, cache):
            first_s = elapsed_s if line.startswith(FIRST_UPDATE) else first_s
    for _ in logged([*command, "--out", str(out)], log, cache):
        pass
    evaluations = [json.loads(line) for line in out.read_text().splitlines()]
    for evaluation in evaluations:
        evaluation["env_steps"] //= run.config().steps_per_action
    # The first of them compiled.
    steps, seconds = (evaluations[-1][x] - evaluations[0][x] for x in ("env_steps", "training_s"))
    return {
        "evaluations": [{name: x[name] for name in ("env_steps", "return")} for x in evaluations],
        "steps_per_s": steps / seconds if len(evaluations) > 1 else None,
        "first_update_s": first_s,
    }


def brax_arguments(run: Run) -> dict[str, Any]:
    """Arguments of Brax's PPO for the same batches, networks, discount and steps as ksim's options.

    What Playground publishes for Brax and ksim has no option for, such as the scale of rewards, stays as published.

    Raises:
        ConfigError: Brax's PPO cannot do what the options say.
    """
    suite, _, env = run.task.partition("/")
    if suite not in SUITES:
        raise ConfigError(f"{run.task} is no environment of Playground or Brax, which learner=brax needs.")
    config = run.config()
    if config.randomize or config.model != "mlp":
        raise ConfigError("learner=brax is compared with model=mlp and randomize=false. Leave these options out.")
    if isinstance(config.num_devices, str):
        raise ConfigError(f"num_devices ({config.num_devices}) must be a number for learner=brax.")
    published = published_for_brax(env) if suite == "playground" else {"max_grad_norm": config.max_grad_norm}
    num_batches = pick_num_batches(config.num_envs, config.batch_size, config.num_batches)
    num_evaluated_steps = run.iterations_per_evaluation(config) * config.num_envs * config.rollout_length
    names = {"policy_obs_key": config.actor_obs, "value_obs_key": config.critic_obs}
    return {
        "env_options": parsed_options(config.env_options),
        "num_devices": config.num_devices,
        "policy_hidden_layer_sizes": config.actor_sizes,
        "value_hidden_layer_sizes": config.critic_sizes,
        **{key: name for key, name in names.items() if name is not None},
        "num_timesteps": run.num_evaluations * num_evaluated_steps * config.action_repeat,
        "num_evals": run.num_evaluations + 1,  # the first of them before training
        # New starts after each evaluation, and not more often: as many as published would round the steps up.
        "num_resets_per_eval": 1 if published.get("num_resets_per_eval") else 0,
        "num_eval_envs": config.eval_num_envs,
        "num_envs": config.num_envs,
        "unroll_length": config.rollout_length,
        "batch_size": config.num_envs // num_batches,
        "num_minibatches": num_batches,
        "num_updates_per_batch": config.num_passes,
        "episode_length": config.episode_length,
        "action_repeat": config.action_repeat,
        "learning_rate": config.learning_rate,
        "entropy_cost": config.entropy_coef,
        "discounting": config.gamma,
        "gae_lambda": config.gae_lambda,
        "clipping_epsilon": config.clip_param,
        "max_grad_norm": published.get("max_grad_norm"),
        "normalize_observations": config.normalize_observations,
        "reward_scaling": run.reward_scale * published.get("reward_scaling", 1.0),
        "seed": run.seed,
    }


TRAINERS = {"ksim": train_with_ksim, "reppo": train_with_ksim, "brax": train_with_brax}


def logged(arguments: list[str], log: Path, cache: Path | None) -> Iterator[tuple[float, str]]:
    """Lines of a new Python process, with the seconds since its start, and written to the end of a file.

    Args:
        arguments: Those of the interpreter.
        log: The file.
        cache: The directory of compiled programs; None for an empty one.

    Raises:
        RuntimeError: The process failed.
    """
    with log.open("a") as file, tempfile.TemporaryDirectory() as empty:
        for elapsed_s, line in timed_lines(arguments, os.getcwd(), empty if cache is None else str(cache.resolve())):
            file.write(line)
            file.flush()
            yield elapsed_s, line


def runs_of(args: argparse.Namespace) -> list[Run]:
    """The runs that the command line asks for: all variants of a task and a seed beside each other.

    Raises:
        ConfigError: A variant cannot be.
    """
    variants = args.variant or [["ksim"]]
    names = [name for name, *_ in variants]
    if len(set(names)) < len(names) or any("=" in name for name in names):
        raise ConfigError(f"Variants ({', '.join(names)}) must each have a name of their own, then options.")
    runs = [
        make_run(task, name, seed, [*args.options, *options], steps=args.steps, num_evaluations=args.evaluations)
        for task in args.tasks
        for seed in args.seeds
        for name, *options in variants
    ]
    for run in runs:
        brax_arguments(run) if run.learner == "brax" else run.config()
    return runs


def make_run(task: str, variant: str, seed: int, options: Sequence[str], *, steps: int, num_evaluations: int) -> Run:
    """A run, of options in which the benchmark's own are among the task's.

    Raises:
        ConfigError: The benchmark's own cannot be, or another is one that it sets itself.
    """
    parts = {option: option.partition("=") for option in options}
    own = {name: value for name, _, value in parts.values() if name in OWN}
    learner, scale = own.get("learner", "ksim"), own.get("reward_scale", "1")
    check_choice("learner", learner, tuple(TRAINERS))
    check_rule(f"reward_scale ({scale})", re.fullmatch(FRACTION, scale) is not None, "a positive number")
    check_positive("reward_scale", float(scale))
    for option, (name, _, _) in parts.items():
        if name in SET:
            raise ConfigError(f"{option} is set by the benchmark. Use --seeds, --steps and --evaluations.")
    rest = tuple(option for option, (name, _, _) in parts.items() if name not in OWN)
    return Run(task, variant, seed, rest, learner, float(scale), steps, num_evaluations)


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results in a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def result_of(run: Run, results: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The result of a run; None where it has not been done.

    Raises:
        ConfigError: There is one of the same name with other options.
    """
    for result in results:
        if all(result["run"][name] == getattr(run, name) for name in ("task", "variant", "seed")):
            if result["run"] != run.record():
                raise ConfigError(
                    f"There is a result of {run.name} with other options: {result['run']}. Give the variant another "
                    "name, or take another directory."
                )
            return result
    return None


def machine() -> dict[str, Any]:
    """The machine and the versions that the runs used, for the results."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = {name: version(name) for name in ("jax", "mujoco", "mujoco-mjx")}
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "python": platform.python_version(), **versions, "commit": commit.stdout.strip()}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program; returns the exit code: 1 if a run failed, 2 for invalid input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where results are, and runs")
    parser.add_argument("--tasks", nargs="+", required=True, metavar="TASK")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--steps", type=int, default=1_000_000, help="control steps over all environments")
    parser.add_argument("--evaluations", type=int, default=8, help="evaluations of each run")
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="options of all runs")
    parser.add_argument("--variant", nargs="+", action="append", metavar=("NAME", "KEY=VALUE"))
    parser.add_argument("--cache", type=Path, metavar="DIR", help="compilation cache of all runs, which saves time")
    parser.add_argument("--only-table", action="store_true", help="run nothing, show what is there")
    args = parser.parse_args(argv)
    path = args.directory / "results.jsonl"
    try:
        check_count("--steps", args.steps)
        check_count("--evaluations", args.evaluations)
        runs = runs_of(args)
        results = read_results(path)
        missing = [run for run in runs if result_of(run, results) is None]
    except ConfigError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    num_failed = 0 if args.only_table else run_all(missing, args.directory, args.cache)
    results = [result for run in runs if (result := result_of(run, read_results(path))) is not None]
    if results:
        print(table(results))
        draw_curves(results, args.directory / "curves.png")
    return int(num_failed > 0)


def run_all(runs: Sequence[Run], directory: Path, cache: Path | None = None) -> int:
    """Does runs one after another and writes down their results; returns how many failed."""
    directory.mkdir(parents=True, exist_ok=True)
    path, num_failed = directory / "results.jsonl", 0
    for number, run in enumerate(runs, 1):
        print(f"{number}/{len(runs)} {run.name} ...", flush=True)
        start_s = time.perf_counter()
        try:
            found = TRAINERS[run.learner](run, directory, cache)
        except RuntimeError as error:
            num_failed += 1
            print(f"{run.name} failed: {error} Its log: {directory / run.name}.log", file=sys.stderr, flush=True)
            continue
        result = {"run": run.record(), **found, "seconds": time.perf_counter() - start_s, "machine": machine()}
        write_whole(path, "".join(json.dumps(x) + "\n" for x in [*read_results(path), result]))
    return num_failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command resumes the benchmark.")
