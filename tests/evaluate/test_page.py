"""The report of runs as one page."""

import json
import re

import pytest

from ksim.errors import ConfigError
from ksim.evaluate.curves import run_names
from ksim.evaluate.html_report import write_page
from ksim.tools import report

PNG = b"\x89PNG a plot"


def make_run(run_dir, *, iterations=3):
    run_dir.mkdir(parents=True)
    rows = [
        {
            "iteration": i, "env_steps": 1000 * i, "time/iteration_s": 30.0, "episode/return": 1.0 * i,
            "rollout/reward": 0.1,
        }
        for i in range(1, iterations + 1)
    ]  # fmt: skip
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "config.yaml").write_text("num_envs: 64\nrun_dir: <a & b>\n")
    (run_dir / "plots").mkdir()
    (run_dir / "plots" / "gait.png").write_bytes(PNG)
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "iteration_3.mp4").write_bytes(b"film")
    figures = {"return": {"mean": 5.0, "low": 4.0, "high": 6.0}, "survival": {"mean": 1.0, "low": 0.9, "high": 1.0}}
    figures["error/velocity/lin_vel_m_s"] = {"mean": 0.25, "low": None, "high": None}
    record = {"iteration": 3, "env_steps": 3000, "num_episodes": 64, "figures": figures, "return_gap": None}
    (run_dir / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    return run_dir


def test_page_holds_all_of_a_run_and_asks_for_no_other_file(tmp_path):
    path = tmp_path / "report.html"
    write_page([make_run(tmp_path / "task/run_000")], path)
    page = path.read_text()
    words = " ".join(re.sub(r"<[^>]*>", " ", page.split("</style>")[1]).split())
    for found in (
        "task/run_000", "iterations 3", "environment steps 3,000", "training 1:30", "Evaluation after 3 iterations",
        "episodes 64", "return 5 (4 to 6)", "velocity error, m/s 0.25", "num_envs: 64", "&lt;a &amp; b&gt;",
    ):  # fmt: skip
        assert found in words, found
    assert page.count("data:image/png;base64,") == 2  # the gait and the learning curves
    assert page.count("data:video/mp4;base64,") == 1
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)


def test_runs_stand_beside_each_other_under_names_that_tell_them_apart(tmp_path):
    dirs = [make_run(tmp_path / "a/run_000"), make_run(tmp_path / "b/run_000", iterations=5)]
    write_page(dirs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<title>a/run_000 and b/run_000</title>" in page
    assert page.count("<section>") == 2
    assert run_names([tmp_path / "x/a/run_000", tmp_path / "y/a/run_000"], num_parts=2) == [
        str(tmp_path / "x/a/run_000"),
        str(tmp_path / "y/a/run_000"),
    ]


def test_settings_and_names_that_are_no_utf_8_are_shown_as_far_as_they_can_be_read(tmp_path):
    run_dir = make_run(tmp_path / "caf\udce9")  # a byte of Latin-1, as Python has it in a path
    (run_dir / "config.yaml").write_bytes("run_dir: café\n".encode("latin-1"))
    assert report.main([str(run_dir), "--out", str(tmp_path / "report.html")]) == 0
    assert "run_dir: caf\ufffd\n" in (tmp_path / "report.html").read_text()


def test_film_that_is_too_large_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("ksim.evaluate.html_report.MAX_FILM_BYTES", 3)
    write_page([make_run(tmp_path / "run")], tmp_path / "report.html")
    assert "video/mp4" not in (tmp_path / "report.html").read_text()


def test_directory_without_metrics_is_an_error(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no metrics"):
        write_page([tmp_path / "empty"], tmp_path / "report.html")
    assert report.main([str(tmp_path / "empty"), "--out", str(tmp_path / "report.html")]) == 2
    assert "Error: There are no metrics" in capsys.readouterr().out
    assert not (tmp_path / "report.html").exists()


def test_command_writes_the_page_and_refuses_other_files(tmp_path, capsys):
    run_dir = str(make_run(tmp_path / "run"))
    assert report.main([run_dir, "--out", str(tmp_path / "page.pdf")]) == 2
    assert "must end in .html" in capsys.readouterr().out
    (tmp_path / "file").touch()
    assert report.main([run_dir, "--out", str(tmp_path / "file/page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().out
    assert report.main([run_dir, "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").stat().st_size > 1000
