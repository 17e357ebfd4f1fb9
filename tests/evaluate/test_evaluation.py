import dataclasses
import json
import os
import signal

import jax
import numpy as np
import pytest

from ksim import ConfigError
from ksim.evaluate import evaluator
from ksim.evaluate.evaluator import Estimate
from ksim.mdp import commands, events, rewards, terminations
from ksim.policy.load import policy_context
from ksim.rollout.mdp_environment import MdpEnvironment
from tests.support.checkpoints import newest, save_run, saved_learner
from tests.support.tasks import BipedConfig, BipedTask, assert_same_parameters, point_mass_task


def read_evaluations(run_dir):
    return [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]


def test_evaluations_of_a_run_are_on_schedule_and_at_the_end(tmp_path, capsys):
    options = {"num_devices": 1, "max_iterations": 5, "eval_every_n_iterations": 2, "eval_at_end": True}
    point_mass_task(**options, eval_num_envs=4, run_dir=str(tmp_path / "run"), tensorboard=True).run()
    evaluations = read_evaluations(tmp_path / "run")
    assert [e["iteration"] for e in evaluations] == [2, 4, 5]
    assert [e["num_episodes"] for e in evaluations] == [4, 4, 4]
    # Its episodes last 50 steps unless they fall.
    assert all(e["figures"]["length"]["mean"] <= 50 for e in evaluations)
    assert set(evaluations[0]["figures"]["return"]) == {"mean", "low", "high"}
    out = capsys.readouterr().out
    assert "evaluation at iteration 4 (4 episodes in PointMass)" in out
    assert "evaluation at iteration 5" in (tmp_path / "run" / "process_0.log").read_text()


def test_evaluation_changes_nothing_of_the_training(tmp_path):
    learners = []
    for name, every in (("with", 1), ("without", None)):
        task = point_mass_task(
            num_devices=1, max_iterations=3, eval_every_n_iterations=every, run_dir=str(tmp_path / name)
        )
        task.run()
        learners.append(saved_learner(task, tmp_path / name))
    assert_same_parameters(*learners, rtol=0, atol=0)


def test_evaluation_is_compiled_once_for_all_policies_and_chunks(monkeypatch):
    monkeypatch.setattr(evaluator, "CHUNK_STEPS", 10)
    compiled, counts = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    task = point_mass_task(num_devices=1, eval_num_envs=2)
    context = policy_context(task)
    evaluate = evaluator.Evaluator(context)
    recorder = evaluator.Recorder(context.env, seed=0, device=context.device)

    def counted(advance):
        def advance_and_count(*args):
            before, result = len(compiled), advance(*args)
            counts.append(len(compiled) - before)
            return result

        return advance_and_count

    for runner in (evaluate._runner, recorder):
        monkeypatch.setattr(runner, "_advance", counted(runner._advance))
    network = task.initial_learner().network
    scaled = jax.tree.map(lambda x: 2.0 * x if isinstance(x, jax.Array) else x, network)
    returns = [evaluate(model).figures["return"].mean for model in (network, scaled)]
    assert returns[0] != returns[1]
    assert len(counts) > 3
    assert sum(counts) == 1
    counts.clear()
    recorder(network, lambda: False)
    assert len(counts) > 1
    assert sum(counts) == 1


