"""run_mode=export: export of a checkpoint's policy for other programs."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ksim.checkpoint.format import read_checkpoint
from ksim.checkpoint.run_dir import holds_run
from ksim.checkpoint.snapshot import write_policy_alone
from ksim.errors import ConfigError, RunError
from ksim.host.files import output_dir, write_whole
from ksim.host.machine import import_extra
from ksim.host.terminal import print_figures, warn_user
from ksim.nn.actor_critic import act
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.physics.model import edited_spec, load_spec
from ksim.policy.export.metadata import policy_metadata
from ksim.policy.export.robot_file import ROBOT_FILE, robot_files
from ksim.policy.load import PolicyContext, load_task_policy, program_arrays
from ksim.policy.program import DeterministicPolicy, deterministic_policy, export_policy, policy_arrays
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.result import RunResult
from ksim.task.rl import RLTask

_ONNX, _PROGRAM, _METADATA, _ROBOT = "policy.onnx", "policy.jaxexport", "policy.json", "robot"
TOLERANCE = 1e-4
"""Tolerated difference of actions between ONNX Runtime and JAX, relative to 1 + |action|: far above rounding."""

_CHECKED_STEPS = 8
_CHECKED_ROWS = 16

Step = Callable[[Mapping[str, Any], Any], tuple[Any, Any]]
"""`(observations, memory) -> (action, memory)`, one row per robot."""


def export_checkpoint(task: RLTask[Any]) -> RunResult:
    """Writes the policy of a checkpoint as policy.onnx, policy.jaxexport and policy.json; see `RLTask.run`.

    The policy's part of the checkpoint is written beside them, so that the directory can be passed as `checkpoint`, and
    in `robot` the robot as an MJCF file with its meshes.

    Raises:
        ConfigError: There is no checkpoint, it does not fit the task, the policy cannot be exported, a package is
            missing, or the files cannot be written. If only ONNX does not support an operation of the policy, the
            other files are written.
        RunError: The ONNX model computes other actions than the policy. The other files are written.
    """
    for package in ("onnx", "onnxruntime"):
        import_extra(package, "export", "run_mode=export")
    if task.config.export_dir is not None and holds_run(Path(task.config.export_dir)):
        raise ConfigError(
            f"export_dir ({task.config.export_dir:.200}) is the directory of a run, whose checkpoints the policy's "
            "would replace. Choose another."
        )
    checkpoint, context, model = load_task_policy(task)
    # <run>/checkpoints/<number>
    out_dir = output_dir("export_dir", task.config.export_dir, checkpoint.parents[1] / "export")
    programs = program_arrays(model, context.task.obs_sizes)
    policy_alone = write_policy_alone(read_checkpoint(checkpoint), out_dir, programs)
    # Independent of the run's precision: ONNX Runtime has only float32.
    with jax.default_matmul_precision("highest"):
        policy, metadata = described_policy(context, model, policy_alone, out_dir)
        _write(out_dir, program_files(policy, metadata))
        robot = _write_robot(out_dir / _ROBOT, context)
        try:
            onnx_content = onnx_file(policy, metadata)
            difference = largest_difference(onnx_content, model)
        except Exception as error:  # the packages raise various types
            (out_dir / _ONNX).unlink(missing_ok=True)  # from an earlier export
            kind = RunError if isinstance(error, RunError) else ConfigError
            cause = str(error) if isinstance(error, ConfigError | RunError) else f"ONNX cannot run the policy: {error}."
            raise kind(f"{cause} {_PROGRAM} and {_METADATA} are in {out_dir}, {_ONNX} is not.") from error
    _write(out_dir, {_ONNX: onnx_content})
    figures = {
        "ONNX": f"{out_dir / _ONNX} (metadata inside)",
        "jax.export": str(out_dir / _PROGRAM),
        "metadata": str(out_dir / _METADATA),
        "robot": robot,
        "checkpoint": f"{policy_alone} (the policy alone)",
        "ONNX Runtime against JAX": f"{difference:.1e}, the largest difference of an action",
    }
    print_figures(f"Export of {checkpoint}", figures)
    return RunResult(exit_code=0, run_dir=checkpoint.parents[1], checkpoint=checkpoint)


def described_policy(
    context: PolicyContext, model: NormalizedActorCritic, checkpoint: Path, out_dir: Path
) -> tuple[DeterministicPolicy, dict[str, Any]]:
    """The policy with its arrays as constants, and its metadata."""
    policy, arrays = deterministic_policy(model, context.task.obs_sizes), policy_arrays(model)
    return policy.bound(arrays), policy_metadata(context, policy, model, checkpoint.resolve(), out_dir.resolve())


def program_files(policy: DeterministicPolicy, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """The contents of files by name: the policy as a JAX program, and the metadata.

    Raises:
        ConfigError: The policy cannot be exported.
    """
    return {_PROGRAM: export_policy(policy), _METADATA: (json.dumps(metadata, indent=2) + "\n").encode()}


def onnx_file(policy: DeterministicPolicy, metadata: Mapping[str, Any]) -> bytes:
    """The content of an ONNX file with the policy and the metadata.

    Raises:
        ConfigError: The policy uses an operation that is not covered.
    """
    from ksim.policy.export.onnx import onnx_policy  # noqa: PLC0415 - onnx is an extra

    return onnx_policy(policy, {name: json.dumps(value) for name, value in metadata.items()}).SerializeToString()


def _write_robot(directory: Path, context: PolicyContext) -> str:
    """Writes the robot, as training has it on flat ground; returns where it is, or why it is not, in words."""
    task, env = context.task, context.env
    if not isinstance(env, MdpEnvironment):
        return "none: the environment has no model of ksim's"
    try:
        spec = edited_spec(load_spec(task.get_robot()), dt=task.config.dt, edits=[env.mdp.edit_spec])
        _write(directory, robot_files(spec))
    except ConfigError as error:
        warn_user(str(error))
        return "not written"
    return str(directory / ROBOT_FILE)


def _write(directory: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        write_whole(directory / name, content)


def largest_difference(onnx_model: bytes, model: NormalizedActorCritic) -> float:
    """The largest difference between actions of ONNX Runtime and of the model, on observations like those of training.

    Raises:
        RunError: The difference is larger than rounding explains.
    """
    step, memory = onnx_step(onnx_model), None
    forward = jax.jit(jax.vmap(lambda obs, carry: act(model, obs, carry)))
    carry = jax.tree.map(lambda x: jnp.broadcast_to(x, (_CHECKED_ROWS, *x.shape)), model.initial_carry())
    rng, largest = np.random.default_rng(0), 0.0
    for _ in range(_CHECKED_STEPS):
        obs = {
            group: np.asarray(
                mean + np.sqrt(model.normalizer.variance[group]) * rng.normal(size=(_CHECKED_ROWS, mean.size)),
                np.float32,
            )
            for group, mean in model.normalizer.mean.items()
        }
        expected, carry = forward(obs, carry)
        action, memory = step(obs, memory)
        difference = np.abs(action - np.asarray(expected))
        if not (difference <= TOLERANCE * (1 + np.abs(expected))).all():
            raise RunError(
                f"ONNX Runtime's actions differ from the policy's by {difference.max():.1e}, more than rounding "
                "explains. Look for an operation of the network that amplifies it, or is not finite."
            )
        largest = max(largest, float(difference.max()))
    return largest


def onnx_step(onnx_model: bytes | Path) -> Step:
    """An exported policy in ONNX Runtime. A memory of None means the start of an episode."""
    import onnxruntime  # noqa: PLC0415 - an extra

    source = onnx_model if isinstance(onnx_model, bytes) else str(onnx_model)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    parts = json.loads(metadata["memory"])
    groups = {group: layout["input"] for group, layout in json.loads(metadata["observations"]).items()}
    takes_one_row = session.get_inputs()[0].shape[0] == 1

    def run(obs: Mapping[str, Any], memory: Any) -> tuple[Any, Any]:
        given = {name: np.asarray(obs[group]) for group, name in groups.items()}
        action, *after = session.run(None, given | memory)
        return action, {part["input"]: x for part, x in zip(parts, after, strict=True)}

    def step(obs: Mapping[str, Any], memory: Any) -> tuple[Any, Any]:
        num_rows = len(next(iter(obs.values())))
        if memory is None:
            start = {part["input"]: np.asarray(part["start"], part["dtype"]) for part in parts}
            memory = {name: np.broadcast_to(x, (num_rows, *x.shape)) for name, x in start.items()}
        if not takes_one_row:
            return run(obs, memory)
        rows = [jax.tree.map(lambda x, i=i: x[i : i + 1], (obs, memory)) for i in range(num_rows)]
        return jax.tree.map(lambda *x: np.concatenate(x), *(run(*row) for row in rows))

    return step
