"""Robots of examples/deploy.py move as in training, whatever their files say."""

import contextlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import jax
import mujoco
import numpy as np
import pytest

from examples import deploy
from ksim import robot
from ksim.mdp import observations, terminations
from ksim.mdp.actions import AbstractActionFilter, ActionSmoothing
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.physics import AbstractActuators, DcMotorActuators, ModelActuators
from ksim.physics.terrain import RoughTile, Terrain
from ksim.policy.export.exporter import described_policy
from ksim.policy.load import policy_context
from tests.support.robots import ACTUATORS, BIPED
from tests.support.tasks import BipedConfig, BipedTask, Undisturbed


class Driven(Undisturbed, BipedTask):
    """A biped in which nothing is left to chance but the state it starts from."""

    xml: str = BIPED
    actuators: AbstractActuators = ACTUATORS
    filters: Mapping[str, AbstractActionFilter] = MappingProxyType({})

    def get_robot(self):
        return mujoco.MjSpec.from_string(self.xml)

    def get_actuators(self):
        return self.actuators

    def get_action_filters(self, physics_model):
        return self.filters

    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=10.0)]


class DcMotors(Driven):
    """Motors that have no torque left at 3 rad/s."""

    actuators = DcMotorActuators(kp=40.0, kd=0.1, no_load_speed=3.0, action_scale=0.5)


class Filtered(Driven):
    """Actuators whose MJCF has a filter and a gear, which the training's servos have not, and an inertia."""

    filtered = '<general dyntype="filter" dynprm=".1" actrange="-9 9" forcerange="-20 20"'
    xml = BIPED.replace("<motor", f'{filtered} gear="2" armature=".05"')


class Smoothed(Driven):
    """Two filters, one after the other."""

    filters = MappingProxyType({"first": ActionSmoothing(time_constant_s=0.1), "then": ActionSmoothing()})


class SlowServos(Driven):
    """Servos that follow their targets with a delay, and a keyframe in which they have arrived."""

    key = '<keyframe><key time="2" qpos="0 0 .5 1 0 0 0 .3 -.3" act=".3 -.3"/></keyframe></mujoco>'
    xml = re.sub("<motor(.*)ctrlrange=.*/>", r'<position\1kp="40" timeconst=".1"/>', BIPED).replace("</mujoco>", key)
    actuators = ModelActuators()


class ReplacedServos(SlowServos):
    """The same, with the training's servos in their place, which have no activations."""

    xml = SlowServos.xml.replace("timeconst=", 'inheritrange="1" forcerange="-20 20" timeconst=').replace(
        ' act="', ' ctrl=".3 -.3" act="'
    )
    actuators = ACTUATORS


class Controllers(Driven):
    """Actuators that take two controls each: a position and a velocity."""

    xml = re.sub("<motor(.*)ctrlrange=.*/>", r'<pid\1kp="40" kv="1" velrange="-2 2"/>', BIPED)
    actuators = ModelActuators()


class Rebuilt(Driven):
    """A robot of which training changes almost everything: its file has its origin on the ground and lacks the rest."""

    xml = """
    <mujoco>
      <option cone="elliptic" impratio="10" gravity="0 0 0" solver="CG" iterations="100"/>
      <worldbody>
        <body name="trunk">
          <freejoint/>
          <geom type="box" pos="0 0 .5" size=".1 .15 .1" mass="5" condim="6"/>
          <geom name="logo" size=".02" pos="0 0 .6" contype="0" conaffinity="0"/>
          <body pos="0 .1 .4">
            <joint axis="0 1 0" range="-60 60"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
            <geom type="sphere" pos="0 0 -.35" size=".05" mass=".2"/>
          </body>
          <body name="right" pos="0 -.1 .4">
            <joint name="right_hip" axis="0 1 0" range="-60 60"/>
            <geom type="capsule" fromto="0 0 0 0 0 -.3" size=".03" mass="1"/>
            <geom type="sphere" pos="0 0 -.35" size=".05" mass=".2"/>
          </body>
        </body>
      </worldbody>
    </mujoco>"""

    def get_robot(self):
        Path("rebuilt.xml").write_text(self.xml)
        spec = robot.load("rebuilt.xml")
        robot.add_gravity(spec)
        robot.raise_base(spec, 0.5)
        robot.add_ground(spec, height=0.02)
        robot.add_motors(spec, {"right_hip": 20.0, "joint_*": 20.0})
        robot.touch_ground_only(spec)
        robot.use_implicitfast(spec)
        robot.use_plain_contacts(spec)
        robot.add_feet(spec, [robot.Foot("foot", "right", pos=(0, 0, -0.35), size=(0.06, 0.06, 0.06))])
        robot.add_imu(spec, "trunk")
        robot.set_pose(spec, {"right_hip": 0.3}, 0.5)
        spec.option.iterations, spec.option.solver = 6, mujoco.mjtSolver.mjSOL_NEWTON
        spec.delete(spec.geom("logo"))
        spec.body("right").add_geom(name="toe", size=[0.04, 0, 0], pos=[0.05, 0, -0.35], contype=0, mass=0.1)
        return spec

    def get_observations(self, physics_model):
        return [observations.ImuGyro(site="imu"), observations.JointPosition(), observations.ImuAccelerometer("imu")]


