"""Environments of MuJoCo Playground and Brax, by their names."""

import json
import re

import numpy as np
import pytest

import ksim
from ksim.envs.brax import BraxConfig, BraxTask
from ksim.envs.playground import PlaygroundConfig, PlaygroundTask, options_of, published_observations
from ksim.envs.task import main
from ksim.envs.wrapped import WrappedEnvironment
from ksim.errors import ConfigError
from tests.end_to_end.stand_in import with_last_values
from tests.support.processes import ROOT, exit_code
from tests.support.scale import only_in_full
from tests.support.tasks import WITHOUT_REPORTS

# The packages warn of much that is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    **WITHOUT_REPORTS, "num_envs": 4, "num_batches": 2, "num_passes": 1, "rollout_length": 3, "actor_sizes": [8],
    "critic_sizes": [8], "tensorboard": False, "num_devices": 1,
}  # fmt: skip


def test_published_hyperparameters_become_ksims():
    published = {
        "num_timesteps": 60_000_000,
        "num_envs": 2048,
        "batch_size": 1024,
        "num_minibatches": 32,
        "unroll_length": 30,
        "num_updates_per_batch": 16,
        "discounting": 0.995,
        "learning_rate": 1e-3,
        "entropy_cost": 1e-2,
        "episode_length": 1000,
        "action_repeat": 4,
        "normalize_observations": True,
        "network_factory": {"policy_hidden_layer_sizes": (64, 64), "value_obs_key": "privileged_state"},
    }
    options = options_of(published)
    config = PlaygroundConfig(**options)
    # 1024 * 32 pieces of 30 steps, 16 of each environment.
    assert (config.rollout_length, config.num_batches, config.num_passes) == (480, 32, 16)
    assert (config.actor_sizes, config.critic_sizes) == ([64, 64], [256] * 5)
    assert (config.critic_obs, config.actor_obs, config.action_repeat) == (None, None, 4)
    assert published_observations(published) == (None, "privileged_state")
    assert (config.max_env_steps, config.max_iterations, config.normalize_values) == (60_000_000, None, True)


@pytest.fixture
def playground():
    return pytest.importorskip("mujoco_playground", reason="needs playground: pip install -e '.[playground]'").registry


@pytest.mark.long
def test_environment_of_playground_trains_is_filmed_resumed_and_exported(playground, tmp_path, capsys):
    run_dir = str(tmp_path / "run")
    options = {**SMALL, "episode_length": 20, "run_dir": run_dir, "eval_num_envs": 2, "eval_at_end": True}
    options |= {"video": True, "plots": True, "save_every_n_iterations": 1}
    result = PlaygroundTask("CartpoleBalance", PlaygroundConfig(**options, max_iterations=2)).run()
    assert result.exit_code == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2]
    assert "ctrl_dt: 0.01" in (tmp_path / "run" / "config.yaml").read_text()
    assert list((tmp_path / "run" / "videos").glob("*.mp4"))
    more = PlaygroundTask("CartpoleBalance", PlaygroundConfig(**options, max_iterations=3, resume=run_dir))
    assert more.run().exit_code == 0
    for mode in ("eval", "export"):
        assert exit_code(main, PlaygroundTask, ["CartpoleBalance", f"run_mode={mode}", f"checkpoint={run_dir}"]) == 0
    assert ksim.load_policy(run_dir)(np.zeros(5)).shape == (1,)


@pytest.mark.long
def test_environment_is_stepped_natively_on_a_cpu_unless_mjx_is_asked_for(playground):
    for engine, is_native in {"auto": True, "mujoco": True, "mjx": False}.items():
        task = PlaygroundTask("CartpoleBalance", PlaygroundConfig(**SMALL, engine=engine))
        env = task.environment
        assert isinstance(env, WrappedEnvironment)
        assert (env.physics is not None) == is_native
        assert env.engine_name == ("mujoco" if is_native else "mjx")
        assert task.eval_environment.engine_name == "mujoco"
    pytest.importorskip("brax.envs")
    for backend, is_native in {"mjx": True, "generalized": False}.items():
        task = BraxTask("inverted_pendulum", BraxConfig(**SMALL, env_options=[f"backend={backend}"]))
        env = task.environment
        assert isinstance(env, WrappedEnvironment)
        assert (env.physics is not None) == is_native
        assert env.engine_name == task.eval_environment.engine_name == ("mujoco" if is_native else backend)


