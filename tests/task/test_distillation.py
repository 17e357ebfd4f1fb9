"""teacher=RUN_DIR: a student that sees less learns to act as its teacher."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMass, PointMassConfig
from ksim.config import field
from ksim.errors import ConfigError
from ksim.learn.teacher import TEACHER
from tests.support.checkpoints import save_run, saved_learner
from tests.support.damaged_runs import read_lines
from tests.support.scale import long, scale
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task, train_iterations


class Blinkered(PointMass):
    """The student sees the sum of the mass's position and velocity alone; its teacher sees both."""

    def _state(self, inner, reward):
        state = super()._state(inner, reward)
        seen = state.obs["actor"]
        return dataclasses.replace(state, obs={"actor": jnp.sum(seen, keepdims=True), "critic": seen, TEACHER: seen})


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class StudentConfig(PointMassConfig, ksim.DistillConfig):
    num_envs: int = 16
    rollout_length: int = 8
    num_batches: int | None = 4
    actor_sizes: list[int] = field([8], help="")
    critic_sizes: list[int] = field([8], help="")
    memory_size: int = 8
    tensorboard: bool = False
    eval_at_end: bool = False
    video: bool = False
    plots: bool = False


class StudentTask(ksim.DistillTask[StudentConfig], ksim.DistributedPPOTask[StudentConfig]):
    def get_environment(self, engine, num_devices):
        return Blinkered()


def student(teacher=None, **options):
    return StudentTask(StudentConfig(teacher=None if teacher is None else str(teacher), **options))


class Sighted(Blinkered):
    """The student sees in other units what its teacher sees, and so can do all that it does."""

    def _state(self, inner, reward):
        state = super()._state(inner, reward)
        return dataclasses.replace(state, obs=state.obs | {"actor": 10 * state.obs[TEACHER]})


class SightedTask(StudentTask):
    def get_environment(self, engine, num_devices):
        return Sighted()


@pytest.mark.long
@pytest.mark.parametrize("model", scale(["gru"], ["mlp", "gru"]))
def test_student_comes_close_to_its_teacher(teacher, model):
    options = {"num_envs": 64, "learning_rate": 3e-3, "init_std": 0.3, "actor_sizes": [16], "model": model}
    _, history = train_iterations(SightedTask(StudentConfig(teacher=str(teacher), num_devices=1, **options)), 25)
    imitation = [metrics["loss/imitation"] for metrics in history]
    assert np.mean(imitation[-10:]) < 0.3 * imitation[0], imitation
    explained = [metrics["rollout/explained_variance"] for metrics in history]
    assert np.mean(explained[-10:]) > explained[0], "the critic learns the student's returns"


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class StudentBipedConfig(BipedConfig, ksim.DistillConfig):
    pass


class StudentBiped(ksim.DistillTask, BipedTask):
    def get_observations(self, physics_model):
        return dict.fromkeys(("actor", "critic", TEACHER), super().get_observations(physics_model))


@pytest.fixture(scope="module")
def biped_teacher(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("biped") / "run"
    save_run(BipedTask(BipedConfig(num_devices=1, engine="mujoco")), run_dir)
    return run_dir


@pytest.mark.long
@pytest.mark.parametrize("engine", scale([], ["mujoco", "mjx"]))
def test_robot_learns_from_a_teacher(biped_teacher, engine):
    task = StudentBiped(StudentBipedConfig(teacher=str(biped_teacher), num_devices=1, engine=engine))
    _, history = train_iterations(task, 2)
    assert all(np.isfinite(metrics["loss/imitation"]) for metrics in history)
    assert history[-1]["policy/bad_updates"] == 0


@pytest.mark.long
def test_student_acts_alone_and_ppo_starts_from_it(teacher, tmp_path):
    run_dir = tmp_path / "run"
    student(teacher, num_devices=1, max_iterations=2, run_dir=str(run_dir)).run()
    policy = ksim.load_policy(run_dir)
    assert policy.obs_sizes == {"actor": 1}
    assert policy(np.zeros(1, np.float32)).shape == (1,)
    learner = saved_learner(student(None, num_devices=1), run_dir)
    assert set(learner.normalizer.mean) == {"actor", "critic"}
    later = student(None, num_devices=1, max_iterations=1, load_weights=str(run_dir), run_dir=str(tmp_path / "ppo"))
    assert later.run().exit_code == 0
    (metrics,) = read_lines(tmp_path / "ppo" / "metrics.jsonl")
    assert "policy/clip_fraction" in metrics


def test_start_and_line_show_the_teacher(teacher):
    figures = student(teacher, num_devices=1).learner_info()
    assert figures.start == {"teacher": f"{teacher}, iteration 20"}
    assert figures.line == {"imitation": "loss/imitation"}


class Wide(Blinkered):
    def _state(self, inner, reward):
        state = super()._state(inner, reward)
        return dataclasses.replace(state, obs=state.obs | {TEACHER: jnp.zeros(3)})


class TwoForces(Blinkered):
    @property
    def action_size(self):
        return 2


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (PointMass, r"must show as group 'teacher'.*get_observations"),
        (Wide, r"'teacher' has 3 numbers, but the teacher of .* reads 2"),
        (TwoForces, r"actions of 1 numbers, and this task of 2"),
    ],
)
def test_teacher_of_another_environment_is_an_error(environment, message, teacher):
    class Other(StudentTask):
        def get_environment(self, engine, num_devices):
            return environment()

    with pytest.raises(ConfigError, match=message):
        Other(StudentConfig(teacher=str(teacher), num_devices=1)).check()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", r"teacher .*nothing"),
        ("pretrained", r"teacher=pretrained is for tasks that come with a teacher"),
        *long(("gru", r"must be a policy without memory.*model=mlp")),
    ],
)
def test_teacher_that_cannot_teach_is_an_error(path, message):
    if path == "gru":
        point_mass_task(num_devices=1, max_iterations=1, model="gru", memory_size=4, run_dir=path).run()
    with pytest.raises(ConfigError, match=message):
        student(path, num_devices=1).check()


def test_symmetry_with_a_teacher_is_an_error(teacher):
    with pytest.raises(ConfigError, match=r"symmetry \(augment\) is for PPO.*symmetry=off"):
        student(teacher, symmetry="augment")