class OnRough(Driven):
    """A biped on a terrain, which no file holds."""

    def get_terrain(self):
        return Terrain(tiles=(RoughTile(),), num_levels=1, tile_m=2.0, border_m=1.0)


class TwiceTheCurve(DcMotorActuators):
    """Motors whose curve is the user's own."""

    def motor_curve(self, model):
        curve = super().motor_curve(model)
        return lambda velocity, force_range: curve(2 * velocity, force_range)


class OwnCurve(Driven):
    """A biped with such motors."""

    actuators = TwiceTheCurve()


def evaluated(task_class):
    """The task in the environment of its evaluations, and its robot file."""
    task = task_class(BipedConfig(num_devices=1))
    task.environment = task.eval_environment
    path = Path("robot.xml")
    path.write_text(task.xml)
    return task, path.absolute()


def described(task):
    """The metadata of a task's policy, as in its files."""
    model = NormalizedActorCritic(task.initial_learner().network, ObservationNormalizer.init(task.obs_sizes))
    _, metadata = described_policy(policy_context(task), model, Path("checkpoints/7"), Path())
    return json.loads(json.dumps(metadata))


@pytest.fixture(scope="module", params=[DcMotors, Filtered, Smoothed], ids=lambda cls: cls.__name__)
def driven(request, tmp_path_factory):
    with contextlib.chdir(tmp_path_factory.mktemp("robot")):
        return recorded(request.param)


def recorded(task_class):
    """A robot file, the metadata, and positions of ksim's environment under large actions, by time."""
    task, path = evaluated(task_class)
    env = task.environment
    action_ta = np.random.default_rng(0).normal(size=(20, env.action_size)).astype(np.float32)
    states, step = [jax.jit(env.reset)(jax.random.key(0))], jax.jit(env.step)
    for action in action_ta:
        states.append(step(states[-1], action))
    return path, described(task), action_ta, [state.inner.physics for state in states]


def farthest(path, metadata, action_ta, physics_t):
    """The largest deviation of a robot from ksim's under the same actions."""
    robot = deploy.Robot(path, metadata)
    force_range = robot.model.actuator_forcerange.copy()
    for _ in range(3):
        robot.step(np.ones(len(action_ta[0])))
    robot.reset(np.asarray(physics_t[0].qpos), np.asarray(physics_t[0].qvel))
    np.testing.assert_array_equal(robot.model.actuator_forcerange, force_range)  # of motors at rest
    found = []
    for action, physics in zip(action_ta, physics_t[1:], strict=True):
        robot.step(action)
        found.append(np.abs(robot.data.qpos - physics.qpos).max())
    return max(found)


def test_a_robot_is_driven_as_in_the_training(driven):
    assert farthest(*driven) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("task_class", [ReplacedServos, Controllers])
def test_a_robot_whose_file_has_activations_or_several_controls_is_driven_as_in_the_training(task_class):
    assert farthest(*recorded(task_class)) < 1e-4


def test_a_robot_is_driven_otherwise_without_what_the_metadata_say_of_it(driven):
    path, metadata, *recorded = driven
    model = metadata["model"]
    gear = {"actuator_gear": 2 * np.array(model["fields"]["actuator_gear"])} if "general" in path.read_text() else {}
    without = {
        "actuators": metadata["actuators"] | {"motor_curve": None},
        "model": model | {"fields": model["fields"] | gear},
        "action_filters": {},
    }
    assert farthest(path, metadata | without, *recorded) > 1e-2


LOOKS = ("bvh_", "cam_", "key_", "light_", "mat_", "name", "sensor_", "skin_", "tex_", "text_")
"""Fields of a model that do not change how it moves: looks, names, keyframes, and boxes for a faster search."""


