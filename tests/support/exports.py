"""Exported policies, for tests."""

import equinox as eqx
import jax

from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.policy.export.exporter import described_policy, onnx_file, program_files
from ksim.policy.load import policy_context


def exported_files(task, model, checkpoint, out_dir):
    """The files that run_mode=export writes, by name."""
    policy, metadata = described_policy(policy_context(task), model, checkpoint, out_dir)
    return {**program_files(policy, metadata), "policy.onnx": onnx_file(policy, metadata)}


def export_moving_policy(task, out_dir):
    """Writes the files of a policy that moves, and returns it."""
    # From random numbers, or all actions would be near 0.
    keys = iter(jax.random.split(jax.random.key(3), 100))
    moved = lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape) if eqx.is_inexact_array(x) else x
    network = jax.tree.map(moved, task.initial_learner().network)
    model = NormalizedActorCritic(network, ObservationNormalizer.init(task.obs_sizes))
    for name, content in exported_files(task, model, out_dir / "checkpoints/7", out_dir).items():
        (out_dir / name).write_bytes(content)
    return model
