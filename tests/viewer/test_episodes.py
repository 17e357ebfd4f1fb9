import dataclasses
import io
import random
import tracemalloc
import zipfile

import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.viewer import episodes
from ksim.viewer.episodes import Episode, Recorder, load_episode, save_episode, window
from ksim.viewer.session import Frame
from tests.support.scale import scale


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


@pytest.fixture
def taken():
    return Recorder(0.02, recent_s=0.1)


def record(taken, num_steps):
    for step in range(num_steps):
        taken.record(frame(step), step == 0)


def test_recorder_keeps_each_episode(taken):
    record(taken, 3)
    record(taken, 4)
    assert [len(episode.frames) for episode in taken.finished] == [3]
    assert len(taken.current.frames) == 4
    # Two steps of 0.02 s after the reset, each of 1 per second.
    assert taken.finished[0].label == "episode 1: 0.0 s, return 0.0"
    assert [x.qpos[0] for x in taken.recent] == [2, 0, 1, 2, 3]


def test_recorder_drops_the_oldest_episodes(taken, monkeypatch):
    monkeypatch.setattr(episodes, "MAX_FRAMES", 10)
    for _ in range(5):
        record(taken, 4)
    assert [episode.name for episode in taken.finished] == ["episode 4"]
    record(taken, 25)  # one that is longer than all that is kept goes on in others
    assert len(taken.current.frames) <= 10


def test_recordings_from_elsewhere_are_dropped_too_while_nothing_is_recorded(taken, monkeypatch):
    monkeypatch.setattr(episodes, "MAX_FRAMES", 10)
    for name in "abc":
        taken.add(Episode(name, 0.02, [frame(i) for i in range(10)]))
    assert [episode.name for episode in taken.finished] == ["c"]


def test_recorder_that_is_cut_begins_anew_in_the_middle_of_an_episode(taken):
    record(taken, 3)
    taken.cut()
    taken.record(frame(3), False)
    assert len(taken.finished) == 1
    assert len(taken.current.frames) == 1
    assert len(taken.recent) == 1


@pytest.mark.parametrize(("actuation", "recorded_s"), [(np.array([2.0]), 1764264115.5), (None, None)])
def test_saved_episode_is_loaded_as_it_was(actuation, recorded_s):
    episode = Episode("first", 0.02, [frame(step, actuation=actuation) for step in range(5)], recorded_s)
    loaded = load_episode("file.npz", save_episode(episode), like=frame(0))
    assert (loaded.name, loaded.step_s, len(loaded.frames), loaded.recorded_s) == ("file.npz", 0.02, 5, recorded_s)
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


def members(**changes):
    """The bytes of a recording with other members in its zip file; None leaves one out."""
    file = io.BytesIO()
    with np.load(io.BytesIO(CONTENT)) as own, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, x in {**own, **changes}.items():
            if x is not None:
                archive.writestr(f"{name}.npy", x if isinstance(x, bytes) else npy(x))
    return file.getvalue()


def npy(array, shape=None):
    """An npy file that may claim another shape than its array has."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array) | ({} if shape is None else {"shape": shape})
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


CONTENT = save_episode(Episode("own", 0.02, [frame(step) for step in range(5)]))
HOSTILE = {
    "nothing": lambda: b"",
    "too large": lambda: bytes(episodes.MAX_FILE_BYTES + 1),
    "a bomb": lambda: members(qpos=np.zeros((5, 2_000_000))),
    "a bomb of another name": lambda: members(**{"rewards.x": np.zeros((5, 2_000_000))}),
    "a claim": lambda: members(qpos=npy(np.zeros(3), shape=(2**40, 2))),
    "a claim of frames": lambda: members(time_s=npy(np.zeros(3), shape=(2**40,))),
    "negative": lambda: members(time_s=npy(np.zeros(3), shape=(-1,))),
    "no frames": lambda: members(time_s=np.zeros(0)),
    "frames without an axis": lambda: members(time_s=np.zeros(())),
    "texts": lambda: members(time_s=np.array(["1"] * 5)),
    "dates": lambda: members(time_s=np.zeros(5, "M8[s]")),
    "objects": lambda: members(time_s=npy(np.zeros(5, "O"))),
    "structures": lambda: members(time_s=np.zeros(5, [("x", float)])),
    "no npy": lambda: members(time_s=b"time"),
    "many": lambda: members(**{f"rewards.{i}": np.zeros(5) for i in range(600)}),
    "missing": lambda: members(qvel=None),
    "step of 0": lambda: members(step_s=np.array(0.0)),
    "step of nan": lambda: members(step_s=np.array(np.nan)),
    "steps": lambda: members(step_s=np.zeros(2)),
    "endless": lambda: members(qpos=np.full((5, 2), np.inf)),
    "far": lambda: members(qpos=np.full((5, 2), 1e300)),
    "reward": lambda: members(**{"rewards.total": np.full(5, 1e308)}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_file_is_one_error_and_takes_no_memory(kind):
    content = HOSTILE[kind]()
    tracemalloc.start()
    words = r"^file.npz is (no recording of ksim's viewer \(|a recording of another robot)"
    with pytest.raises(ConfigError, match=words):
        load_episode("file.npz", content, like=frame(0))
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def test_damaged_files_are_loaded_or_one_error():
    rng, refused, num_tries = random.Random(0), 0, scale(200, 3000)
    for i in range(num_tries):
        data = bytearray(CONTENT if i % 2 else members())
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(len(data))
            data[place] = rng.choice([0, 255, 1, rng.randrange(256)])
        data = data[: rng.randrange(len(data))] if rng.random() < 0.1 else data
        try:
            episode = load_episode("file.npz", bytes(data), like=frame(0))
            assert episode.label.startswith("file.npz")
        except ConfigError:
            refused += 1
    assert refused > num_tries / 3


def test_long_name_of_a_file_is_cut():
    assert load_episode("x\n" * 500, CONTENT, like=frame(0)).name == "x " * 39 + "x "


def test_window_ends_with_a_frame():
    frames = [frame(step) for step in range(5)]
    assert [x.qpos[0] for x in window(frames, 3, 2)] == [2, 3]
    assert [x.qpos[0] for x in window(frames, 0, 9)] == [0]
