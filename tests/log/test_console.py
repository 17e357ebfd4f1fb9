import io
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import rich.console

from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask
from ksim.host import terminal
from ksim.host.terminal import Activity, console, print_figures, print_line
from ksim.log.console import ConsoleLogger, iteration_line, sparkline
from ksim.log.logger import RunInfo
from ksim.mdp import actions, curriculum, env_curriculum, observations, rewards
from ksim.mdp.noise import UniformNoise
from ksim.physics.terrain import FlatTile, RoughTile, Terrain
from ksim.preflight.devices import inspect_setup
from ksim.preflight.start import inspect_start, print_distributed_setup, print_start, print_terms, term_rows
from tests.support.processes import ROOT
from tests.support.tasks import BipedConfig, BipedTask, point_mass_task


class Task(BipedTask):
    def get_observations(self, physics_model):
        noisy = observations.JointPosition(noise=UniformNoise(magnitude=0.01))
        return {"past": observations.History(observation=observations.JointVelocity(), steps=4), "noisy": noisy}

    def get_rewards(self, physics_model):
        return [rewards.TorqueEffort(scale=-2e-5)]

    def get_action_filters(self, physics_model):
        return {"late": actions.ActionLatency()}

    def get_curricula(self, physics_model):
        hills = env_curriculum.TerrainCurriculum(command="velocity", episode_s=0.2, start=0.5)
        return {"speed": curriculum.LinearCurriculum(end_iteration=10, start=0.25), "hills": hills}

    def get_terrain(self):
        return Terrain(tiles=(FlatTile(), RoughTile()))


def test_output_that_cannot_be_written_raises_nothing(monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(console, "_file", full)
        print_line("lost")
        # Else its end would be tried again when the file is closed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        monkeypatch.setattr(console, "_file", closed)
        monkeypatch.setattr(console, "quiet", False)
        print_line("lost")
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())


def test_table_of_terms_shows_shapes_and_scales(capsys):
    print_terms(term_rows(Task(BipedConfig(num_devices=1)).environment, "device"))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert ["observation/actor", "past", "History", "4 x 2", ""] in rows
    assert ["command", "velocity", "VelocityCommand", "3", ""] in rows
    assert ["reward", "torque_effort", "TorqueEffort", "", "-2e-05"] in rows
    assert ["observation/actor", "noisy", "JointPosition + UniformNoise", "2", ""] in rows
    assert ["action_filter", "late", "ActionLatency", "", ""] in rows
    assert ["curriculum", "speed", "LinearCurriculum from 0.25", "", ""] in rows
    assert ["curriculum", "hills", "TerrainCurriculum from 0.5, each environment", "", ""] in rows
    assert [row[1] for row in rows if row[:1] == ["curriculum"]] == ["speed", "hills"]
    assert ["terrain", "tile 1", "RoughTile", "", ""] in rows
    assert ["actuators", "", "PositionActuators", "2", ""] in rows


def test_iteration_line_shows_the_reward_per_second_from_the_start_and_the_return_once_an_episode_has_ended():
    metrics = {"iteration": 1, "time/env_steps_per_s": 1.0, "policy/bad_updates": 0}
    metrics |= {"time/rollout_s": 3.0, "time/update_s": 1.0, "episode/return": np.nan, "episode/length": np.nan}
    for width in (None, 40):
        line = iteration_line(metrics, None, None, rate=2.5, width=width)
        assert "reward/s 2.50" in line
        assert "return" not in line
    line = iteration_line(metrics | {"episode/return": 31.0, "episode/length": 500.0}, None, None, rate=2.5, width=80)
    assert "return 31.00 · length 500.00 · reward/s 2.50" in line


def test_brackets_in_names_are_no_markup(capsys):
    print_terms([("reward", "feet[left]", "Alive", "", "1"), ("reward", "[/left]", "Alive", "", "1")])
    print_figures("Figures", {"error/[/b]/x": "1"})
    out = capsys.readouterr().out
    assert all(name in out for name in ("feet[left]", "[/left]", "error/[/b]/x"))


def test_resumed_run_shows_the_age_of_the_last_episodes(capsys):
    info = RunInfo(run_dir=Path("run"), task_name="task", config={}, iteration=5, last_episodes={"episode/return": 3.0})
    logger = ConsoleLogger("plain")
    logger.open(info)
    logger.log(METRICS | {"episode/return": math.nan, "iteration": 7.0}, 7, 700)
    assert "return 3.00 (2 ago)" in capsys.readouterr().out


