"""Exported policies, for tests."""

from ksim.policy.export.exporter import described_policy, onnx_file, program_files
from ksim.policy.load import policy_context


def exported_files(task, model, checkpoint, out_dir):
    """The files that run_mode=export writes, by name."""
    policy, metadata = described_policy(policy_context(task), model, checkpoint, out_dir)
    return {**program_files(policy, metadata), "policy.onnx": onnx_file(policy, metadata)}
