"""Episodes kept in memory, and their files."""

import collections
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ksim.errors import ConfigError
from ksim.viewer.frame import Frame

MAX_FRAMES = 15_000
"""Control steps that are kept of all episodes, 5 minutes at 50 Hz; the oldest episodes go first."""
_VECTORS = ("qpos", "qvel", "actuation")
_GROUPS = ("extra", "commands", "rewards")


@dataclass(eq=False)
class Episode:
    """An episode of one robot, as far as it was recorded.

    Attributes:
        name: What it is called on the page.
        frames: One per control step, in order.
        step_s: Seconds per control step.
    """

    name: str
    step_s: float
    frames: list[Frame] = field(default_factory=list)

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
        current: The episode that goes on.
        finished: Those before, the oldest first.
        recent: The newest frames, also over the ends of episodes.
    """

    def __init__(self, step_s: float, recent_s: float) -> None:
        self._step_s, self._num_episodes, self._is_cut = step_s, 0, True
        self.finished: tuple[Episode, ...] = ()
        self.current = Episode("episode 1", step_s)
        self.recent: collections.deque[Frame] = collections.deque(maxlen=max(2, round(recent_s / step_s)))

    def record(self, frame: Frame, is_first: bool) -> None:
        """Takes a frame; see `ViewSession.on_step`."""
        if is_first or self._is_cut or len(self.current.frames) >= MAX_FRAMES:
            self._is_cut = False
            if len(self.current.frames) > 1:
                self.finished = (*self.finished, self.current)
            self._num_episodes += 1
            self.current = Episode(f"episode {self._num_episodes}", self._step_s)
        self.current.frames.append(frame)
        self.recent.append(frame)
        num_frames = len(self.current.frames) + sum(len(episode.frames) for episode in self.finished)
        if num_frames > MAX_FRAMES:
            self.finished = self.finished[1:]

    def cut(self) -> None:
        """Begins another recording with the next frame, as when another robot is followed."""
        self._is_cut = True
        self.recent.clear()

    def add(self, episode: Episode) -> None:
        """Takes a recording from elsewhere."""
        self.finished = (*self.finished, episode)


def save_episode(episode: Episode) -> bytes:
    """The contents of an npz file: `step_s`, and columns with one row per frame.

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
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, step_s=np.array(episode.step_s), **columns)
    return file.getvalue()


def load_episode(name: str, content: bytes, like: Frame) -> Episode:
    """The inverse of `save_episode`.

    Args:
        name: What it is called.
        content: The file's.
        like: A frame of the robot that is to show it.

    Raises:
        ConfigError: It is no such file, or one of another robot.
    """
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            columns = {key: np.array(file[key], float) for key in file.files}
        step_s = float(columns.pop("step_s"))
        num_frames = len(columns["time_s"])
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{name} is no recording of ksim's viewer ({type(error).__name__}).") from error
    wanted = {"time_s": (), "qpos": like.qpos.shape, "qvel": like.qvel.shape}
    wanted |= {f"extra.{key}": x.shape for key, x in like.extra.items()}
    optional = {"actuation": like.qvel.shape} | {f"commands.{key}": x.shape for key, x in like.commands.items()}
    optional |= {key: () for key in columns if key.startswith("rewards.")}
    for key in wanted.keys() | columns.keys():
        shape = wanted.get(key, optional.get(key))
        found = columns[key].shape if key in columns else None
        if shape is None or found != (num_frames, *shape) or not num_frames or not step_s > 0:
            raise ConfigError(f"{name} is a recording of another robot or task: its {key} has the shape {found}.")
    return Episode(name, step_s, [_frame(columns, i) for i in range(num_frames)])


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
    """The last frames up to and with one of them."""
    return frames[max(0, end + 1 - num_frames) : end + 1]
