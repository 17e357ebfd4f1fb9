"""The examples that learn to walk in other ways than examples.walking."""

import dataclasses

import pytest

from examples.walking_amp import HumanoidAMPConfig, HumanoidAMPTask
from examples.walking_distributed import HumanoidWalkingDistributedConfig
from examples.walking_student import HumanoidStudentConfig, HumanoidStudentTask
from examples.walking_teacher import HumanoidTeacherTask


@pytest.mark.parametrize(
    ("config", "own"),
    [(HumanoidStudentConfig(), {"init_std"}), (HumanoidAMPConfig(), {"standing_fraction"})],
)
def test_options_are_those_of_the_walking_humanoid(config, own):
    walking = HumanoidWalkingDistributedConfig()
    names = {option.name for option in dataclasses.fields(walking)}
    own |= {"num_envs", "num_passes", "max_iterations", "symmetry"}
    assert {name for name in names if getattr(config, name) != getattr(walking, name)} == own


def test_teacher_and_student_see_what_their_names_say():
    teacher = HumanoidTeacherTask(HumanoidWalkingDistributedConfig(num_devices=1)).obs_sizes
    student = HumanoidStudentTask(HumanoidStudentConfig(num_devices=1, teacher="runs/teacher")).obs_sizes
    assert student["teacher"] == teacher["actor"]
    assert student["actor"] < teacher["actor"]
    assert "teacher" not in HumanoidStudentTask(HumanoidStudentConfig(num_devices=1)).obs_sizes


def test_style_is_that_of_a_stroll_or_of_any_files():
    task = HumanoidAMPTask(HumanoidAMPConfig(num_devices=1))
    assert task.reference.shape == (999, 2, task.obs_sizes["style"])  # of 20 s at 50 Hz
    assert HumanoidAMPTask(HumanoidAMPConfig(num_devices=1, style_clips=["a.npz"])).get_style_clips() == ["a.npz"]


def test_style_has_no_gait_clock():
    task = HumanoidAMPTask(HumanoidAMPConfig(num_devices=1))
    terms = task.environment.mdp.observations  # type: ignore[attr-defined]
    assert not any("phase" in group for group in terms.values())
    assert task.obs_sizes["style"] == 2 * 21 + 1 + 3 + 3 + 3 + 2 * 3
