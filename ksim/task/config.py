"""Options of every task."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import jax
from jax.core import eval_context
from xax.task.base import BaseConfig

from ksim.checks import check_divisible, check_rule, is_host
from ksim.config import CHECKPOINT_MODES, check_fields, field, seconds_of
from ksim.errors import ConfigError, is_misspelt, quoted
from ksim.log.console import MODES as CONSOLE_MODES
from ksim.parallel.collectives import DEVICE_AXIS
from ksim.parallel.job import find_job
from ksim.parallel.layout import AbstractLayout, SingleDevice
from ksim.physics import check_rates
from ksim.physics.select import ENGINES, PickedEngine, pick_engine

T = TypeVar("T")

RUN_MODES = {
    "train": "ksim.train.run:train",
    "eval": "ksim.evaluate.reports:evaluate_checkpoint",
    "view": "ksim.viewer.view:view_checkpoint",
    "export": "ksim.policy.export.exporter:export_checkpoint",
    "replay": "ksim.checkpoint.dump:replay_dump",
}
"""Functions of a task, as `module:function`, by the values of the option `run_mode`."""
MATMUL_PRECISIONS = ("highest", "high", "default")
LOG_LEVELS = ("debug", "info", "warning")
VIEWERS = ("auto", "native", "browser")
PRETRAINED = "pretrained"
"""Value of `checkpoint` or `load_weights` for the policy that comes with a task."""


def imported(path: str) -> Callable[..., Any]:
    """A function named as `module:function`. Imports the module, which can take seconds.

    Lets a task call functions of packages that import tasks, which it cannot import when it is loaded.
    """
    module, _, function = path.partition(":")
    return getattr(importlib.import_module(module), function)


def made_once(make: Callable[[Any], T]) -> functools.cached_property[T]:
    """A property computed at its first access, which may be during a trace: its arrays are not tracers."""

    @functools.wraps(make)
    def made(task: Any) -> T:
        with eval_context():
            return make(task)

    return functools.cached_property(made)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class RLConfig(BaseConfig):
    """Options of every task."""

    help_group: ClassVar[str] = "Run"

    num_envs: int = field(
        256,
        label="Number of environments",
        least=1,
        details="All devices together step this many environments; each device gets an equal share. More environments "
        "use a machine better and give smoother gradients, but learn less per control step. On a CPU with native "
        "MuJoCo, 256 learn fastest; on an accelerator, 2048 to 16384 are usual.",
        help="parallel environments, over all devices",
        fixed=True,
    )
    rollout_length: int = field(24, least=1, help="control steps per environment in each iteration")
    max_iterations: int | None = field(1000, above=0, help="stop after this many iterations; null: no limit")
    max_env_steps: int | None = field(None, above=0, help="stop after this many steps, summed over all environments")
    seed: int = field(0, least=0, most=2**32 - 1, help="random seed", fixed=True)
    engine: str = field(
        "auto",
        group="Environment",
        choices=("auto", *ENGINES),
        details="mjx runs on every device of JAX; mujoco is native MuJoCo on the CPU's threads and several times "
        "faster there; warp is MuJoCo Warp, for NVIDIA GPUs (pip install 'ksim-rl[warp]'). auto takes mujoco on a CPU; "
        "on an NVIDIA GPU warp, if it is installed and knows the model; else mjx. All compute the same MDP.",
        help="physics engine: auto, mjx (pure JAX), mujoco (native, on CPU threads) or warp (NVIDIA GPUs)",
    )
    warp_contacts: int | None = field(
        None,
        least=1,
        group="Environment",
        details="MuJoCo Warp allocates them, and drops those beyond: the metric dropped/contacts counts the control "
        "steps, and a warning says what to set. Null: 1.5 times the most in trials of the robot from its resets under "
        "random actions, and 8.",
        help="engine=warp: contacts of an environment; null: measured",
    )
    warp_constraints: int | None = field(
        None,
        least=1,
        group="Environment",
        details="As warp_contacts, for constraints: rows of contacts, joint limits, friction and equalities.",
        help="engine=warp: constraints of an environment; null: measured",
    )
    dt: float = field(
        0.004,
        above=0,
        group="Environment",
        details="ctrl_dt must be a multiple of it. Smaller steps are more accurate and stable, and cost time in "
        "proportion.",
        help="seconds per physics step",
    )
    ctrl_dt: float = field(0.02, above=0, group="Environment", help="seconds per control step")
    run_mode: str = field(
        "train",
        choices=tuple(RUN_MODES),
        help="train; eval, view or export the policy of a checkpoint; or replay a dump",
        saved=False,
    )
    run_dir: str | None = field(None, help="directory of the run; default: a new runs/<task>/run_<number>", saved=False)
    checkpoint: str | None = field(
        None,
        group="Checkpoints",
        details="A run's directory stands for its newest checkpoint. The options with which it was trained are read "
        "from it, and options on the command line change them.",
        help="input of the other run_modes: a run directory, one of its checkpoints, checkpoints/best, or pretrained: "
        "the policy that comes with the task",
        saved=False,
    )
    eval_num_envs: int = field(
        64, least=1, group="Evaluation", help="environments in an evaluation; each runs one whole episode"
    )
    eval_seed: int = field(
        0, least=0, most=2**32 - 1, group="Evaluation", help="random seed of evaluations; every evaluation uses it"
    )
    eval_every_n_seconds: float | None = field(
        300.0,
        above=0,
        group="Evaluation",
        details="Evaluations run the deterministic policy for one whole episode in eval_num_envs environments, and "
        "decide which checkpoint is the best.",
        help="seconds between evaluations during training; null: none",
    )
    eval_every_n_iterations: int | None = field(
        None, above=0, group="Evaluation", help="iterations between evaluations during training; null: none"
    )
    eval_at_end: bool = field(True, group="Evaluation", help="evaluate when training ends")
    eval_output: str | None = field(
        None, group="Evaluation", help="output directory of run_mode=eval; default: the checkpoint's run", saved=False
    )
    export_dir: str | None = field(
        None, group="Checkpoints", help="output directory of run_mode=export; default: export/ in the run", saved=False
    )
    video: bool = field(True, group="Evaluation", help="render a video of the last evaluation, as MP4 and GIF")
    video_every_n_evaluations: int | None = field(
        None,
        above=0,
        group="Evaluation",
        help="also render a video, and plot the episode, of every nth evaluation before the last; null: none",
    )
    plots: bool = field(
        True, group="Evaluation", help="plot learning curves and an evaluated episode when training ends"
    )
    viewer: str = field(
        "auto",
        group="Viewer",
        choices=VIEWERS,
        help="viewer for run_mode=view: auto, native (a window) or browser (for machines without a display)",
        saved=False,
    )
    viewer_host: str = field(
        "127.0.0.1",
        group="Viewer",
        help="address on which the browser viewer listens; 0.0.0.0: reachable from other machines",
        saved=False,
    )
    viewer_port: int = field(
        8080,
        least=1,
        most=2**16 - 1,
        group="Viewer",
        help="port of the browser viewer; if it is taken, the next free one",
        saved=False,
    )
    viewer_num_envs: int = field(
        1,
        least=1,
        group="Viewer",
        help="environments that the browser viewer shows side by side, under the same commands",
        saved=False,
    )
    viewer_while_training: bool = field(
        False,
        group="Viewer",
        details="A process with a low priority shows the newest policy while a page is open, in slow motion where the "
        "machine has no time left. Needs the extra `viewer`.",
        help="with run_mode=train, show the newest policy in a browser",
        saved=False,
    )
    resume: str | None = field(
        None,
        group="Checkpoints",
        details="Everything continues exactly where the checkpoint was written: environments, optimizer, random "
        "numbers, curricula. The number of devices may differ. With auto the same command starts a run and resumes it.",
        help="run to resume: its directory, one of its checkpoints, or auto (run_dir if given, else the newest run)",
        saved=False,
    )
    load_weights: str | None = field(
        None,
        group="Checkpoints",
        details="The new run has its own options, curricula and optimizer state. Its network and observations must "
        "have the shapes of the checkpoint's.",
        help="checkpoint from which a new run takes the networks and observation statistics, and nothing else",
        saved=False,
    )
    save_every_n_iterations: int | None = field(
        None, above=0, group="Checkpoints", help="iterations between checkpoints; null: by time only"
    )
    save_every_n_seconds: float | None = field(
        60.0, above=0, group="Checkpoints", help="seconds between checkpoints; null: by iterations only"
    )
    max_to_keep: int = field(
        3, least=1, group="Checkpoints", help="number of newest checkpoints to keep, besides the best"
    )
    max_runtime: Any = field(
        None,
        details="For queues that end jobs after a fixed time: the run saves a checkpoint in time and exits with 75, "
        "so that a script can submit it again with resume=auto.",
        help="after this time, save, stop and exit with code 75, ready to be resumed",
        kind="seconds, a time as in 11:55:00, or null",
        saved=False,
    )
    hang_timeout_s: float | None = field(
        1800.0,
        above=0,
        most=1e6,
        details="A collective that waits for a dead process, or a deadlock, would wait forever. The run ends with "
        "exit code 70 instead, and its checkpoints stay.",
        help="abort and print the stacks of all threads when an iteration or evaluation takes longer; null: never",
    )
    matmul_precision: str = field(
        "highest",
        group="Devices",
        choices=MATMUL_PRECISIONS,
        help="precision of 32-bit matrix products: highest, high (TF32 on NVIDIA, 3 passes on TPU) or default",
    )
    dump_on_nan: bool = field(
        True, group="Checkpoints", help="save the state before the first non-finite step or update, for run_mode=replay"
    )
    max_bad_updates: int = field(32, least=1, help="stop after skipping this many non-finite updates in a row")
    log_level: str = field(
        "info",
        choices=LOG_LEVELS,
        help="lowest level written to process_<i>.log: debug, info or warning",
        saved=False,
        per_process=True,
    )
    console: str = field(
        "auto",
        choices=CONSOLE_MODES,
        help="what is shown of iterations: live (a view that stays in place), plain (a line each), or auto: live in a "
        "terminal",
        saved=False,
    )
    tensorboard: bool = field(True, help="write TensorBoard events beside metrics.jsonl")

    @property
    def steps_per_action(self) -> int:
        """Environment steps counted per control step; more than 1 if the environment repeats an action."""
        return 1

    @property
    def env_steps_per_iteration(self) -> int:
        """Steps of all environments per iteration, in the unit of `max_env_steps` and of all reported step counts."""
        return self.num_envs * self.rollout_length * self.steps_per_action

    @property
    def device_axis(self) -> str:
        """The name of the device axis."""
        return DEVICE_AXIS

    def join_job(self) -> None:
        """Connects this process to the others of its job. A task on one device has none, so this does nothing."""

    def training_layout(self, task_name: str) -> AbstractLayout:
        """The layout of training over the devices of all processes; here a single device.

        Raises:
            ConfigError: The devices do not exist, or there are more processes than the task can use.
        """
        job = find_job()
        if job is not None and (job.num_processes or 1) > 1:
            raise ConfigError(
                f"{task_name} runs in one process on one device, but {job.source} has started several. "
                "Derive it from DistributedPPOTask, or start one process."
            )
        return SingleDevice(jax.local_devices()[0], self.device_axis)

    def check_shares(self, num_devices: int) -> None:
        """Raises ConfigError unless the batch divides evenly over this many devices."""
        check_divisible("Number of environments", self.num_envs, "number of devices", num_devices)

    def pick_engine(self, platform: str) -> PickedEngine:
        """The training engine on a platform (`cpu`, `gpu` or `tpu`).

        Raises:
            ConfigError: The engine is unknown.
        """
        return pick_engine(self.engine, platform)

    def validate(self) -> None:
        """Raises ConfigError if a value is invalid, or does not fit another one."""
        check_fields(self)
        check_rates(float(self.dt), float(self.ctrl_dt))
        seconds_of("max_runtime", self.max_runtime)
        for name in ("run_dir", "checkpoint", "resume", "load_weights", "eval_output", "export_dir", "viewer_host"):
            if getattr(self, name) == "":
                raise ConfigError(f"{name} ('') must not be empty. Leave it out for the default.")
        is_met, rule = is_host(self.viewer_host), "an address of this machine, as 127.0.0.1 or 0.0.0.0"
        check_rule(f"viewer_host ({quoted(self.viewer_host)})", is_met, rule)
        self._check_viewer()
        self._check_sources()
        for name, value in (("warp_contacts", self.warp_contacts), ("warp_constraints", self.warp_constraints)):
            if value is not None and self.engine not in ("auto", "warp"):
                raise ConfigError(f"{name} ({value}) is for engine=warp. Set that, or {name}=null.")

    def with_pretrained(self, directory: Path | None, task_name: str) -> Self:
        """These options, with the task's own policy in place of the word `pretrained`.

        `directory` holds that policy, as written by `run_mode=export`; None if the task has none. By default, eval and
        export then write to runs/<task>/pretrained instead of beside that policy.

        Raises:
            ConfigError: `pretrained` is used, and the task has no policy; or it is misspelt, and the task has one.
        """
        given = {name: getattr(self, name) for name in ("checkpoint", "load_weights")}
        for name, path in given.items():
            if directory and path is not None and is_misspelt(path, PRETRAINED) and not Path(path).exists():
                raise ConfigError(f"{name} ({path}) does not exist. Did you mean {PRETRAINED!r}?")
        named = [name for name, path in given.items() if path == PRETRAINED]
        if not named:
            return self
        if directory is None:
            raise ConfigError(
                f"{named[0]}=pretrained is for tasks that come with a policy, and {task_name} does not. Give the "
                "directory of a run."
            )
        changes: dict[str, Any] = dict.fromkeys(named, str(directory))
        output = {"eval": "eval_output", "export": "export_dir"}.get(self.run_mode)
        if output is not None and getattr(self, output) is None:
            changes[output] = f"runs/{task_name}/{PRETRAINED}"
        return dataclasses.replace(self, **changes)

    def _check_viewer(self) -> None:
        """Raises ConfigError if an option of the viewer does not fit another one."""
        if self.viewer == "native":
            for name, value, default in (
                ("viewer_num_envs", self.viewer_num_envs, 1),
                ("viewer_while_training", self.viewer_while_training, False),
            ):
                if value != default:
                    raise ConfigError(f"{name} ({value}) is for viewer=browser. Choose that, or remove {name}.")

    def _check_sources(self) -> None:
        """Raises ConfigError if an input or output path does not fit run_mode."""
        if self.run_mode in CHECKPOINT_MODES and self.checkpoint is None:
            raise ConfigError(f"run_mode={self.run_mode} needs a policy. Add checkpoint=<run directory>.")
        if self.run_mode not in CHECKPOINT_MODES and self.checkpoint is not None:
            raise ConfigError(
                f"checkpoint ({self.checkpoint:.200}) is read by run_mode=eval, view, export and replay. Add one, or "
                "resume the run: resume instead of checkpoint."
            )
        for name in ("resume", "load_weights"):
            if self.run_mode != "train" and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} ({getattr(self, name):.200}) is for run_mode=train. Give checkpoint instead."
                )
        if self.resume not in (None, "auto") and self.load_weights is not None:
            raise ConfigError(
                f"resume ({self.resume:.200}) resumes a run, but load_weights ({self.load_weights:.200}) starts a new "
                "one with the policy of another. Give one of them, or resume=auto, which starts a run if there is none."
            )
        for name, mode in (("eval_output", "eval"), ("export_dir", "export")):
            if self.run_mode != mode and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} ({getattr(self, name):.200}) is written by run_mode={mode}. Add it, or remove this."
                )
