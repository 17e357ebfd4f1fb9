"""Curricula in a training step: terms read the level, metrics move it, evaluations are of the full task."""

import jax
import numpy as np
import pytest

import ksim
from ksim.mdp import curriculum, rewards
from ksim.parallel.layout import PmapDevices, SingleDevice
from tests.support.scale import scale
from tests.support.tasks import BipedConfig, BipedTask, train_iterations


class LevelReward(ksim.AbstractReward):
    """The level itself."""

    scale: float = 1.0

    def __call__(self, context):
        return context.level("hardness")


class HardeningTask(BipedTask):
    def get_rewards(self, physics_model):
        return [rewards.Alive(), LevelReward()]

    def get_curricula(self, physics_model):
        return {"hardness": curriculum.LinearCurriculum(end_iteration=4, start=0.2)}


def make_task(cls=HardeningTask, **options):
    return cls(BipedConfig(**options))


@pytest.mark.long
@pytest.mark.parametrize("num_devices", scale([2], [1, 2]))
def test_level_rises_over_iterations_and_terms_see_it(num_devices):
    task = make_task()
    devices = jax.devices()[:num_devices]
    task.layout = SingleDevice(devices[0]) if num_devices == 1 else PmapDevices(devices, "device")
    state, history = train_iterations(task, 3)
    # 0.2 at first, then 0.2 + 0.8 * i / 4.
    np.testing.assert_allclose([m["curriculum/hardness"] for m in history], [0.2, 0.4, 0.6], rtol=1e-6)
    np.testing.assert_allclose([m["reward/level_reward"] for m in history], [0.2, 0.4, 0.6], rtol=1e-5)
    np.testing.assert_allclose(np.ravel(state.learner.levels["hardness"]), 0.8, rtol=1e-6)


def test_curriculum_that_no_task_has_is_an_error_before_anything_compiles():
    class Unnamed(HardeningTask):
        def get_curricula(self, physics_model):
            return {"hardnes": curriculum.LinearCurriculum(end_iteration=4)}

    with pytest.raises(ksim.ConfigError, match=r"no curriculum 'hardness'\. Did you mean 'hardnes'"):
        make_task(Unnamed, num_devices=2).check()


def test_curriculum_that_goes_by_a_metric_which_does_not_exist_is_an_error_and_nothing_is_written(tmp_path):
    class Misspelt(HardeningTask):
        def get_curricula(self, physics_model):
            score = curriculum.ScoreCurriculum(metric="reward/alife", raise_above=1.0, lower_below=0.5)
            return {"hardness": score}

    run_dir = tmp_path / "run"
    with pytest.raises(ksim.ConfigError, match=r"no metric 'reward/alife'\. Did you mean 'reward/alive'"):
        make_task(Misspelt, num_devices=2, run_dir=str(run_dir)).run()
    assert not run_dir.exists()
