"""The choice of an engine, and the sizes of MuJoCo Warp's arrays. None of these tests needs MuJoCo Warp."""

import sys
import types

import mujoco
import pytest

from ksim.errors import ConfigError
from ksim.physics import compile_model, warp as warp_engine
from ksim.physics.contact_sizes import ContactSizes, sizes_under_random_controls
from ksim.physics.select import PickedEngine, make_engine, pick_engine
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.rollout.trials import tried_sizes
from ksim.task.mdp import given_or_measured
from ksim.train.loop import check_physics
from tests.support.robots import biped_model
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task

BOX = """
<mujoco>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body pos="0 0 .1"><freejoint/><geom type="box" size=".1 .1 .1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.mark.parametrize(
    ("is_installed", "finds_gpu", "expected", "reason"),
    [
        (True, True, "warp", "fastest on an NVIDIA GPU"),
        (True, False, "mjx", "MJX runs on the GPU"),
        (False, False, "mjx", "pip install 'ksim-rl[warp]'"),
    ],
)
def test_auto_on_a_gpu_takes_warp_if_it_is_installed_and_finds_the_gpu(
    monkeypatch, is_installed, finds_gpu, expected, reason
):
    monkeypatch.setattr(warp_engine, "is_installed", lambda: is_installed)
    monkeypatch.setattr(warp_engine, "finds_gpu", lambda: finds_gpu)
    engine, words = pick_engine("auto", "gpu")
    assert engine == expected
    assert reason in words


def test_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "warp", None)
    with pytest.raises(ConfigError, match=r"engine=warp needs warp, .* pip install 'ksim-rl\[warp\]'"):
        make_engine("warp", biped_model(), sizes=ContactSizes(8, 8))


class PickedWarp(BipedConfig):
    def pick_engine(self, platform):
        return PickedEngine("warp", "auto")


def test_auto_takes_mjx_for_a_model_that_warp_refuses_and_says_why():
    class Refused(BipedTask):
        def get_environment(self, engine, num_devices):
            if engine == "warp":
                raise ConfigError("MuJoCo Warp cannot simulate the model: it has a mast.")
            return super().get_environment(engine, num_devices)

    task = Refused(PickedWarp(num_devices=1))
    assert task.picked_engine == ("mjx", "auto: MuJoCo Warp cannot simulate the model: it has a mast.")
    assert task.environment.engine_name == "mjx"


@pytest.mark.parametrize("engine", ["mjx", "mujoco"])
def test_sizes_for_another_engine_are_refused(engine):
    with pytest.raises(ConfigError, match=r"warp_contacts \(9\) is for engine=warp\. Set that, or warp_contacts=null"):
        BipedTask(BipedConfig(engine=engine, warp_contacts=9))


def test_box_that_lies_on_the_ground_has_four_contacts_of_four_constraints():
    spec = mujoco.MjSpec.from_string(BOX)
    assert sizes_under_random_controls(compile_model(spec, dt=0.005, ctrl_dt=0.02)) == (4, 16)
    # 1.5 * 4 + 8 and 1.5 * 16 + 8.
    assert ContactSizes(4, 16).with_margin() == (14, 32)


def test_sizes_are_those_of_the_robots_own_resets_unless_given():
    env = BipedTask(BipedConfig(num_devices=1)).environment
    assert isinstance(env, MdpEnvironment)
    mdp, model = env.mdp, env.engine.model
    measured = tried_sizes(mdp, model)
    assert measured.constraints >= 4 * measured.contacts > 0, "four edges of a pyramid for each contact"
    given = BipedConfig(warp_contacts=3)
    assert given_or_measured(given, lambda: measured) == (3, measured.with_margin().constraints)


def test_problem_of_the_physics_is_warned_of_once(recwarn):
    class Overflowing:
        def problem(self, metrics):
            return "MuJoCo Warp dropped contacts." if metrics["dropped/contacts"] else ""

    run = types.SimpleNamespace(task=types.SimpleNamespace(environment=Overflowing()), was_warned_of_physics=False)
    recwarn.clear()
    for dropped in (0.0, 0.1, 0.2):
        check_physics(run, {"dropped/contacts": dropped})
    assert [str(w.message) for w in recwarn] == ["MuJoCo Warp dropped contacts."]
    check_physics(run := types.SimpleNamespace(task=point_mass_task(num_devices=1), was_warned_of_physics=False), {})
    assert not run.was_warned_of_physics
