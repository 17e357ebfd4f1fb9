"""A run that teaches, for all tests of distillation."""

import pytest

from tests.support.tasks import point_mass_task


@pytest.fixture(scope="session")
def teacher(tmp_path_factory):
    """The directory of a teacher's run."""
    run_dir = tmp_path_factory.mktemp("teacher") / "run"
    options = {"max_iterations": 20, "num_envs": 64, "rollout_length": 16, "learning_rate": 1e-3}
    point_mass_task(num_devices=1, **options, run_dir=str(run_dir)).run()
    return run_dir