def test_stop_signal_during_an_evaluation_ends_it_and_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluator, "CHUNK_STEPS", 10)
    run = evaluator.EpisodeRunner.__call__

    def run_and_signal(self, model, should_stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert run(self, model, should_stop) is None

    monkeypatch.setattr(evaluator.EpisodeRunner, "__call__", run_and_signal)
    task = point_mass_task(
        num_devices=1, max_iterations=9, eval_every_n_iterations=2, eval_at_end=True, run_dir=str(tmp_path / "run")
    )
    assert task.run().exit_code == 128 + signal.SIGTERM
    assert newest(tmp_path / "run").name == "2"
    assert not (tmp_path / "run" / "evaluations.jsonl").exists()


def test_failing_evaluation_is_said_once_counted_and_ends_nothing(tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise OSError("no simulator today")

    monkeypatch.setattr(evaluator.EpisodeRunner, "__call__", fail)
    task = point_mass_task(
        num_devices=1, max_iterations=4, eval_every_n_iterations=1, eval_at_end=True, run_dir=str(tmp_path / "run")
    )
    assert task.run().exit_code == 0
    out = capsys.readouterr().out
    assert out.count("no simulator today") == 1
    assert "failed: evaluation" in out
    log = (tmp_path / "run" / "process_0.log").read_text()
    assert log.count("WARNING ksim.host.terminal") == 1


class Evaluated(BipedTask):
    """Evaluated on shorter episodes than it is trained on."""

    def get_eval_environment(self, engine):
        return Shorter(self.config).get_environment(engine, num_devices=1)


class Shorter(BipedTask):
    def get_terminations(self, physics_model):
        return [terminations.TimeLimit(seconds=0.06)]


def test_robot_is_evaluated_in_native_mujoco_on_terms_of_its_own():
    evaluation = evaluator.Evaluator(policy_context(Evaluated(BipedConfig(num_devices=1))))(
        Evaluated(BipedConfig(num_devices=1)).initial_learner().network
    )
    # 0.06 s are 3 control steps of 0.02 s.
    assert (evaluation.figures["length"].mean, evaluation.figures["survival"].mean) == (3, 1)
    assert evaluation.engine == evaluation.training_engine == "mujoco"
    assert evaluation.gap is None
    assert "none, trained in" in evaluation.gap_words()
    errors = {name for name in evaluation.figures if name.startswith("error/")}
    assert errors == {"error/velocity/lin_vel_m_s", "error/velocity/yaw_rate_rad_s"}
    assert 0 < evaluation.figures["error/velocity/lin_vel_m_s"].mean < 3
    line = evaluator.evaluation_line(2, evaluation)
    assert f"velocity error {evaluation.figures['error/velocity/lin_vel_m_s'].words()} m/s · yaw rate error" in line


def test_environment_for_evaluation_must_show_what_training_shows():
    class Other(BipedTask):
        def get_eval_environment(self, engine):
            return WithoutCommand(self.config).get_environment(engine, num_devices=1)

    class WithoutCommand(BipedTask):
        def get_commands(self, physics_model):
            return {"velocity": commands.VelocityCommand(), "height": commands.HeightCommand(height=(0.4, 0.5))}

    class Asked(BipedTask):
        def get_commands(self, physics_model):
            return (WithoutCommand if self.evaluating else BipedTask).get_commands(self, physics_model)

    for task in (Other, Asked):
        with pytest.raises(ConfigError, match="The environment of evaluations must show what training shows"):
            task(BipedConfig(num_devices=1)).check()


def test_hooks_may_return_other_terms_when_evaluating():
    class Pushed(BipedTask):
        def get_events(self, physics_model):
            return [] if self.evaluating else [events.PushVelocity()]

    task = Pushed(BipedConfig(num_devices=1))
    task.check()
    evaluated, trained = task.eval_environment, task.environment
    assert isinstance(evaluated, MdpEnvironment)
    assert isinstance(trained, MdpEnvironment)
    assert not evaluated.mdp.events
    assert list(trained.mdp.events) == ["push_velocity"]
    assert not task.evaluating


@pytest.mark.long
def test_gap_is_the_difference_of_return_over_episodes_that_start_alike():
    class Task(BipedTask):
        """As if in MJX each episode went on for a step more."""

        def get_rewards(self, physics_model):
            return [rewards.Alive(scale=10.0)]

        def get_eval_environment(self, engine):
            seconds = {"mujoco": 0.04, "mjx": 0.06}[engine]
            return type("", (Task,), {"get_terminations": lambda *_: [terminations.TimeLimit(seconds=seconds)]})(
                self.config
            ).get_environment("mujoco", num_devices=1)

    model = Task(BipedConfig(num_devices=1)).initial_learner().network
    evaluation = evaluator.Evaluator(policy_context(Task(BipedConfig(num_devices=1, engine="mjx"))))(model)
    assert (evaluation.engine, evaluation.training_engine) == ("mujoco", "mjx")
    # 10 a second for 0.04 s, against 0.06 s.
    assert evaluation.figures["return"].mean == pytest.approx(0.4)
    assert evaluation.gap.record() == pytest.approx({"mean": -0.2, "low": -0.2, "high": -0.2})
    # -0.2 of 0.6 are a third.
    assert evaluation.gap_words() == "-0.20 ± 0.00 (-33.3 %) in mujoco against mjx"


def test_run_mode_eval_writes_its_figures_beside_the_checkpoint_or_where_it_is_told(tmp_path, capsys):
    run_dir = tmp_path / "run"
    save_run(point_mass_task(num_devices=1), run_dir)
    point_mass_task(run_mode="eval", checkpoint=str(run_dir), eval_num_envs=3).run()
    record = json.loads((run_dir / "evaluation.json").read_text())
    assert record["num_episodes"] == 3
    assert record["return_gap"] is None
    out = capsys.readouterr().out
    for words in ("return", "survived", "none, trained in", "3, one per environment"):
        assert words in out
    point_mass_task(run_mode="eval", checkpoint=str(run_dir), eval_output=str(tmp_path / "there")).run()
    assert (tmp_path / "there" / "evaluation.json").exists()


def test_interrupted_run_mode_eval_leaves_the_figures_that_were_there(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    save_run(point_mass_task(num_devices=1), run_dir)
    (run_dir / "process_0.log").touch()
    monkeypatch.setattr(evaluator.Evaluator, "__call__", lambda *_: None)
    before = {path.name for path in run_dir.iterdir()}
    point_mass_task(run_mode="eval", checkpoint=str(run_dir)).run()
    assert {path.name for path in run_dir.iterdir()} == before


@pytest.mark.parametrize("options", [{}, {"run_mode": "view", "checkpoint": "run"}])
def test_output_of_evaluations_is_refused_where_nothing_is_written_to_it(options):
    with pytest.raises(ConfigError, match="is written by run_mode=eval"):
        point_mass_task(eval_output="there", **options)


def test_evaluation_does_not_depend_on_the_training_seed_but_on_its_own():
    figures = []
    for options in ({"seed": 0}, {"seed": 1}, {"seed": 1, "eval_seed": 1}):
        task = point_mass_task(num_devices=1, eval_num_envs=2, **options)
        model = point_mass_task(num_devices=1).initial_learner().network
        figures.append(
            dataclasses.asdict(evaluator.Evaluator(policy_context(task))(model))["figures"]["return"]["mean"]
        )
    assert figures[0] == figures[1]
    assert figures[1] != figures[2]
    assert np.isfinite(figures).all()


def test_episodes_of_an_evaluation_are_none_of_a_training_with_the_same_seed():
    raw = lambda key: np.asarray(jax.random.key_data(key)).tolist()
    training = [raw(key) for key in jax.random.split(jax.random.key(0), 8)]
    assert raw(evaluator.episode_key(0)) not in training


@pytest.mark.parametrize(
    ("mean_return", "trained", "warns"),
    [(10.0, 50.0, True), (45.0, 50.0, False), (-80.0, -50.0, True), (-60.0, -50.0, False), (60.0, 50.0, False)],
)
def test_deterministic_policy_that_earns_much_less_than_training_is_warned_of(mean_return, trained, warns):
    figures = {
        "return": Estimate(mean_return, mean_return - 2, mean_return + 2),
        "length": Estimate(100.0, 99.0, 101.0),
    }
    evaluation = evaluator.Evaluation("mujoco", "mujoco", 8, 0, 0, figures, None, 1.0)
    found = evaluator.shortfall_message(evaluation, {"episode/return": 2 * trained, "episode/length": 200.0})
    assert (found is not None) == warns
    if found:
        assert f"earns {mean_return / 100:.3g} per step, training episodes {trained / 100:.3g}" in found
    assert evaluator.shortfall_message(evaluation, {}) is None
    uncertain = {**figures, "return": Estimate(mean_return, -200.0, 200.0)}
    assert (
        evaluator.shortfall_message(
            dataclasses.replace(evaluation, figures=uncertain), {"episode/return": trained, "episode/length": 100.0}
        )
        is None
    )


@pytest.mark.long
def test_run_warns_when_its_policy_needs_its_noise(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(evaluator, "SHORTFALL", -1e6)  # anything is a shortfall now
    options = {"num_devices": 1, "max_iterations": 3, "eval_at_end": True, "rollout_length": 64}
    point_mass_task(**options, eval_num_envs=2, run_dir=str(tmp_path / "run")).run()
    assert "Warning: the deterministic policy earns" in capsys.readouterr().out
    assert "lower init_std and entropy_coef" in (tmp_path / "run" / "process_0.log").read_text()
