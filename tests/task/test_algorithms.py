"""Promises of every algorithm: the same on any devices and in two processes, exact resumption, and export."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest

import ksim
from tests.learn.test_reinforce import reinforce
from tests.support.checkpoints import newest, saved_learner
from tests.support.damaged_runs import read_lines, without_times
from tests.support.recorded import run_job
from tests.support.scale import long, only_in_full, scale
from tests.support.tasks import assert_same_parameters, pathwise, point_mass_task, train_iterations
from tests.task.test_amp import StyledTask, styled
from tests.task.test_distillation import student
from tests.task.test_symmetry import biped

MAKERS = {
    **{"amp": styled, "distillation": student, "ppo": point_mass_task, "reinforce": reinforce, "reppo": pathwise},
    "symmetry": biped,
}


@pytest.fixture(scope="module")
def make(teacher):
    """Makes a task of an algorithm."""

    def make(name, **options):
        taught = {"teacher": str(teacher)} if name == "distillation" else {}
        return MAKERS[name](**taught | options)

    return make


@pytest.fixture(scope="module")
def learner(make):
    """The learner after some iterations on some devices."""

    @functools.cache
    def learner(name, num_devices, num_iterations, **options):
        task = make(name, num_devices=num_devices, **options)
        return task.layout.first(train_iterations(task, num_iterations)[0].learner)

    return learner


def assert_same(first, second, **tolerance):
    """Compares two learners, their discriminators as well."""
    assert_same_parameters(first, second, **tolerance)
    style = lambda learner: jax.tree.leaves(getattr(learner, "style", ()))
    for x, y in zip(style(first), style(second), strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance["rtol"], atol=10 * tolerance["atol"])


AUGMENT, LOSS = ({"symmetry": symmetry, "num_batches": 2} for symmetry in ("augment", "loss"))

DEVICES = [
    ("reinforce", {}, 2),
    *long(
        *((name, {}, 2) for name in scale(("amp", "reppo"), ("amp", "distillation", "reppo"))),
        ("ppo", {"squash": True, "normalize_values": True, "desired_kl": 0.01}, 2),
        *((name, {}, 4) for name in scale((), ("amp", "distillation", "reppo"))),
        *((name, {"model": "gru"}, 2) for name in scale((), ("amp", "distillation"))),
        *((name, {"layout": "shard_map"}, 2) for name in scale((), ("amp", "distillation", "reppo"))),
        ("ppo", {"squash": True, "layout": "shard_map"}, 4),
        ("symmetry", AUGMENT, 2),
        *scale((), (("symmetry", LOSS, 2), ("symmetry", AUGMENT, 4), ("symmetry", LOSS, 4))),
    ),
]  # fmt: skip
NUM_ITERATIONS = {"amp": 4, "distillation": 4, "ppo": 3, "reinforce": 3, "reppo": 3, "symmetry": 2}
ATOL = {"ppo": 1e-5, "symmetry": 1e-5}


@pytest.mark.parametrize(("name", "options", "num_devices"), DEVICES, ids=str)
def test_learner_is_the_same_on_several_devices(learner, name, options, num_devices):
    one, several = (learner(name, n, NUM_ITERATIONS[name], **options) for n in (1, num_devices))
    assert_same(several, one, rtol=1e-5, atol=ATOL.get(name, 1e-6))


@pytest.mark.long
@only_in_full("a job of two processes each; that of PPO is in test_invariance.py")
@pytest.mark.parametrize(
    ("name", "task", "options", "num_devices"),
    [
        ("reppo", "pathwise", {}, 2),
        ("amp", "styled", {}, 2),
        ("distillation", "student", {}, 2),
        ("symmetry", "biped", AUGMENT | {"engine": "mujoco"}, 1),
    ],
    ids=str,
)
def test_two_processes_learn_what_one_device_does(learner, teacher, tmp_path, *, name, task, options, num_devices):
    taught = {"teacher": teacher} if name == "distillation" else {}
    job = run_job(tmp_path, task, NUM_ITERATIONS[name], num_devices, **taught | options)
    alone = learner(name, 1, NUM_ITERATIONS[name], **options)
    assert_same_parameters(job.learner, alone, rtol=1e-5, atol=ATOL.get(name, 1e-6))


@pytest.fixture(scope="module")
def finished(make, teacher, tmp_path_factory):
    """A run of four iterations, saved after two as well, and the options of it; a teacher of its own is gone."""

    @functools.cache
    def finished(name, **options):
        directory = tmp_path_factory.mktemp(name)
        if name == "distillation":
            options |= {"teacher": str(shutil.copytree(teacher, directory / "teacher"))}
        options |= {"num_devices": 1, "max_iterations": 4, "save_every_n_iterations": 2}
        assert make(name, run_dir=str(directory / "run"), **options).run().exit_code == 0
        shutil.rmtree(directory / "teacher", ignore_errors=True)
        return directory / "run", options

    return finished


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in scale(("amp", "reinforce", "reppo"), ("amp", "distillation", "reinforce", "reppo"))),
        *scale((), (("symmetry", AUGMENT), ("symmetry", LOSS))),
    ],
    ids=str,
)
def test_resumed_run_is_the_one_that_was_never_stopped_and_needs_no_clips_or_teacher(
    make, finished, tmp_path, monkeypatch, *, name, options
):
    whole, given = finished(name, **options)
    run_dir = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run_dir / "checkpoints" / "4")
    monkeypatch.setattr(StyledTask, "get_reference", lambda self: pytest.fail("it is in the checkpoint"))
    assert make(name, run_dir=str(run_dir), resume="auto", **given).run().exit_code == 0
    assert newest(run_dir).name == "4"
    lines = [[without_times(x) for x in read_lines(path / "metrics.jsonl")] for path in (whole, run_dir)]
    assert lines[0] == lines[1]
    monkeypatch.undo()
    alone = make(name, num_devices=1, **options | ({"teacher": None} if name == "distillation" else {}))
    assert_same(*(saved_learner(alone, path) for path in (whole, run_dir)), rtol=0, atol=0)
    if name == "distillation":
        assert make(name, **given, run_mode="replay", checkpoint=str(run_dir)).run().exit_code == 0


@pytest.mark.parametrize(("name", "num_obs"), [("reinforce", 2), *long(("amp", 2), ("distillation", 1), ("reppo", 2))])
def test_policy_is_exported_and_evaluated_without_what_training_alone_needs(make, finished, name, num_obs, tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    whole, given = finished(name)
    run_dir = shutil.copytree(whole, tmp_path / "run")
    assert ksim.load_policy(run_dir).obs_sizes == {"actor": num_obs}
    assert make(name, **given, run_mode="export", checkpoint=str(run_dir)).run().exit_code == 0
    assert json.loads((run_dir / "export" / "policy.json").read_text())
    assert (run_dir / "export" / "policy.onnx").is_file()
    assert make(name, **given, run_mode="eval", checkpoint=str(run_dir), eval_num_envs=2).run().exit_code == 0
