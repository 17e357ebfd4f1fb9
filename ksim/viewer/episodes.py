"""Recorded episodes: written while viewing, and replayed."""

import collections
import io
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import viser

from ksim.errors import ConfigError
from ksim.viewer.controls import NumberInput
from ksim.viewer.session import Frame, Pose, ViewSession

MAX_FRAMES = 15_000
"""Control steps kept over all episodes, 5 minutes at 50 Hz; the oldest episodes are dropped first."""
MAX_FILE_BYTES = 64 << 20
"""The largest file of a recording that is loaded."""
_MAX_COLUMNS = 500
_MAX_NUMBER = 1e9
_STEPS_S = (1e-5, 10.0)
_NUMBERS = {"step_s": _MAX_NUMBER, "recorded_s": 2.0**33}
"""Numbers of a whole file, and the largest of each; a time, in s since 1970, is before the year 2242."""
_VECTORS = ("qpos", "qvel", "actuation")
_GROUPS = ("extra", "commands", "rewards")


@dataclass(eq=False)
class Episode:
    """An episode of one robot, as far as it was recorded: one frame per control step, in order.

    `recorded_s` is the time of its start, in s since 1970; None if unknown.
    """

    name: str
    step_s: float
    frames: list[Frame] = field(default_factory=list)
    recorded_s: float | None = None

    @property
    def length_s(self) -> float:
        """Seconds from the first frame to the last."""
        return max(0, len(self.frames) - 1) * self.step_s

    @property
    def label(self) -> str:
        """Its name, length and return."""
        total = self.step_s * sum(frame.rewards.get("total", 0.0) for frame in self.frames[1:])
        return f"{self.name}: {self.length_s:.1f} s, return {total:.1f}"


class Recorder:
    """Records the episodes of the followed robot.

    `record` belongs to one thread; everything else may be called from any.

    Attributes:
        finished: Finished episodes, the oldest first.
        recent: The newest frames, across episodes.
    """

    def __init__(self, step_s: float, recent_s: float) -> None:
        self._step_s, self._num_episodes, self._is_cut = step_s, 0, True
        self._lock = threading.Lock()
        self.finished: tuple[Episode, ...] = ()
        self.current = Episode("episode 1", step_s, recorded_s=time.time())
        self.recent: collections.deque[Frame] = collections.deque(maxlen=max(2, round(recent_s / step_s)))

    def record(self, frame: Frame, is_first: bool) -> None:
        """Takes a frame; see `ViewSession.on_step`."""
        if is_first or self._is_cut or len(self.current.frames) >= MAX_FRAMES:
            self._is_cut = False
            if len(self.current.frames) > 1:
                self._keep(self.current)
            self._num_episodes += 1
            self.current = Episode(f"episode {self._num_episodes}", self._step_s, recorded_s=time.time())
        self.current.frames.append(frame)
        self.recent.append(frame)
        self._keep()

    def cut(self) -> None:
        """Begins another recording with the next frame, as when another robot is followed."""
        self._is_cut = True
        self.recent.clear()

    def add(self, episode: Episode) -> None:
        """Takes a recording from elsewhere."""
        self._keep(episode)

    def _keep(self, *episodes: Episode) -> None:
        """Appends finished episodes, and drops the oldest others while all have more than `MAX_FRAMES`."""
        with self._lock:
            finished = (*self.finished, *episodes)
            num_frames = len(self.current.frames) + sum(len(episode.frames) for episode in finished)
            while num_frames > MAX_FRAMES and len(finished) > len(episodes):
                num_frames -= len(finished[0].frames)
                finished = finished[1:]
            self.finished = finished


