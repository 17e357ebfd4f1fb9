"""Digests of the learners after four iterations, to show that a change of the code changes no number.

    python -m benchmarks.learners > before.txt      # before the change
    python -m benchmarks.learners before.txt        # after it: exit code 1 where a learner differs

PPO with each network, with symmetry and on two devices with both modes of gradient synchronisation, AMP and
distillation, on both engines; and the walking humanoid. A digest is of all arrays of the learner in their order.
Comparable on one machine, under one version of JAX.
"""

import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import mujoco
import numpy as np

from benchmarks import PLAIN
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask
from ksim.parallel.placement import unwrap_keys
from tests.task.test_amp import StyledBiped, StyledBipedConfig
from tests.task.test_distillation import StudentBiped, StudentBipedConfig
from tests.support.tasks import BipedConfig, BipedTask, CartPoleConfig, CartPoleTask, train_iterations

NUM_ITERATIONS = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "mlp": {"num_devices": 1},
    "gru": {"num_devices": 1, "model": "gru"},
    "symmetry=augment": {"num_devices": 1, "symmetry": "augment", "num_batches": 2},
    "symmetry=loss": {"num_devices": 1, "symmetry": "loss"},
    "two devices, accumulate": {"num_devices": 2, "grad_sync_period": 2, "grad_sync_mode": "accumulate"},
    "two devices, local": {"num_devices": 2, "grad_sync_period": 2, "grad_sync_mode": "local"},
}
SMALL = PLAIN | {
    "num_envs": 16,
    "rollout_length": 8,
    "num_batches": 4,
    "eval_at_end": False,
    "video": False,
    "plots": False,
}


def clip(directory: Path) -> Path:
    """A motion of the biped: it falls freely."""
    model: Any = BipedTask(BipedConfig(num_devices=1)).environment
    mj_model = model.engine.model.mj_model
    data = mujoco.MjData(mj_model)
    data.qpos[:] = np.asarray(model.engine.model.start().qpos)
    data.qpos[2] += 1.0
    poses = [data.qpos.copy()]
    for _ in range(60):
        mujoco.mj_step(mj_model, data)
        poses.append(data.qpos.copy())
    path = directory / "fall.npz"
    np.savez(path, qpos=np.array(poses), fps=1 / mj_model.opt.timestep)
    return path


def tasks(directory: Path) -> Iterator[tuple[str, Any]]:
    """The tasks, by name."""
    BipedTask(BipedConfig(num_devices=1, engine="mujoco", max_iterations=1, run_dir=str(directory / "teacher"))).run()
    styled = {"style_clips": [str(clip(directory))], "num_devices": 1}
    student = {"teacher": str(directory / "teacher"), "num_devices": 1}
    for engine in ("mujoco", "mjx"):
        for name, options in VARIANTS.items():
            yield f"biped, {name}, {engine}", BipedTask(BipedConfig(**options, engine=engine))
        yield f"cart-pole, {engine}", CartPoleTask(CartPoleConfig(num_devices=2, engine=engine))
        yield f"AMP, {engine}", StyledBiped(StyledBipedConfig(**styled, engine=engine))
        yield f"distillation, {engine}", StudentBiped(StudentBipedConfig(**student, engine=engine))
    yield "walking humanoid, mujoco", HumanoidWalkingTask(HumanoidWalkingConfig(**SMALL, engine="mujoco"))


def digest(learner: Any) -> str:
    """A digest of all arrays of a learner."""
    total = hashlib.sha256()
    for x in map(np.asarray, jax.tree.leaves(unwrap_keys(learner))):
        total.update(f"{x.dtype} {x.shape}".encode() + x.tobytes())
    return total.hexdigest()[:24]


def main() -> int:
    warnings.filterwarnings("ignore")
    before = (
        dict(line.rsplit(maxsplit=1) for line in Path(sys.argv[1]).read_text().splitlines()) if sys.argv[1:] else {}
    )
    differ = []
    with tempfile.TemporaryDirectory() as directory:
        sys.stdout, out = sys.stderr, sys.stdout  # the teacher's run prints
        for name, task in tasks(Path(directory)):
            found = digest(task.layout.first(train_iterations(task, NUM_ITERATIONS)[0].learner))
            print(name, found, file=out, flush=True)
            if before and before.get(name) != found:
                differ.append(name)
    print(f"Other than before: {', '.join(differ)}" if differ else f"{len(before)} learners are the same as before.")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
