import pytest

from ksim.parallel.layout import PmapDevices, SingleDevice
from ksim.policy.load import policy_context, task_on_one_device
from tests.support.tasks import point_mass_task

pytestmark = pytest.mark.filterwarnings("ignore:Only 1 device detected")


def test_task_on_one_device_is_a_copy_in_the_environment_of_evaluations():
    task = point_mass_task(num_devices=2)
    environment, sizes = task.environment, task.obs_sizes
    twin = task_on_one_device(task)
    assert isinstance(twin.layout, SingleDevice)
    assert twin.environment is twin.eval_environment
    assert twin.obs_sizes == sizes
    # The one that trains has seen nothing of it.
    assert isinstance(task.layout, PmapDevices)
    assert task.environment is environment
    assert twin.config is task.config


def test_context_of_an_environment_of_the_users_own_is_on_the_trainings_first_device():
    task = point_mass_task(num_devices=2, engine="mjx")
    context = policy_context(task)
    assert context.env is task.eval_environment
    assert context.device is context.training_device is task.layout.devices[0]
    assert context.training_engine == "mjx"
