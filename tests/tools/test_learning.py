"""benchmarks/learning.py: its tables and curves, what it leaves out when started again, and short runs."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import learning
from benchmarks.brax_ppo import replicated
from benchmarks.learning import Run, brax_arguments, logged, read_results, train_with_brax, train_with_ksim
from benchmarks.learning_table import draw_curves, marks_of, return_at, table
from benchmarks.learning_task import measured, task_of
from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim.errors import ConfigError
from tests.support.processes import ROOT
from tests.support.scale import only_in_full

POINT_MASS = "examples.point_mass:PointMassTask"


def result_of(variant, seed, returns, *, task="sway", steps_per_s=100.0, first_update_s=None):
    evaluations = [{"env_steps": 10 * (i + 1), "return": x} for i, x in enumerate(returns)]
    run = {"task": task, "variant": variant, "seed": seed}
    return {"run": run, "evaluations": evaluations, "steps_per_s": steps_per_s, "first_update_s": first_update_s}


def test_table_has_means_over_seeds_with_students_interval():
    results = [result_of("plain", seed, [0.0, seed]) for seed in (1, 2, 3)]
    results += [result_of("once", 0, [5.0, 6.0], steps_per_s=1234.4, first_update_s=2.5)]
    # s = 1, t(0.975, 2) = 4.303, over sqrt(3): 2.5.
    assert table(results).splitlines() == [
        "| sway | seeds | return at 10 | return at 20 | steps/s | first update, s |",
        "|---|---|---|---|---|---|",
        "| plain | 3 | 0.0 ± 0.0 | 2.0 ± 2.5 | 100 ± 0 | - |",
        "| once | 1 | 5.0 | 6.0 | 1,234 | 2.5 |",
    ]


def test_tasks_have_tables_of_their_own_with_marks_of_the_shortest_run():
    results = [result_of("a", 0, range(8)), result_of("b", 0, range(5)), result_of("a", 0, [1], task="roll")]
    assert marks_of(results[:2]) == [10, 20, 40, 50]
    assert [part.split(" |")[0] for part in table(results).split("\n\n")] == ["| sway", "| roll"]


def test_return_between_evaluations_is_interpolated_and_none_is_made_up_beyond_them():
    result = result_of("a", 0, [1.0, 3.0])
    assert [return_at(result, steps) for steps in (10, 15, 20)] == [1.0, 2.0, 3.0]
    assert np.isnan([return_at(result, steps) for steps in (5, 25)]).all()


def test_curves_are_drawn_for_several_tasks_and_for_single_seeds(tmp_path):
    results = [result_of("a", seed, [seed, 2.0], task=task) for seed in (0, 1) for task in ("sway", "roll")]
    draw_curves([*results, result_of("b", 0, [1.0])], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


class Trainers:
    """Stands for training: fails where it is told to, and keeps which runs it was asked for."""

    def __init__(self, monkeypatch):
        self.asked, self.failing = [], set()
        monkeypatch.setattr(learning, "TRAINERS", {"ksim": self, "brax": self})

    def __call__(self, run, directory, cache):
        self.asked.append(run.name)
        if run.seed in self.failing:
            raise RuntimeError("It fell.")
        found = result_of(run.variant, run.seed, [run.reward_scale, 2.0])
        del found["run"]
        return found


@pytest.fixture
def trainers(monkeypatch):
    return Trainers(monkeypatch)


def benchmark(*more, seeds=("0", "1")):
    return learning.main(["out", "--tasks", POINT_MASS, "--seeds", *seeds, "--steps", "4000", *more])


def test_benchmark_started_again_does_what_is_missing(trainers, tmp_path, capsys):
    variants = ("--variant", "a", "--variant", "b", "reward_scale=10", "gamma=0.9")
    trainers.failing = {1}
    assert benchmark(*variants) == 1
    assert "a-1 failed: It fell." in capsys.readouterr().err
    trainers.failing, trainers.asked = set(), []
    assert benchmark(*variants, "--options", seeds=("0", "1", "2")) == 0
    name = "examples.point_mass_PointMassTask"
    assert trainers.asked == [f"{name}-{variant}-{seed}" for seed in (1, 2) for variant in "ab"]
    assert "| b | 3 | 10.0 ± 0.0 | 2.0 ± 0.0 |" in capsys.readouterr().out
    assert benchmark(*variants, "--only-table", seeds=("0", "1", "2", "3")) == 0
    assert len(trainers.asked) == 4
    results = read_results(tmp_path / "out" / "results.jsonl")
    assert [x["run"]["options"] for x in results[:2]] == [[], ["gamma=0.9"]]


BAD = {
    "other options": (("--variant", "ksim", "gamma=0.9"), "result of .*-ksim-0 with other options"),
    "an unknown option": (("--options", "gama=0.9"), "no option 'gama'.*gamma"),
    "an unknown learner": (("--variant", "a", "learner=sb3"), "learner.*sb3.*ksim.*brax"),
    "a variant twice": (("--variant", "a", "--variant", "a"), r"Variants \(a, a\)"),
    "a variant without a name": (("--variant", "gamma=0.9"), r"Variants \(gamma=0.9\)"),
    "Brax in another's task": (("--variant", "a", "learner=brax"), "no environment of Playground or Brax"),
    "no scale": (("--variant", "a", "reward_scale=ten"), r"reward_scale \(ten\)"),
    "a limit of its own": (("--options", "max_iterations=3"), "max_iterations=3 is set by the benchmark"),
    "no steps": (("--steps", "0"), r"--steps \(0\)"),
}


@pytest.mark.parametrize(("more", "message"), BAD.values(), ids=BAD)
def test_what_cannot_work_is_an_error_before_anything_runs(trainers, more, message, capsys):
    assert benchmark(seeds=("0",)) == 0
    trainers.asked.clear()
    assert benchmark(*more, seeds=("0",)) == 2
    assert re.search(f"^Error: .*{message}", capsys.readouterr().err)
    assert not trainers.asked


@pytest.mark.parametrize("name", ["point_mass", "gym/Ant-v5", "examples.point_mass:Nothing", "no.module:Task"])
def test_unknown_task_is_an_error(name):
    with pytest.raises(ConfigError, match=f"Task '{name}'"):
        task_of(name)


def test_rewards_are_scaled_for_the_learner_and_not_for_evaluations():
    task = measured(PointMassTask, 10.0)(PointMassConfig(num_envs=8, num_devices=1))
    start = PointMass().reset(jax.random.key(0))
    rewards = [env.step(start, jnp.ones(1)).reward for env in (task.environment, task.eval_environment, PointMass())]
    np.testing.assert_allclose(rewards, rewards[2] * np.array([10, 1, 1]), rtol=1e-6)


def test_evaluations_are_after_whole_iterations_and_cover_the_steps():
    run = Run(POINT_MASS, "a", 0, ("num_envs=10", "rollout_length=10"), "ksim", 1.0, steps=1001, num_evaluations=5)
    # 1,001 steps in five parts of 100 x n: 3 iterations each.
    assert run.iterations_per_evaluation(run.config()) == 3


def test_replicated_arrays_have_a_copy_on_each_device():
    tree = replicated({"a": np.arange(3.0), "b": jnp.int32(4)}, jax.devices()[:2])
    np.testing.assert_array_equal(tree["a"], [[0, 1, 2], [0, 1, 2]])
    assert tree["b"].shape == (2,)
    assert [shard.data.shape for shard in tree["a"].addressable_shards] == [(1, 3), (1, 3)]


def test_brax_gets_the_same_batches_networks_discount_and_steps():
    pytest.importorskip("mujoco_playground", reason="needs playground: pip install -e '.[playground]'")
    options = ("num_envs=64", "rollout_length=16", "num_batches=8", "num_passes=3", "actor_sizes=[8]", "gamma=0.97")
    run = Run("playground/CheetahRun", "b", 5, options, "brax", 0.1, steps=4096, num_evaluations=2)
    found = brax_arguments(run)
    assert (found["batch_size"], found["num_minibatches"], found["unroll_length"]) == (8, 8, 16)
    assert (found["num_updates_per_batch"], found["discounting"], found["seed"]) == (3, 0.97, 5)
    assert (found["policy_hidden_layer_sizes"], found["num_timesteps"], found["num_evals"]) == ([8], 4096, 3)
    # Published are rewards times 10, and a learning rate of 0.001.
    assert (found["reward_scaling"], found["learning_rate"]) == (1.0, 0.001)
    json.dumps(found)


@pytest.mark.long
@only_in_full("as resumed runs, which CI tries")
def test_run_of_ksim_that_was_cut_off_is_resumed(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = ("num_envs=8", "rollout_length=4", "actor_sizes=[4]", "critic_sizes=[4]", "num_devices=1")
    run = Run(POINT_MASS, "a", 0, options, "ksim", 10.0, steps=192, num_evaluations=3)
    where = [f"run_dir={tmp_path / run.name}", "reward_scale=10", "eval_every_n_iterations=2", "eval_at_end=false"]
    limits = ["max_iterations=3", "save_every_n_iterations=1", "tensorboard=false", "video=false", "plots=false"]
    command = ["-m", "benchmarks.learning_task", POINT_MASS, *options, *where, *limits]
    assert list(logged(command, tmp_path / "first.log", None))
    found = train_with_ksim(run, tmp_path, None)
    assert [x["env_steps"] for x in found["evaluations"]] == [64, 128, 192]
    # An episode of 50 steps earns 5 at most, where rewards are not scaled.
    assert all(-200 < x["return"] < 5 for x in found["evaluations"])
    assert found["steps_per_s"] > 0
    assert "iteration 4/6" in (tmp_path / f"{run.name}.log").read_text()


@pytest.mark.long
@only_in_full("trains with Brax's PPO for a minute")
def test_brax_trains_and_is_evaluated(tmp_path, monkeypatch):
    pytest.importorskip("brax", reason="needs brax: pip install -e '.[brax]'")
    monkeypatch.chdir(ROOT)
    options = ("num_envs=8", "rollout_length=4", "num_batches=2", "num_passes=1", "actor_sizes=[4]", "critic_sizes=[4]")
    options += ("episode_length=20", "eval_num_envs=2", "env_options=[backend=spring]", "num_devices=1")
    run = Run("brax/inverted_pendulum", "b", 0, options, "brax", 1.0, steps=128, num_evaluations=2)
    found = train_with_brax(run, tmp_path, None)
    assert [x["env_steps"] for x in found["evaluations"]] == [64, 128]
    assert all(0 < x["return"] <= 20 for x in found["evaluations"])
    assert found["steps_per_s"] > 0 < found["first_update_s"]