def test_line_goes_on_showing_the_last_episodes_that_ended(tmp_path, capsys):
    # Episodes of 50 steps are cut in the seventh rollout of 8 steps, and none in the two after it.
    point_mass_task(num_devices=1, max_env_steps=9 * 16 * 8, run_dir=str(tmp_path / "run")).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    assert lines[-1].startswith("iteration 9/9 ")
    assert "return" not in lines[0]
    episodes = [line[line.index("return") : line.index("reward")] for line in lines[6:]]
    assert "length 50.00" in episodes[0]
    assert [line.replace(" (1 ago)", "").replace(" (2 ago)", "") for line in episodes] == 3 * [episodes[0]]
    assert "(1 ago)" in episodes[1]
    assert "(2 ago)" in episodes[2]


METRICS = {
    "iteration": 173.0, "time/env_steps_per_s": 12_852.0, "time/rollout_s": 3.0, "time/update_s": 1.0,
    "episode/return": 31.94, "episode/length": 500.0, "rollout/reward": 0.0641, "policy/bad_updates": 0.0,
    "policy/kl": 0.0123, "policy/learning_rate": 1e-3, "error/velocity/lin_vel_m_s": 0.25,
    **{f"reward/{name}": 0.1 for name in ("alive", "track_linear_velocity", "feet_phase", "action_rate")},
}  # fmt: skip


def test_iteration_line_fits_the_terminal_and_keeps_what_matters_most():
    wide = iteration_line(METRICS, 700, 217.0, {"KL": "policy/kl"}, rate=3.205, age=3)
    assert wide == (
        "iteration 173/700 · ETA 3:37 · 12,852 env steps/s · rollout 75% update 25% · return 31.94 (3 ago) · "
        "length 500.00 · reward/s 3.21 · KL 0.0123"
    )
    for width in (80, 60, 40):
        line = iteration_line(METRICS, 700, 217.0, {"KL": "policy/kl"}, rate=3.2, age=3, width=width)
        assert len(line) <= width
        assert "iteration 173/700" in line
        assert "return 31.94" in line
    assert "12,852" in iteration_line(METRICS, 700, 217.0, rate=3.2, age=3, width=80)
    bad = METRICS | {"policy/bad_updates": 2.0}
    assert "2 non-finite updates skipped" in iteration_line(bad, 700, None, rate=3.2, width=40)
    exploding = METRICS | {"termination/not_finite": 0.97, "rollout/not_finite": 0.01}
    assert "98 % of steps non-finite" in iteration_line(exploding, 700, None, rate=3.2, width=40)


def as_text(logger):
    """The lines of the live view."""
    pad = rich.console.Console(width=80)
    with pad.capture() as captured:
        pad.print(logger._view.render())
    return captured.get()


@pytest.fixture
def screen(monkeypatch):
    """The output to a terminal of 80 columns."""
    file = io.StringIO()
    terminal = type(console)(file=file, force_terminal=True, width=80, height=24, highlight=False)
    for module in ("ksim.log.console", "ksim.host.terminal"):
        monkeypatch.setattr(f"{module}.console", terminal)
    return file


def test_terminal_shows_the_start_on_one_screen_and_the_log_has_the_tables(screen, monkeypatch, caplog):
    monkeypatch.setattr("ksim.preflight.start.console", terminal.console)
    task = HumanoidWalkingDistributedTask(HumanoidWalkingDistributedConfig(num_envs=64, num_devices=2))
    with caplog.at_level("INFO"):
        print_distributed_setup(inspect_setup(task))
        print_start(inspect_start(task))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    assert len(shown) <= 24
    assert max(map(len, shown)) <= 80
    words = " ".join(" ".join(shown).split())
    for name, _, class_name, *_ in term_rows(task.environment, "device"):
        assert name in words
        assert class_name in caplog.text
    assert "track_linear_velocity 2" in words


