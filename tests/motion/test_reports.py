"""Reports of a policy that tracks motions: errors by clip, the ghost in videos, and the exported policy."""

import dataclasses

import jax
import mujoco
import numpy as np
import pytest

from ksim.evaluate import video
from ksim.evaluate.evaluator import Evaluator, Recorder
from ksim.evaluate.render_worker import add_ghost
from ksim.evaluate.reports import group_rows
from ksim.mdp.actions import ActionSmoothing, AroundMotion
from ksim.policy.load import policy_context
from ksim.viewer.session import ViewSession
from tests.support.exports import export_moving_policy
from tests.support.motion_tasks import ACTUATORS, FLOATER, FloaterConfig, FloaterTask
from tests.support.still import Still

BENT = dataclasses.replace(ACTUATORS, offset=0.1)


@pytest.fixture(scope="module")
def task():
    return FloaterTask(FloaterConfig(num_devices=1, eval_num_envs=12))


@pytest.mark.long
def test_evaluation_reports_each_clip_apart(task):
    evaluation = Evaluator(policy_context(task))(Still())
    assert list(evaluation.groups) == ["slow", "fast"]
    slow, fast = (evaluation.groups[name] for name in ("slow", "fast"))
    # The servo, around the motion, follows the slow swing to its end in 30 steps, and not the fast one.
    assert slow["survival"].mean == 1.0
    assert slow["length"].mean == 30
    assert slow["error/motion/joint_position_rad"].mean < fast["error/motion/joint_position_rad"].mean
    record = evaluation.record()["groups"]["slow"]
    assert record["error/motion/root_position_m"]["mean"] == slow["error/motion/root_position_m"].mean
    heads, rows = group_rows(evaluation)
    assert heads[:3] == ["", "completed", "motion/joint_position_rad"]
    assert [row[0] for row in rows] == ["slow", "fast"]
    assert rows[0][1].startswith("100%")


@pytest.mark.long
def test_video_shows_the_reference_beside_the_robot(task):
    recorder = Recorder(task.eval_environment, seed=0, device=jax.devices("cpu")[0])
    recording = recorder(Still(), lambda: False)
    motions = task.eval_environment.mdp.commands["motion"].motions
    # An evaluation starts at the first frame of a clip; the first action is to reach the next one.
    first = next(f for f in motions.first if np.allclose(recording.ghost[0], motions.qpos[f + 1], atol=1e-6))
    np.testing.assert_allclose(recording.ghost, motions.qpos[first + 1 : first + 1 + len(recording.reward)], atol=1e-6)
    scene = video.make_scene(recording)
    assert scene["ghost"].shape == scene["state.qpos"].shape
    aside = scene["ghost"][0, :3] - recording.ghost[0, :3]
    np.testing.assert_allclose(aside, [0, video.GHOST_APART * recording.base_position[:, 2].max(), 0], atol=1e-6)


def test_ghost_is_a_second_translucent_robot_without_its_world():
    model = mujoco.MjModel.from_xml_string(
        FLOATER.replace("<worldbody>", '<worldbody><geom type="plane" size="1 1 1"/>')
    )
    data, scene = mujoco.MjData(model), mujoco.MjvScene(model, maxgeom=20)
    mujoco.mj_forward(model, data)
    add_ghost(scene, model, data)
    assert scene.ngeom == 2  # trunk and arm
    assert all(geom.rgba[3] < 1 and geom.transparent for geom in scene.geoms[: scene.ngeom])


@pytest.mark.long
def test_viewer_plays_the_clip_to_its_end_and_starts_again(task):
    env = task.eval_environment
    session = ViewSession(env, Still(), seed=0)
    assert session.numbers == []
    frames = []
    for _ in range(70):
        session.advance()
        frames.append(int(session._state.inner.commands["motion"][0, 0]))
    change_t = np.diff(frames)
    assert (change_t == 1).sum() > 60
    starts = np.array(frames[1:])[change_t != 1]
    assert len(starts) >= 1
    assert set(starts) <= set(env.mdp.commands["motion"].motions.first + 1)


class BentTask(FloaterTask):
    """Servos whose targets are off the pose at action 0, and actions that are smoothed around the motion."""

    def get_actuators(self):
        return BENT

    def get_action_filters(self, physics_model):
        return [AroundMotion(command="motion", actuators=BENT), ActionSmoothing(time_constant_s=0.05)]


@pytest.mark.long
@pytest.mark.parametrize("kind", [FloaterTask, BentTask])
def test_exported_policy_tracks_the_motion_as_in_training(kind, tmp_path):
    pytest.importorskip("onnxruntime")
    from examples import deploy

    task = kind(FloaterConfig(num_devices=1, eval_num_envs=12))
    env = task.eval_environment
    model = export_moving_policy(task, tmp_path)
    policy = deploy.Policy(tmp_path / "policy.onnx")
    (tmp_path / "floater.xml").write_text(FLOATER)
    robot = deploy.Robot(tmp_path / "floater.xml", policy.metadata)
    step, state = jax.jit(env.step), jax.jit(env.reset)(jax.random.key(5))
    motions = env.mdp.commands["motion"].motions
    robot.clip = int(motions.clip[int(state.inner.commands["motion"][0])])
    robot.reset()
    for _ in range(15):
        obs = deploy.observe(robot, policy.metadata)
        np.testing.assert_allclose(obs["obs"], state.obs["actor"], atol=1e-4)
        action = policy(obs)
        np.testing.assert_allclose(action, model(state.obs, model.initial_carry())[0].distribution.mode(), atol=1e-4)
        robot.step(action)
        state = step(state, jax.numpy.asarray(action))
        np.testing.assert_allclose(robot.data.qpos, state.inner.physics.qpos, atol=1e-4)
