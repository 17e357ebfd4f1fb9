import dataclasses

import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.viewer import recorder
from ksim.viewer.frame import Frame
from ksim.viewer.recorder import Episode, Recorder, load_episode, save_episode, window


def frame(step, **changes):
    made = Frame(
        time_s=0.02 * step,
        qpos=np.array([step, 1.0]),
        qvel=np.array([0.5]),
        extra={"mocap_pos": np.zeros((1, 3))},
        actuation=np.array([2.0]),
        commands={"velocity": np.array([0.1, 0.2, 0.3])},
        rewards={"total": 1.0, "alive": 0.5},
    )
    return dataclasses.replace(made, **changes)


def record(taken, num_steps):
    for step in range(num_steps):
        taken.record(frame(step), step == 0)


def test_recorder_keeps_each_episode():
    taken = Recorder(0.02, recent_s=0.1)
    record(taken, 3)
    record(taken, 4)
    assert [len(episode.frames) for episode in taken.finished] == [3]
    assert len(taken.current.frames) == 4
    # Two steps of 0.02 s after the reset, each of 1 per second.
    assert taken.finished[0].label == "episode 1: 0.0 s, return 0.0"
    assert [x.qpos[0] for x in taken.recent] == [2, 0, 1, 2, 3]


def test_recorder_drops_the_oldest_episodes(monkeypatch):
    monkeypatch.setattr(recorder, "MAX_FRAMES", 10)
    taken = Recorder(0.02, recent_s=0.1)
    for _ in range(5):
        record(taken, 4)
    assert [episode.name for episode in taken.finished] == ["episode 4"]
    record(taken, 25)  # one that is longer than all that is kept goes on in others
    assert len(taken.current.frames) <= 10


def test_recorder_that_is_cut_begins_anew_in_the_middle_of_an_episode():
    taken = Recorder(0.02, recent_s=0.1)
    record(taken, 3)
    taken.cut()
    taken.record(frame(3), False)
    assert len(taken.finished) == 1
    assert len(taken.current.frames) == 1
    assert len(taken.recent) == 1


@pytest.mark.parametrize("actuation", [np.array([2.0]), None])
def test_saved_episode_is_loaded_as_it_was(actuation):
    episode = Episode("first", 0.02, [frame(step, actuation=actuation) for step in range(5)])
    loaded = load_episode("file.npz", save_episode(episode), like=frame(0))
    assert (loaded.name, loaded.step_s, len(loaded.frames)) == ("file.npz", 0.02, 5)
    for ours, theirs in zip(episode.frames, loaded.frames, strict=True):
        np.testing.assert_equal(dataclasses.asdict(theirs), dataclasses.asdict(ours))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"nothing", "file.npz is no recording of ksim's viewer"),
        (save_episode(Episode("e", 0.02, [frame(0, qpos=np.zeros(7))])), "of another robot or task: its qpos"),
        (save_episode(Episode("e", 0.02, [frame(0, extra={"xfrc_applied": np.zeros(6)})])), "of another robot"),
        (save_episode(Episode("e", 0.02, [frame(0, commands={"velocity": np.zeros(4)})])), "its commands.velocity"),
    ],
)
def test_file_that_does_not_fit_is_refused(content, words):
    with pytest.raises(ConfigError, match=words):
        load_episode("file.npz", content, like=frame(0))


def test_window_ends_with_a_frame():
    frames = [frame(step) for step in range(5)]
    assert [x.qpos[0] for x in window(frames, 3, 2)] == [2, 3]
    assert [x.qpos[0] for x in window(frames, 0, 9)] == [0]
