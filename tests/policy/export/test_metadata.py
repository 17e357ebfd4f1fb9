import json
import subprocess

import numpy as np
import pytest

from ksim.mdp.commands import VelocityCommand
from ksim.policy.export.metadata import action_map, describe, described_joints, git_revision
from tests.support.tasks import BipedConfig, BipedTask


def model_and_actuators(task_class):
    env = task_class(BipedConfig(num_devices=1)).eval_environment
    return env.engine.model, env.mdp.actuators


class AtLimit(BipedTask):
    """A biped whose legs stand at the ends of their ranges."""

    def get_robot(self):
        spec = super().get_robot()
        for joint in spec.joints[1:]:
            joint.range = [0, 60]
        return spec


def test_actions_of_joints_that_start_at_a_limit_have_their_scale():
    model, actuators = model_and_actuators(AtLimit)
    found = action_map(actuators, model)
    assert (found["scale"], found["lower"]) == ([0.5, 0.5], [0, 0])


class BeyondLimit(AtLimit):
    """A biped whose default pose has one leg beyond the end of its range, 0.25 rad."""

    def get_robot(self):
        spec = BipedTask.get_robot(self)
        spec.joint("left_hip").range = [-60, np.rad2deg(0.25)]
        spec.add_key(name="home", qpos=[0, 0, 0.5, 1, 0, 0, 0, 0.3, 0.0])
        return spec


def test_default_pose_beyond_a_joints_range_keeps_its_map_and_is_warned_of():
    # ctrl = clip(0.3 + 0.5 * action, -pi / 3, 0.25): an action of -0.1 reaches the end of the range.
    model, actuators = model_and_actuators(BeyondLimit)
    with pytest.warns(UserWarning, match=r"'left_hip' at 0\.3, outside its range of -1\.047 to 0\.25:"):
        described_joints(model)
    found = action_map(actuators, model)
    np.testing.assert_allclose(found["offset"], [0.3, 0.0], atol=1e-6)
    np.testing.assert_allclose(found["scale"], [0.5, 0.5])
    np.testing.assert_allclose(found["upper"], [0.25, np.pi / 3], atol=1e-6)


def test_arguments_that_are_infinite_are_null():
    described = describe(VelocityCommand(resample_s=(np.inf, np.inf)))
    assert json.loads(json.dumps(described, allow_nan=False))["args"]["resample_s"] == [None, None]


def test_git_revision_is_that_of_the_users_repository_and_says_whether_it_was_changed(tmp_path):
    git = lambda *arguments: subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)
    assert git_revision(tmp_path) is None
    git("init")
    (tmp_path / "task.py").write_text("1")
    git("add", "task.py")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    assert git_revision(tmp_path)["modified"] is False
    (tmp_path / "task.py").write_text("2")
    revision = git_revision(tmp_path)
    assert revision["modified"] is True
    assert len(revision["revision"]) == 40
