"""The report of runs as one page."""

import json
import re

import pytest

from ksim.errors import ConfigError
from ksim.evaluate.curves import run_names
from ksim.evaluate.html_report import write_page
from ksim.tools import report
from tests.support.pages import open_page

PNG = b"\x89PNG a plot"


def words_of(page):
    """The text of a page, without its style."""
    text = re.sub(r"</?(span|wbr|strong)[^>]*>", "", page.split("</style>")[1])
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def make_run(run_dir, *, iterations=3, seed=0, error=0.25):
    run_dir.mkdir(parents=True)
    rows = [
        {
            "iteration": i, "env_steps": 1000 * i, "time/iteration_s": 30.0, "episode/return": 1.0 * i,
            "rollout/reward": 0.1,
        }
        for i in range(1, iterations + 1)
    ]  # fmt: skip
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run_dir / "config.yaml").write_text(f"num_envs: 64\nseed: {seed}\nrun_dir: <a & b>\n")
    (run_dir / "plots").mkdir()
    (run_dir / "plots" / "gait.png").write_bytes(PNG)
    (run_dir / "videos").mkdir()
    (run_dir / "videos" / "iteration_3.mp4").write_bytes(b"film")
    figures = {"return": {"mean": 5.0, "low": 4.0, "high": 6.0}, "survival": {"mean": 1.0, "low": 0.9, "high": 1.0}}
    figures["error/velocity/lin_vel_m_s"] = {"mean": error, "low": error - 0.01, "high": error + 0.01}
    record = {"iteration": 3, "env_steps": 3000, "num_episodes": 64, "figures": figures, "return_gap": None}
    (run_dir / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    return run_dir


def test_page_holds_all_of_a_run_and_asks_for_no_other_file(tmp_path):
    path = tmp_path / "report.html"
    write_page([make_run(tmp_path / "task/run_000")], path)
    page = path.read_text()
    words = words_of(page)
    for found in (
        "iterations 3", "environment steps 3,000", "training 1:30", "evaluated 64 episodes after 3 iterations",
        "return 5.0 ± 1.0", "velocity error 0.250 ± 0.010 m/s", "survived 64 of 64 (95 % interval 90-100 %)",
        "num_envs: 64", "&lt;a &amp; b&gt;",
    ):  # fmt: skip
        assert found in words, found
    num_panels = page.count("over environment steps")
    assert num_panels == 4  # survival, return, length and speed
    assert page.count("data:image/png;base64,") == num_panels + 1  # and the gait
    assert page.count("data:video/mp4;base64,") == 1
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)


def test_page_of_a_run_has_the_video_first_then_what_it_learned_then_curves_and_no_title_twice(tmp_path):
    write_page([make_run(tmp_path / "task/run_000")], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text().split("<body>")[1]
    sentence = "After 3 iterations: 64 of 64 survived (95 % interval 90-100 %), velocity error 0.250 ± 0.010 m/s."
    assert words_of("</style>" + page).startswith(f"task/run_000 {sentence} Learning")
    places = [page.index(part) for part in ("<h1>", "<video", "<figcaption", "over environment steps", "<table")]
    assert places == sorted(places)
    assert page.count("run_<wbr>000") == 1
    titles = re.findall(r"<h[12]>(.*?)</h[12]>", page)
    assert len(set(titles)) == len(titles)


def test_runs_are_compared_by_the_settings_and_figures_that_differ(tmp_path):
    dirs = [make_run(tmp_path / "a/run_000"), make_run(tmp_path / "b/run_000", iterations=5, seed=7, error=0.125)]
    write_page(dirs, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<title>a/run_000 and b/run_000</title>" in page
    assert page.count("<video") == 2
    words = words_of(page)
    assert "Settings that differ a/run_000 b/run_000 seed 0 7 Last evaluation" in words
    # sqrt(0.01^2 + 0.01^2) = 0.014; the interval excludes 0.
    assert "velocity error 0.250 ± 0.010 m/s 0.125 ± 0.010 m/s -0.125 (-0.139 to -0.111)" in words
    assert "<strong>-0.125 (-0.139 to -0.111)</strong>" in page
    assert "return 5.0 ± 1.0 5.0 ± 1.0 +0.0 (-1.4 to +1.4)" in words
    assert "<strong>+0.0" not in page


def test_runs_of_the_same_settings_have_none_that_differ(tmp_path):
    write_page([make_run(tmp_path / "one"), make_run(tmp_path / "two")], tmp_path / "report.html")
    assert "Settings that differ None. Last evaluation" in words_of((tmp_path / "report.html").read_text())


def test_names_of_runs_are_as_long_as_tells_them_apart(tmp_path):
    assert run_names([tmp_path / "a/run_000", tmp_path / "a/run_001"]) == ["run_000", "run_001"]
    assert run_names([tmp_path / "x/a/run_000", tmp_path / "y/a/run_000"]) == ["x/a/run_000", "y/a/run_000"]
    assert run_names([tmp_path / "a/run_000"] * 2) == ["run_000", "run_000"]


@pytest.mark.parametrize("num_runs", [1, 3])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_its_window(chromium, tmp_path, num_runs, width):
    dirs = [
        make_run(tmp_path / f"humanoid_walking_distributed_task_with_a_long_name/run_{i:03}", seed=i)
        for i in range(num_runs)
    ]
    (dirs[0] / "config.yaml").write_text(f"seed: 10\nload_weights: {'x' * 200}\n")
    write_page(dirs, tmp_path / "report.html")
    page = open_page(chromium, f"file://{tmp_path}/report.html", (width, 844))
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # What is shown first is the video, and the sentence starts on the first screen.
    assert page.locator("figcaption").first.bounding_box()["y"] < 844
    # Curves are as wide as a phone.
    images = page.locator("section img[alt*='environment steps']")
    assert min(images.nth(i).bounding_box()["width"] for i in range(images.count())) > 300
    page.close()


def test_settings_and_names_that_are_no_utf_8_are_shown_as_far_as_they_can_be_read(tmp_path):
    run_dir = make_run(tmp_path / "caf\udce9")  # a byte of Latin-1, as Python has it in a path
    (run_dir / "config.yaml").write_bytes("run_dir: café\n".encode("latin-1"))
    assert report.main([str(run_dir), "--out", str(tmp_path / "report.html")]) == 0
    assert "run_dir: caf\ufffd\n" in (tmp_path / "report.html").read_text()


def test_film_that_is_too_large_is_named_only(tmp_path, monkeypatch):
    monkeypatch.setattr("ksim.evaluate.html_report.MAX_FILM_BYTES", 3)
    write_page([make_run(tmp_path / "run")], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "video/mp4" not in page
    assert f"too large for this page (0 MiB): {tmp_path}/run/videos/iteration_3.mp4" in words_of(page)


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