def save_episode(episode: Episode) -> bytes:
    """The contents of an npz file: `step_s` and, where it is known, `recorded_s`; and columns with one row per frame.

    The columns are `time_s`, `qpos`, `qvel` and, where they are known, `actuation`, `extra.<name>`, `commands.<name>`
    and `rewards.<name>`.
    """
    frames = list(episode.frames)
    columns = {"time_s": np.array([frame.time_s for frame in frames])}
    for name in _VECTORS:
        if frames[0].actuation is not None or name != "actuation":
            columns[name] = np.array([getattr(frame, name) for frame in frames])
    for group in _GROUPS:
        for name in getattr(frames[0], group):
            columns[f"{group}.{name}"] = np.array([getattr(frame, group)[name] for frame in frames])
    numbers = {"step_s": np.array(episode.step_s)}
    if episode.recorded_s is not None:
        numbers["recorded_s"] = np.array(episode.recorded_s)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **numbers, **columns)
    return file.getvalue()


def load_episode(name: str, content: bytes, like: Frame) -> Episode:
    """The inverse of `save_episode`. `like` is a frame of the robot that will show the episode.

    Raises:
        ConfigError: The file is not a recording, or of another robot.
    """
    name = " ".join(name.split())[:80]
    wanted = {"step_s": None, "time_s": (), "qpos": like.qpos.shape, "qvel": like.qvel.shape}
    wanted |= {f"extra.{key}": x.shape for key, x in like.extra.items()}
    optional = {"actuation": like.qvel.shape} | {f"commands.{key}": x.shape for key, x in like.commands.items()}
    try:
        columns = _read_columns(content, wanted, optional)
    # The file is untrusted, so its readers may raise anything.
    except Exception as error:
        words = f"{type(error).__name__}: {error!s:.200}" if str(error) else type(error).__name__
        reason = str(error) if type(error) is _OtherRobotError else f"is no recording of ksim's viewer ({words})"
        raise ConfigError(f"{name} {reason}.") from error
    step_s, recorded_s = float(columns.pop("step_s")), columns.pop("recorded_s", None)
    frames = [_frame(columns, i) for i in range(len(columns["time_s"]))]
    return Episode(name, step_s, frames, None if recorded_s is None else float(recorded_s))


class _OtherRobotError(ValueError):
    """A recording of another robot. The message, the end of a sentence, gives the reason."""


