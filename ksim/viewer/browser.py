"""A session on a page in the browser, for machines without a display."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import viser
from viser import uplot

from ksim.viewer.controls import CommandNumber, NumberInput
from ksim.viewer.episodes import Recorder, Replay
from ksim.viewer.frontend import KEYS_HELP, AbstractFrontend, Driver
from ksim.viewer.page import Page
from ksim.viewer.scene import Arrows
from ksim.viewer.session import Frame, Pose, ViewSession

WINDOW_S = 10.0
"""Seconds of simulated time that the plot shows."""
REFRESH_S = 0.25
"""Seconds between two updates: each sends the whole plot."""
MAX_POINTS = 250
TOTAL, ALL = "total", "all terms"
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")


class RewardPlot:
    """A plot of the rewards of the last seconds: their sum, one of them, or all, chosen in a menu."""

    def __init__(self, server: viser.ViserServer, terms: Sequence[str], step_s: float) -> None:
        self._server, self._step_s, self._terms = server, step_s, [name for name in terms if name != TOTAL]
        self.choice = server.gui.add_dropdown("Plot", (TOTAL, ALL, *self._terms), initial_value=TOTAL)
        self._shown: list[str] = []
        self._next_s = 0.0
        self._plot: viser.GuiUplotHandle | None = None
        # A plot is replaced, in this folder, when its series change.
        self._folder = server.gui.add_folder("Reward per second", expand_by_default=True)

    def update(self, frames: Sequence[Frame]) -> None:
        """Plots the frames of the last seconds, the newest last; not every call updates the plot."""
        now_s = time.monotonic()
        if now_s < self._next_s or not frames:
            return
        self._next_s = now_s + REFRESH_S
        chosen = str(self.choice.value)
        names = [TOTAL, *self._terms] if chosen == ALL else [chosen]
        data = reward_columns(frames, names, self._step_s)
        if names == self._shown and self._plot is not None:
            self._plot.data = data
            return
        if self._plot is not None:
            self._plot.remove()
        self._shown = names
        series = [uplot.Series(label="time, s")]
        series += [uplot.Series(label=n, stroke=COLORS[i % len(COLORS)], width=1.5) for i, n in enumerate(names)]
        with self._folder:
            self._plot = self._server.gui.add_uplot(
                data, tuple(series), scales={"x": uplot.Scale(time=False, auto=True)}, aspect=1.8
            )


def reward_columns(frames: Sequence[Frame], names: Sequence[str], step_s: float) -> tuple[np.ndarray, ...]:
    """Seconds before the newest frame, and rewards by name, of at most `MAX_POINTS` frames up to the newest.

    `frames` has one frame per control step, across the ends of episodes.
    """
    every = -(-len(frames) // MAX_POINTS)
    kept = frames[::-every][::-1]
    time_t = -step_s * every * np.arange(len(kept))[::-1]
    return (time_t, *(np.array([frame.rewards.get(name, 0.0) for frame in kept]) for name in names))


_INPUTS_EVERY_S = 0.2


class BrowserFrontend(AbstractFrontend):
    """A page with the robots, controls of the commands, plots of the rewards and recordings.

    `inputs` are in the order of the session's numbers.
    """

    frame_s = 1 / 30  # every frame is sent to every page, and phones draw no more

    def __init__(self, session: ViewSession, page: Page) -> None:
        """Takes over a page, which is served for as many robots as the session has."""
        self._session, self._page = session, page
        self.driver = Driver(session)
        page.num_axes = len(self.driver.numbers)
        page.channel.receive = self.driver
        self.recorder = Recorder(session.ctrl_dt, WINDOW_S)
        session.on_step = self.recorder.record
        self._server, self._scene = page.server, page.scene
        self._shown_status = ""
        self._add_buttons()
        self.inputs = self._add_inputs()
        self._next_inputs_s = 0.0
        with self._server.gui.add_folder("Show"):
            self._add_following()
            self._arrows = Arrows(self._server, session, self._scene.scale)
        self._plot = RewardPlot(self._server, list(session.poses[0].frame.rewards), session.ctrl_dt)  # type: ignore[union-attr]
        self.replay = Replay(self._server, session, self.recorder)
        self.show(1.0)

    @property
    def is_open(self) -> bool:
        return True  # pages come and go; a signal stops the viewer

    @property
    def is_watched(self) -> bool:
        """Whether a page is open."""
        return bool(self._server.get_clients())

    def show(self, real_time_factor: float) -> None:
        self.replay.advance()
        is_replayed = self.replay.is_on
        poses = [self.replay.pose] if is_replayed else self._session.poses
        recent = self.recorder.recent
        frames = self.replay.frames(recent.maxlen or 1) if is_replayed else list(recent)
        with self._server.atomic():
            self._scene.update([pose.data for pose in poses], self._centre_3(poses))
            self._arrows.update(poses, self._scene.offsets)
        self._plot.update(frames)
        self._update_inputs()
        self._tell()
        seconds = poses[0 if is_replayed else self._session.followed].data.time
        status = (
            f"time {seconds:.1f} s  \nreal-time factor {real_time_factor:.2f} \u00b7 falls {self._session.num_falls}"
        )
        if status != self._shown_status:
            self._page.status.content = self._shown_status = status
        self._server.flush()

    def close(self) -> None:
        self._page.close()

    def _tell(self) -> None:
        """Says on the page whether it shows a replay, or the simulation, live or paused."""
        episode, more = self.replay.episode, {}
        if episode is not None:
            if episode.recorded_s is not None:
                more = {"recorded_s": episode.recorded_s}
            seconds = f"{self.replay.time_s:.1f} of {episode.length_s:.1f} s"
            self._page.tell("replay", "Replay", f"{episode.name} \u00b7 {seconds}", **more)
        elif self._session.paused:
            self._page.tell("paused", "Paused", self.note)
        else:
            self._page.tell("live", "Live", self.note)

    def _centre_3(self, poses: list[Pose]) -> np.ndarray:
        """The point at the centre of the page's world, in m."""
        base, is_replayed = self._session.base_body, self.replay.is_on
        # All robots stay in view, relative to the followed one.
        offset_3 = self._scene.offsets[0] if is_replayed else np.zeros(3)
        if not self._follow.value or base is None:
            return offset_3
        pose = poses[0 if is_replayed else self._session.followed]
        return (pose.data.xpos[base] + offset_3) * [1, 1, 0]

    def _add_inputs(self) -> list[NumberInput]:
        inputs: list[NumberInput] = []
        gui = self._server.gui
        for name in dict.fromkeys(number.command for number in self._session.numbers):
            with gui.add_folder(f"Command: {name}"):
                inputs += [self._add_input(number) for number in self._session.numbers if number.command == name]
        return inputs

    def _add_input(self, number: CommandNumber) -> NumberInput:
        gui, value = self._server.gui, self._session.get(number)
        if number.range is not None and number.range[0] < number.range[1]:
            low, high = map(float, number.range)
            handle = gui.add_slider(number.label, low, high, min(0.01, (high - low) / 20), value)
        else:
            handle = gui.add_number(number.label, value, step=0.01)
        take = lambda value: self._session.set(number, number.clip(value))
        return NumberInput(handle, lambda: self._session.get(number), take)

    def _update_inputs(self) -> None:
        """Shows numbers changed by keys and sticks."""
        if time.monotonic() < self._next_inputs_s:
            return
        self._next_inputs_s = time.monotonic() + _INPUTS_EVERY_S
        for number in self.inputs:
            number.update()

    def _add_buttons(self) -> None:
        gui, session = self._server.gui, self._session
        names = ["Zero commands"] if session.numbers else []
        names += ["Reset", *(["Push"] if session.can_push else []), "Pause"]
        presses = {"Zero commands": "zero", "Reset": "reset", "Push": "push", "Pause": "pause"}
        group = gui.add_button_group("", names)
        group.on_click(lambda event: self.driver({"press": presses[event.target.value]}))
        if session.numbers:
            gui.add_markdown(f"<small>{KEYS_HELP}</small>")

    def _add_following(self) -> None:
        gui, session = self._server.gui, self._session
        self._follow = gui.add_checkbox("Follow the robot", session.base_body is not None)
        names = [str(robot + 1) for robot in range(len(session.poses))]
        followed = gui.add_dropdown("Robot", names, initial_value="1", visible=len(names) > 1)

        @followed.on_update
        def _(_: Any) -> None:
            session.followed = int(followed.value) - 1
            self.recorder.cut()
