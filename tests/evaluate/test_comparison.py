"""Final figures and settings of runs in words."""

import os

import numpy as np
import pytest

from ksim.evaluate.comparison import Figure, differing_settings, final_figures, learned
from ksim.evaluate.curves import Curves

NONE = {"mean": None, "low": None, "high": None}


def estimate(mean, half_width):
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}


def make_curves(name="run", figures=None, *, num_episodes=64, returns=(1.0, float("nan"))):
    metrics = {"env_steps": np.array([100.0, 200.0]), "episode/return": np.array(returns)}
    record = {"iteration": 2000, "env_steps": 200, "num_episodes": num_episodes, "figures": figures}
    return Curves(name, metrics, [record] if figures else [])


FIGURES = {
    "return": estimate(40.0, 2.0),
    "length": estimate(500.0, 0.0),
    "survival": {"mean": 1.0, "low": 0.943, "high": 1.0},
    "error/velocity/lin_vel_m_s": estimate(0.12, 0.015),
    "error/velocity/yaw_rate_rad_s": estimate(0.2, 0.03),
}


def test_run_learned_what_its_last_evaluation_measured():
    expected = (
        "After 2,000 iterations: 64 of 64 survived (95 % interval 94-100 %), velocity error 0.120 ± 0.015 m/s, "
        "yaw rate error 0.200 ± 0.030 rad/s."
    )
    assert learned(make_curves(figures=FIGURES)) == expected


@pytest.mark.parametrize(
    ("figures", "returns", "expected"),
    [
        ({"return": estimate(40.0, 2.0)}, (1.0, 2.0), "After 2,000 iterations: return 40.0 ± 2.0."),
        ({"return": NONE, "survival": NONE}, (1.0, 2.0), "After 2,000 iterations: no figures."),
        (None, (1.5, np.nan), "2 iterations without an evaluation: the last return in training was 1.5."),
        (None, (np.nan, np.nan), "2 iterations without an evaluation: no episode has ended."),
    ],
    ids=["only a return", "null", "no evaluation", "no episode"],
)
def test_run_learned_what_there_is(figures, returns, expected):
    assert learned(make_curves(figures=figures, returns=returns)) == expected


def test_figures_of_runs_have_their_differences_from_the_first():
    better = FIGURES | {"error/velocity/lin_vel_m_s": estimate(0.06, 0.02), "return": estimate(41.0, 1.5)}
    better["survival"] = {"mean": 0.5, "low": 0.38, "high": 0.62}
    figures = final_figures([make_curves(figures=FIGURES), make_curves(figures=better)])
    assert list(figures) == ["velocity error", "yaw rate error", "survived", "return", "length", "evaluated"]
    # sqrt(0.015^2 + 0.02^2) = 0.025, and the interval excludes 0; sqrt(2^2 + 1.5^2) = 2.5 does not.
    assert figures["velocity error"] == [
        Figure("0.120 ± 0.015 m/s"), Figure("0.060 ± 0.020 m/s", "-0.060 (-0.085 to -0.035)", True)
    ]  # fmt: skip
    assert figures["return"][1] == Figure("41.0 ± 1.5", "+1.0 (-1.5 to +3.5)", False)
    words, difference, is_clear = figures["survived"][1]
    assert words == "32 of 64 (95 % interval 38-62 %)"
    assert difference.startswith("-50 (-62 to -") and difference.endswith(") percentage points")  # noqa: PT018
    assert is_clear
    assert figures["length"][0] == Figure("500 ± 0 control steps")
    assert figures["evaluated"][0] == Figure("64 episodes after 2,000 iterations")


def test_figure_that_a_run_lacks_is_a_dash_and_no_base_of_a_difference():
    one, other = make_curves(figures={"return": estimate(1.0, 0.5)}), make_curves(figures=FIGURES)
    figures = final_figures([one, other, make_curves()])
    assert figures["survived"] == [Figure("-"), Figure("64 of 64 (95 % interval 94-100 %)"), Figure("-")]
    assert figures["evaluated"][2] == Figure("-")
    assert final_figures([make_curves()]) == {}


def write_config(run_dir, text):
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text(text)
    return run_dir


def test_settings_are_those_that_differ(tmp_path):
    one = write_config(
        tmp_path / "one", "seed: 0\ngamma: 0.9\nactor_sizes: [8, 8]\nstd: a\nrun_dir: one\nresume: null\n"
    )
    two = write_config(tmp_path / "two", "seed: 1\ngamma: 0.9\nactor_sizes: [8]\nstd: a\nrun_dir: two\nresume: one\n")
    three = write_config(tmp_path / "three", "seed: 1\ngamma: 0.9\nactor_sizes: [8]\nstd: null\nnum_arms: 2\n")
    assert differing_settings([one, two]) == {"seed": ["0", "1"], "actor_sizes": ["[8, 8]", "[8]"]}
    assert differing_settings([two, three]) == {"std": ["a", "null"], "num_arms": ["-", "2"]}
    assert differing_settings([one, one]) == {}


def test_settings_that_cannot_be_read_are_said_to_be_so_and_count_for_no_difference(tmp_path):
    one, broken = write_config(tmp_path / "one", "seed: 0\n"), write_config(tmp_path / "broken", "seed: [\n")
    none, fifo = tmp_path / "none", tmp_path / "fifo"
    none.mkdir()
    fifo.mkdir()
    os.mkfifo(fifo / "config.yaml")
    found = differing_settings([one, broken, none, fifo])
    assert found == {"config.yaml": ["read", *["cannot be read"] * 3]}