def parts_that_differ(first, second):
    """The fields and options in which two models are not the same numbers."""
    other = {"geom_group", "geom_matid", "geom_rgba", "geom_user", "body_sameframe", "geom_sameframe", "site_sameframe"}
    other |= {"site_group", "site_matid", "site_rgba", "paths", "_sizes"}
    fields = [name for name in dir(first) if isinstance(getattr(first, name, None), np.ndarray)]
    fields = [name for name in fields if not name.startswith(LOOKS) and name not in other]
    found = [name for name in fields if not np.array_equal(getattr(first, name), getattr(second, name))]
    options = [name for name in dir(first.opt) if not name.startswith("_") and name != "disableflags"]
    return found + [name for name in options if not np.array_equal(getattr(first.opt, name), getattr(second.opt, name))]


def trained(task):
    """The model that a task's evaluations run in."""
    return task.environment.engine.model.mj_model


def test_an_episode_of_a_robot_that_training_changed_is_that_of_the_evaluation():
    task, path = evaluated(Rebuilt)
    env, metadata = task.environment, described(task)
    mine, num_contacts = deploy.Robot(path, metadata), 0
    assert parts_that_differ(trained(task), mine.model) == []
    state, step = jax.jit(env.reset)(jax.random.key(0)), jax.jit(env.step)
    mine.reset(*(np.asarray(x) for x in (state.inner.physics.qpos, state.inner.physics.qvel)))
    for action in np.random.default_rng(0).normal(size=(25, env.action_size)).astype(np.float32):
        np.testing.assert_allclose(deploy.observe(mine, metadata)["obs"], state.obs["actor"], rtol=1e-4, atol=1e-3)
        mine.step(action)
        state = step(state, action)
        np.testing.assert_allclose(mine.data.qpos, state.inner.physics.qpos, atol=1e-4)
        num_contacts += mine.data.ncon
    assert num_contacts > 0  # on the floor that its file lacks


def test_a_robot_of_the_original_file_is_not_that_of_the_training():
    # Otherwise the test above would not notice.
    task, path = evaluated(Rebuilt)
    alone = mujoco.MjModel.from_xml_path(str(path))
    differ = parts_that_differ(trained(task), alone)
    assert {"geom_contype", "geom_condim", "body_ipos", "integrator", "cone", "gravity", "iterations"} <= set(differ)


def test_a_file_that_cannot_become_the_model_of_the_training_is_refused_with_what_differs(driven):
    path, metadata, *_ = driven
    text = path.read_text().replace("<sensor>", '<contact><exclude body1="trunk" body2="left_leg"/></contact><sensor>')
    Path("other.xml").write_text(text)
    with pytest.raises(SystemExit, match=r"cannot be made into the model of the training: exclude_signature would be"):
        deploy.Robot("other.xml", metadata)


def test_a_policy_of_a_terrain_deploys_on_its_files_floor():
    task, path = evaluated(OnRough)
    metadata = described(task)
    assert metadata["model"]["on_terrain"]
    assert deploy.Robot(path, metadata).model.geom("floor").type == mujoco.mjtGeom.mjGEOM_PLANE


@pytest.mark.parametrize(("height", "has_fallen"), [(0.5, False), (0.3, False), (0.2, True), (-19.4, True)])
def test_a_robot_that_sinks_by_half_its_height_has_fallen(driven, height, has_fallen):
    # Its centre of mass is 5 * 0.5 + 2 * 1 * 0.25 + 2 * 0.2 * 0.05 = 3.02 kg m above the ground, or 0.41 m.
    robot = deploy.Robot(*driven[:2])
    assert not robot.has_fallen
    robot.data.qpos[2] = height
    assert robot.has_fallen == has_fallen


def test_a_robot_starts_with_the_activations_of_its_keyframe():
    task, path = evaluated(SlowServos)
    robot = deploy.Robot(path, described(task))
    for _ in range(2):
        np.testing.assert_array_equal(robot.data.act, [0.3, -0.3])
        assert robot.time_s == 0
        robot.step(np.ones(2))
        robot.reset()


def test_actuators_with_a_curve_of_their_own_are_refused():
    task, path = evaluated(OwnCurve)
    metadata = described(task)
    assert "TwiceTheCurve.motor_curve" in metadata["actuators"]["motor_curve"]["class"]
    with pytest.raises(SystemExit, match=r"test_robots\.TwiceTheCurve are custom: implement them in Robot"):
        deploy.Robot(path, metadata)
