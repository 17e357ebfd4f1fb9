import os
import re
import subprocess
import sys

import mujoco
import numpy as np
import pytest

from ksim.evaluate import video
from ksim.evaluate.evaluator import Evaluator, Recorder, Recording
from ksim.physics.model import PhysicsModel
from ksim.policy.load import policy_context
from tests.support.launched_programs import is_alive
from tests.support.model_files import HOPPER
from tests.support.processes import wait_until
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task

needs_gl = pytest.mark.skipif(video.find_gl() is None, reason="no EGL or OSMesa")


@pytest.fixture(scope="module")
def task():
    return BipedTask(BipedConfig(num_devices=1, eval_num_envs=2))


@pytest.fixture(scope="module")
def recording(task):
    recorder = Recorder(task.eval_environment, seed=task.config.eval_seed, device=policy_context(task).device)
    return recorder(task.initial_learner().network, lambda: False)


@pytest.mark.long
def test_recording_is_the_episode_of_the_evaluations_first_env(task, recording):
    evaluator = Evaluator(policy_context(task))
    results = evaluator._runner(task.initial_learner().network, lambda: False)
    assert len(recording.reward) == results.length[0]
    np.testing.assert_allclose(recording.reward.sum(), results.total_reward[0], rtol=1e-5)
    np.testing.assert_allclose(
        recording.metrics["error/velocity/lin_vel_m_s"].mean(),
        results.errors["error/velocity/lin_vel_m_s"][0],
        rtol=1e-5,
    )


def test_recording_holds_what_was_commanded_and_measured(recording):
    length = len(recording.reward)
    assert recording.qpos.shape == (length, 9)
    assert set(recording.touch) == {"left_touch", "right_touch"}
    error = np.linalg.norm(recording.velocity[:, :2] - recording.commanded_velocity[:, :2], axis=1)
    np.testing.assert_allclose(error, recording.metrics["error/velocity/lin_vel_m_s"], atol=1e-5)


def test_recording_of_another_environment_has_rewards_alone():
    task = point_mass_task(num_devices=1)
    recorder = Recorder(task.eval_environment, seed=0, device=policy_context(task).device)
    recording = recorder(task.initial_learner().network, lambda: False)
    assert recording.model is None
    assert len(recording.reward) == 50
    assert list(recording.metrics) == ["distance"]


def test_arrows_point_where_the_base_is_told_to_go_and_goes(recording):
    turned = recording.__class__(
        reward=np.zeros(5),
        metrics={},
        model=recording.model,
        qpos=np.zeros((5, 9)),
        extra={"mocap_pos": np.arange(5.0).reshape(5, 1, 1) * np.ones(3)},
        base_position=np.tile([1.0, 2.0, 0.5], (5, 1)),
        heading=np.full(5, np.pi / 2),
        velocity=np.tile([0.0, 0.5, 9.0], (5, 1)),
        commanded_velocity=np.tile([1.0, 0.0, 9.0], (5, 1)),
    )
    scene = video.make_scene(turned)
    # 5 steps of 0.02 s are 0.1 s: 3 frames at 30 a second, each after 5 / 3 steps.
    assert scene["arrows"].shape == (3, 2, 2, 3)
    np.testing.assert_allclose(scene["state.mocap_pos"][:, 0, 0], [0, 5 / 3, 10 / 3])
    start, end = scene["arrows"][0].transpose(1, 0, 2)
    # Forward is along y, leftward along -x; the longest is as long as the robot's radius.
    np.testing.assert_allclose((end - start) / scene["radius"], [[0, 1, 0], [-0.5, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("distance", [0.2, 20.0], ids=["stands", "travels"])
def test_camera_goes_with_a_robot_in_a_plane_that_travels(distance):
    model = PhysicsModel(mujoco.MjModel.from_xml_string(HOPPER), ctrl_dt=0.02)
    qpos = np.zeros((100, model.mj_model.nq))
    qpos[:, 0] = np.linspace(0, distance, 100)
    scene = video.make_scene(Recording(reward=np.zeros(100), metrics={}, model=model, qpos=qpos))
    went = np.ptp(scene["look_at"][:, 0])
    if distance < 1:
        assert went == 0
    else:
        assert went > 0.8 * distance
    # The whole robot is in the picture, and little else.
    assert 0.6 < scene["distance"] * np.sin(np.radians(model.mj_model.vis.global_.fovy / 2)) < 2.5


@needs_gl
def test_film_of_an_episode_is_an_mp4_and_a_small_gif_and_says_how_far_it_is(recording, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(video.Activity, "tell", said.append)
    monkeypatch.setattr(video, "POLL_S", 0.01)
    mp4, gif = video.film(recording, tmp_path / "videos" / "film", lambda: False)
    assert mp4.read_bytes()[4:8] == b"ftyp"
    from PIL import Image

    with Image.open(gif) as image:
        assert image.format == "GIF"
        assert np.asarray(image.convert("L")).std() > 5
    assert gif.stat().st_size < 2_000_000
    assert said[0] == "Filming: starting; video=false leaves it out ..."
    frames = [re.fullmatch(r"Filming: (\d+) of (\d+) frames; .*", text) for text in said]
    counts = [tuple(map(int, found.groups())) for found in frames if found]
    assert counts == sorted(counts)
    assert len({total for _, total in counts}) == 1


@needs_gl
def test_film_that_is_stopped_leaves_nothing(recording, tmp_path):
    assert video.film(recording, tmp_path / "film", lambda: True) == []
    assert list(tmp_path.iterdir()) == []


def test_worker_is_out_of_reach_of_ctrl_c_and_killed_with_all_it_started_when_stopped(tmp_path, monkeypatch):
    program, pids = tmp_path / "worker.py", tmp_path / "pids"
    program.write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        "with open(sys.argv[1] + '.new', 'w') as file:\n"
        "    file.write(f'{os.getsid(0)} {child.pid}')\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(video, "_WORKER", program)
    assert not video._run_worker([str(pids)], "", pids.exists)
    session, child = map(int, pids.read_text().split())
    assert session != os.getsid(0)
    wait_until(lambda: not is_alive(child), 10)


@pytest.mark.parametrize(
    ("picked", "works", "found", "expected"),
    [("osmesa", None, None, ["osmesa"]), (None, "osmesa", "osmesa", ["egl", "osmesa"])],
    ids=["the user's alone", "EGL before OSMesa where the user picked none"],
)
def test_gl_is_tried_in_order(picked, works, found, expected, *, monkeypatch):
    tried = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if picked:
        monkeypatch.setenv("MUJOCO_GL", picked)

    def run(command, *, env, **_):
        tried.append(env.get("MUJOCO_GL"))
        return subprocess.CompletedProcess(command, int(tried[-1] != works))

    monkeypatch.setattr(video.subprocess, "run", run)
    assert video.find_gl.__wrapped__() == found
    assert tried == expected
    assert os.environ.get("MUJOCO_GL") == picked


def test_without_gl_a_film_is_an_error_that_says_so(recording, tmp_path, monkeypatch):
    monkeypatch.setattr(video, "find_gl", lambda: None)
    with pytest.raises(video.RenderError, match="neither EGL nor OSMesa"):
        video.film(recording, tmp_path / "film", lambda: False)