@pytest.mark.long
def test_names_and_options_that_playground_does_not_know_are_refused(playground, capsys):
    assert exit_code(main, PlaygroundTask, ["CheetaRun"]) == 2
    assert "Did you mean 'CheetahRun'" in capsys.readouterr().err
    assert exit_code(main, PlaygroundTask, ["CheetahRun", "--help"]) == 0
    assert "playground NAME [KEY=VALUE ...]" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"cannot be used with env_options \(wings=2\).*It knows .*naconmax"):
        PlaygroundTask("CheetahRun", PlaygroundConfig(env_options=["wings=2"]))
    with pytest.raises(ConfigError, match="has no randomization of its own"):
        PlaygroundTask("CheetahRun", PlaygroundConfig(**SMALL, randomize=True)).check()
    with pytest.raises(ConfigError, match="vectors only, not from pixels"):
        PlaygroundTask("CartpoleBalance", PlaygroundConfig(env_options=["vision=true"]))
    with pytest.raises(ConfigError, match=r"env_options \(impl=warp\): .* Set engine=warp"):
        PlaygroundTask("CartpoleBalance", PlaygroundConfig(env_options=["impl=warp"]))
    pytest.importorskip("brax.envs")
    with pytest.raises(ConfigError, match=r"wings=2\): TypeError.*It knows .*contact_cost_weight"):
        BraxTask("ant", BraxConfig(env_options=["wings=2"]))
    with pytest.raises(ConfigError, match=r"engine \(mujoco\) is for .* Add env_options=\[backend=mjx\]"):
        BraxTask("ant", BraxConfig(engine="mujoco"))
    with pytest.raises(ConfigError, match="swimmer cannot be used: TypeError"):
        BraxTask("swimmer", BraxConfig(**SMALL)).check()


@pytest.mark.long
def test_environment_that_a_program_registers_is_found_by_its_name(playground):
    suite = playground.dm_control_suite
    suite.register_environment("MyMass", suite._envs["PointMass"], suite._cfgs["PointMass"])
    try:
        assert PlaygroundTask.published_config("MyMass").num_envs > 0
        task = PlaygroundTask("MyMass", PlaygroundConfig(**SMALL))
        assert task.environment.engine_name == "mujoco"  # the package's own class
    finally:
        del suite._envs["MyMass"], suite._cfgs["MyMass"]


@pytest.mark.long
@only_in_full("trains environments that other tests train")
def test_commands_of_the_page_on_environments_train(playground, tmp_path, capsys):
    page = (ROOT / "docs" / "own_environment.md").read_text()
    commands = re.findall(r"^python -m ksim\.envs\.(\w+) (.*)", page, re.MULTILINE)
    assert [module for module, _ in commands] == ["playground", "brax"]
    for module, arguments in commands:
        small = ["num_envs=4", "rollout_length=2", "num_batches=2", "num_passes=1", "max_iterations=1", "num_devices=1"]
        quiet = ["eval_at_end=false", "plots=false", "tensorboard=false", f"run_dir={tmp_path / module}"]
        argv = with_last_values([*arguments.split(), *small, *quiet])
        assert exit_code(main, {"playground": PlaygroundTask, "brax": BraxTask}[module], argv) == 0
        assert "iteration 1/1" in capsys.readouterr().out


def test_environment_of_brax_starts_with_little_noise_and_rewards_of_any_scale():
    pytest.importorskip("brax.envs", reason="needs brax: pip install -e '.[brax]'")
    config = BraxTask.published_config("ant")
    assert (config.env, config.init_std, config.normalize_values) == ("ant", 0.5, True)