def _read_columns(
    content: bytes, wanted: Mapping[str, tuple[int, ...] | None], optional: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """The columns of a file, by the shapes of their rows (None for a number). Sizes are checked before unpacking.

    `wanted` must be there; `optional` may be there, as may any number per frame called `rewards.<name>`.

    Raises:
        ValueError: The file is not as `save_episode` writes it (or another error of the zip file).
    """
    if not 0 < len(content) <= MAX_FILE_BYTES:
        raise ValueError(f"it is empty, or larger than {MAX_FILE_BYTES >> 20} MiB")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if len(members) > _MAX_COLUMNS or len(members) != len(archive.infolist()):
            raise ValueError(f"it has more than {_MAX_COLUMNS} columns, or two of a name")
        missing = wanted.keys() - members.keys()
        if missing:
            raise _OtherRobotError(f"is a recording of another robot or task: it has no {min(missing)}")
        num_frames = _shape_of(archive, members["time_s"])[:1]
        if not num_frames or not 0 < num_frames[0] <= MAX_FRAMES:
            raise ValueError(f"it must have 1 to {MAX_FRAMES} frames")
        columns = {}
        for name, info in members.items():
            row = wanted.get(name, optional.get(name, () if name.startswith("rewards.") else None))
            shape, found = () if row is None else (*num_frames, *row), _shape_of(archive, info)
            if found != shape or (row is None and name not in _NUMBERS):
                raise _OtherRobotError(f"is a recording of another robot or task: its {name:.80} has the shape {found}")
            with archive.open(info) as file:
                columns[name] = np.array(np.lib.format.read_array(file, allow_pickle=False), float)
            x = columns[name]
            x = x[np.isfinite(x)] if name.startswith("rewards.") else x  # a diverged step may give any reward
            largest = _NUMBERS.get(name, _MAX_NUMBER)
            if not (np.abs(x) <= largest).all():
                raise ValueError(f"numbers of its {name:.80} are not finite, or beyond {largest:g}")
    if not _STEPS_S[0] <= columns["step_s"] <= _STEPS_S[1]:
        raise ValueError(f"its step_s must be {_STEPS_S[0]:g} to {_STEPS_S[1]:g} s")
    return columns


def _shape_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[int, ...]:
    """The shape of an array of numbers in a zip file, by its header alone."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others may need any amount of memory
        raise ValueError("it is compressed in another way")
    with archive.open(info) as file:
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read[np.lib.format.read_magic(file)](file)
    if dtype.kind not in "biuf" or dtype.itemsize > 8 or any(size < 0 for size in shape):
        raise ValueError(f"it holds {dtype}, and no numbers")
    return shape


def _frame(columns: dict[str, np.ndarray], i: int) -> Frame:
    group = lambda kind: {key.partition(".")[2]: x[i] for key, x in columns.items() if key.startswith(f"{kind}.")}
    return Frame(
        time_s=float(columns["time_s"][i]),
        qpos=columns["qpos"][i],
        qvel=columns["qvel"][i],
        extra=group("extra"),
        actuation=columns["actuation"][i] if "actuation" in columns else None,
        commands=group("commands"),
        rewards={key: float(x) for key, x in group("rewards").items()},
    )


def window(frames: Sequence[Frame], end: int, num_frames: int) -> Sequence[Frame]:
    """The last frames up to and including one of them."""
    return frames[max(0, end + 1 - num_frames) : end + 1]


LIVE = "live"
SPEEDS = ("0.1 x", "0.25 x", "0.5 x", "1 x", "2 x", "4 x")
_SLIDER_EVERY_S = 0.1


class Replay:
    """A menu of episodes, a scrubber of the time in s, and buttons. A chosen episode pauses the simulation.

    Attributes:
        episode: The episode that is shown; None for the simulation.
        time_s: The time in the episode that is shown.
    """

    def __init__(self, server: viser.ViserServer, session: ViewSession, recorder: Recorder) -> None:
        self._server, self._session, self._recorder = server, session, recorder
        self._lock = threading.Lock()
        self.episode: Episode | None = None
        self._menu: dict[str, Episode | None] = {LIVE: None}
        self._is_playing, self._was_paused = False, False
        self.time_s = 0.0
        self._last_s = self._next_slider_s = 0.0
        self.pose = Pose(session.mj_model)
        gui = server.gui
        with gui.add_folder("Recordings"):
            self.menu: Any = gui.add_dropdown("Show", (LIVE,), initial_value=LIVE)
            self._hint = gui.add_markdown("Every episode of the followed robot is recorded.")
            scrubber: Any = gui.add_slider("Time, s", 0.0, 1.0, 0.01, 0.0, visible=False)
            self.scrubber = NumberInput(scrubber, lambda: round(self.time_s, 2), self.seek)
            self.play = gui.add_button("Play", visible=False)
            self.speed = gui.add_dropdown("Speed", SPEEDS, initial_value="1 x", visible=False)
            self.save = gui.add_button("Save as a file", visible=False)
            self._load = gui.add_upload_button("Load a file", mime_type=".npz")
            keep = gui.add_button("Keep what was just seen")
        self.menu.on_update(lambda _: self.choose(self._menu.get(self.menu.value)))
        self.play.on_click(lambda _: self.toggle())
        self.save.on_click(lambda event: self._send(event.client))
        self._load.on_upload(lambda event: self._take(event.client))
        keep.on_click(lambda _: recorder.cut())

    @property
    def is_on(self) -> bool:
        """Whether an episode is shown instead of the simulation."""
        return self.episode is not None

    def choose(self, episode: Episode | None) -> None:
        """Shows an episode from its start; None for the simulation."""
        with self._lock:
            if episode is not None and self.episode is None:
                self._was_paused, self._session.paused = self._session.paused, True
            elif episode is None and self.episode is not None:
                self._session.paused = self._was_paused
            self.episode, self.time_s, self._last_s = episode, 0.0, time.monotonic()
            self._is_playing = episode is not None
        for handle in (self.scrubber.handle, self.play, self.speed, self.save):
            handle.visible = episode is not None
        if episode is not None:
            self.scrubber.handle.max = max(0.01, episode.length_s)
            self.scrubber.update()
            self.play.label = "Pause replay"

    def seek(self, time_s: float) -> None:
        """Shows a time of the episode, and pauses."""
        with self._lock:
            length_s = 0.0 if self.episode is None else self.episode.length_s
            self.time_s, self._is_playing = max(0.0, min(time_s, length_s)), False
        self.play.label = "Play"

    def toggle(self) -> None:
        """Plays, from the start if the end was reached, or pauses."""
        with self._lock:
            if self.episode is None:
                return
            self._is_playing, self._last_s = not self._is_playing, time.monotonic()
            if self._is_playing and self.time_s >= self.episode.length_s:
                self.time_s = 0.0
        self.play.label = "Pause replay" if self._is_playing else "Play"

    def advance(self) -> None:
        """Moves to the current frame, and lists new episodes in the menu."""
        self._list()
        now_s = time.monotonic()
        with self._lock:
            episode = self.episode
            if episode is None:
                return
            if self._is_playing:
                self.time_s += (now_s - self._last_s) * float(str(self.speed.value).split()[0])
            self._last_s = now_s
            has_ended = self._is_playing and self.time_s >= episode.length_s
            if has_ended:
                self.time_s, self._is_playing = episode.length_s, False
            time_s = self.time_s
        try:
            self.pose.show(episode.frames[self._index(episode, time_s)])
        except Exception:
            self.choose(None)  # the file is untrusted, and its other frames may fail as well
            self.menu.value = LIVE
            raise
        if has_ended:
            self.play.label = "Play"
        if has_ended or now_s >= self._next_slider_s:
            self._next_slider_s = now_s + _SLIDER_EVERY_S
            self.scrubber.update()

    def frames(self, num_frames: int) -> Sequence[Frame]:
        """The frames of the episode up to the shown frame, limited in number."""
        episode = self.episode
        return [] if episode is None else window(episode.frames, self._index(episode, self.time_s), num_frames)

    def _index(self, episode: Episode, time_s: float) -> int:
        return min(max(0, round(time_s / episode.step_s)), len(episode.frames) - 1)

    def _list(self) -> None:
        """Puts the finished episodes into the menu, the newest first."""
        listed = list(self._menu.values())[1:]
        episodes = self._recorder.finished[::-1]
        chosen = self.episode
        if chosen is not None and chosen not in episodes:
            episodes = (*episodes, chosen)  # a dropped episode stays while it is shown
        if [id(x) for x in listed] != [id(x) for x in episodes]:
            labels = [episode.label for episode in episodes]
            # Equal labels, such as those of a file that was loaded twice, get a number.
            labels = [f"{x} ({labels[:i].count(x) + 1})" if x in labels[:i] else x for i, x in enumerate(labels)]
            self._menu = {LIVE: None} | dict(zip(labels, episodes, strict=True))
            self.menu.options = tuple(self._menu)

    def _send(self, client: Any) -> None:
        episode = self.episode
        if episode is not None and client is not None:
            name = f"{episode.name.replace(' ', '_')}.npz"
            client.send_file_download(name, save_episode(episode), save_immediately=True)

    def _take(self, client: Any) -> None:
        file, like = self._load.value, self._session.poses[0].frame
        assert like is not None  # a session shows its first state before it has a page
        try:
            self._recorder.add(load_episode(file.name, file.content, like))
        except ConfigError as error:
            if client is not None:
                client.add_notification("Not loaded", str(error), color="red")
