import ast
import os

import numpy as np
import pytest

from ksim.host.terminal import console, print_line
from ksim.log.console import iteration_line
from ksim.mdp import actions, curriculum, env_curriculum, observations, rewards
from ksim.mdp.noise import UniformNoise
from ksim.physics.terrain import FlatTile, RoughTile, Terrain
from ksim.preflight.start import term_rows
from ksim.preflight.tables import print_terms
from tests.processes import ROOT
from tests.tasks import BipedConfig, BipedTask, point_mass_task


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


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
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


COLLECTIVE = {"gather_rows", "gather_texts", "wait_for_all", "meet_peers", "together", "verify_distributed_setup"}


def test_nothing_that_prints_runs_a_collective():
    for path in (ROOT / "ksim").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and "print" in function.name:
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                called = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                assert not called & COLLECTIVE, f"{path}: {function.name}"


def test_iteration_line_shows_a_dash_where_no_episode_has_ended():
    metrics = {"iteration": 1, "time/env_steps_per_s": 1.0, "rollout/reward": 0.5, "policy/bad_updates": 0}
    metrics |= {"time/rollout_s": 3.0, "time/update_s": 1.0}
    line = iteration_line(metrics | {"episode/return": np.nan, "episode/length": np.nan}, None, None)
    assert "return - · length -" in line


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_line_goes_on_showing_the_last_episodes_that_ended(tmp_path, capsys):
    # Episodes of 50 steps are cut in the seventh rollout of 8 steps, and none in the two after it.
    point_mass_task(num_devices=1, max_iterations=9, run_dir=str(tmp_path / "run")).run()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("iteration")]
    episodes = [line[line.index("return") : line.index("reward")] for line in lines]
    assert "return - " in episodes[0]
    assert "length 50.00" in episodes[6]
    assert episodes[6] == episodes[7] == episodes[8]