def test_live_view_shows_the_run_in_80_columns(screen):
    run = RunInfo(
        run_dir=ROOT, task_name="task", config={"ctrl_dt": 0.02}, max_iterations=700, eta_s=lambda: 217.0,
        devices="2 x cpu",
        last_episodes={"episode/return": 31.94, "episode/length": 500.0}, line={},
    )  # fmt: skip
    logger = ConsoleLogger()
    logger.open(run)
    try:
        assert "The first iteration" in as_text(logger)
        logger.log(METRICS | {"iteration": 161.0, "episode/return": math.nan}, 161, 0)
        assert "return" not in as_text(logger)
        for i in range(12):
            rewards_now = {"reward/feet_phase": 0.1 + 0.01 * i, "reward/alive": 0.1 - 0.03 * i}
            logger.log(METRICS | rewards_now | {"iteration": 162.0 + i, "episode/return": float(i)}, 162 + i, 0)
        for i in range(3):
            logger.log(METRICS | {"iteration": 174.0 + i, "episode/return": math.nan}, 174 + i, 0)
        logger.log_evaluation({"iteration": 170, "figures": {"return": {"mean": 35.0}, "survival": {"mean": 1.0}}})
        with Activity.doing("Evaluating"):
            Activity.tell("Evaluating: 12 of 64 episodes ...")
            logger._view._since_s -= 75
            Activity.notice = "Stopping as soon as what is running is done."
            text = as_text(logger)
    finally:
        logger.close()
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "iteration 176 of 700", "25%", "3:37 left", "12,852 env steps/s", "rollout 75% update 25%", "2 x cpu",
        "31.94  ▁▂▂▃▄▄▅▅▆▇▇█  3 iterations ago", "500 control steps", "velocity 0.25 m/s",
        "learning rate 0.001", "KL 0.012", "return 35.00 · survived 100% · iteration 170", "12 of 64 episodes ... 75 s",
        "reward      3.21 per second", "evaluation  return", "Stopping as soon as",
    ):  # fmt: skip
        assert words in text, words
    assert re.search(r"rewards +alive [+-]0\.\d+ · feet_phase [+-]0\.\d+", text)
    assert "iteration 176 of 700" in screen.getvalue()
    assert Activity.notice == ""


def test_line_too_long_for_a_terminal_is_broken_between_words_and_a_command_is_not(screen, monkeypatch):
    monkeypatch.setattr(terminal.console, "soft_wrap", True)
    words = [f"figure_{i} 0.{i:03d} m/s" for i in range(30)]
    command = f"  python -m examples.walking run_mode=eval checkpoint={'long/' * 20}"
    print_line(f"{' · '.join(words)}\n{command}")
    *rows, last = screen.getvalue().splitlines()
    assert max(map(len, rows)) <= 80
    assert " ".join(" ".join(rows).split()) == " · ".join(words)
    assert last == command


def test_lines_are_wrapped_in_a_notebook_and_whole_in_a_file(monkeypatch):
    line = " ".join(["evaluation"] * 30)
    for is_notebook, width in ((True, terminal.CELL_WIDTH), (False, len(line))):
        output = terminal.standard_output(is_notebook)
        monkeypatch.setattr(terminal, "console", output)
        with output.capture() as captured:
            print_line(line)
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(x.strip() for x in lines) == line


class Cell:
    """A cell that shows nothing."""

    def __init__(self, render): ...

    start = refresh = stop = lambda self: None


def test_live_view_wraps_what_is_too_long_for_a_cell(monkeypatch):
    cell = terminal.standard_output(is_notebook=True)
    monkeypatch.setattr("ksim.log.console.console", cell)
    monkeypatch.setattr("ksim.log.console.NotebookCell", Cell)
    errors = {f"error/velocity/quantity_number_{i}_m_s": 0.5 for i in range(12)}
    logger = ConsoleLogger("live")
    logger.open(RunInfo(run_dir=ROOT, task_name="task", config={}, last_episodes={}))
    try:
        logger.log(METRICS | errors, 173, 0)
        with cell.capture() as captured:
            cell.print(logger._view.render())
    finally:
        logger.close()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    assert max(map(len, shown.splitlines())) <= terminal.CELL_WIDTH
    assert "quantity number 11 0.5 m/s" in " ".join(shown.split())


def test_activity_is_a_line_where_there_is_no_terminal(capsys):
    with Activity.doing("Plotting"):
        Activity.tell("1 of 2")
    assert capsys.readouterr().out == "Plotting ...\n"


def test_sparkline_spans_from_the_lowest_to_the_highest():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([0.0, math.nan, 1.0, math.inf]) == "▁█"
    assert sparkline([]) == ""
