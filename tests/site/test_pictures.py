"""Every term has a picture, and a picture shows what the term computes."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from docs.site.pictures import files
from docs.site.pictures.collection import PICTURES, save
from docs.site.pictures.panels import sweep
from docs.site.pictures.robot import TOUCH, context
from docs.site.pictures.snapshot import values_apart, values_over
from docs.site.pictures.walk import contacts, walk
from ksim.mdp.observations import FootAirTime
from ksim.mdp.rewards import BaseHeightError, VerticalVelocity
from ksim.mdp.terminations import BaseTooLow
from ksim.tools.terms import KINDS, concrete_classes

TERMS = {cls for kind in KINDS for cls in concrete_classes(kind)}


def test_every_term_has_a_picture():
    missing = sorted(f"{cls.__module__}.{cls.__name__}" for cls in TERMS - set(PICTURES))
    assert not missing, f"Add them to PICTURES of a module in docs/site/pictures: {', '.join(missing)}"


def test_every_picture_is_of_a_term():
    assert set(PICTURES) <= TERMS


def test_sweep_draws_the_values_of_the_term():
    draw = sweep(VerticalVelocity(), lambda v: context(lin_vel=(0, 0, v)), (-1.0, 1.0), "vertical velocity, m/s", num=5)
    (line,) = draw().axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[-1, 1], [-0.5, 0.25], [0, 0], [0.5, 0.25], [1, 1]])


def test_sweep_of_a_termination_shades_where_the_episode_ends():
    draw = sweep(BaseTooLow(height=0.4), lambda z: context(height=z), (0.0, 0.8), "height, m", num=9)
    texts = [text.get_text() for text in draw().axes[0].texts]
    assert texts == ["terminated", "the episode continues"]


def test_values_apart_are_those_of_each_context():
    contexts = [context(height=height) for height in (0.5, 0.6)]
    # 0.1^2 and 0
    np.testing.assert_allclose(values_apart(BaseHeightError(target=0.6), contexts), [0.01, 0.0], atol=1e-6)


def test_values_over_a_walk_use_the_memory_of_the_term():
    frames = walk(0.8)
    air_time_tf = values_over(FootAirTime(TOUCH), frames)
    assert (air_time_tf[1:][contacts(frames)[1:]] == 0).all()
    # The right foot swings for 0.4 * 0.8 = 0.32 s.
    assert 0.28 < air_time_tf[:, 1].max() < 0.36


def test_pictures_are_not_drawn_again_while_their_sources_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_digest", lambda: "the same")
    (tmp_path / "sources.sha256").write_text("the same")
    monkeypatch.setattr(files.subprocess, "Popen", lambda *_, **__: pytest.fail("drawn again"))
    files.draw_all(tmp_path)


def test_files_of_a_share_are_written_with_text_as_text(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "docs.site.pictures.collection.PICTURES", {VerticalVelocity: _with_text, BaseTooLow: _with_text}
    )
    save(tmp_path, part=1, num_parts=2)
    (path,) = tmp_path.iterdir()
    assert path.name == files.file_name(BaseTooLow)
    assert ">some words</text>" in path.read_text()


def _with_text() -> Figure:
    fig = Figure()
    fig.text(0.5, 0.5, "some words")
    return fig
