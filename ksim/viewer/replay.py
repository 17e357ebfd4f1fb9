"""Replay of recorded episodes on the page."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import viser

from ksim.errors import ConfigError
from ksim.viewer.frame import Frame, Pose
from ksim.viewer.inputs import NumberInput
from ksim.viewer.recorder import Episode, Recorder, load_episode, save_episode, window
from ksim.viewer.session import ViewSession

LIVE = "live"
SPEEDS = ("0.1 x", "0.25 x", "0.5 x", "1 x", "2 x", "4 x")
_SLIDER_EVERY_S = 0.1


class Replay:
    """A menu of episodes, a scrubber and buttons. While an episode is chosen, the simulation is paused.

    Attributes:
        pose: The state to show.
        menu: The menu: live, or a recorded episode.
        scrubber: The time in the episode, in s.
        play: Plays or pauses.
    """

    def __init__(self, server: viser.ViserServer, session: ViewSession, recorder: Recorder) -> None:
        self._server, self._session, self._recorder = server, session, recorder
        self._lock = threading.Lock()
        self._episode: Episode | None = None
        self._menu: dict[str, Episode | None] = {LIVE: None}
        self._is_playing, self._was_paused = False, False
        self._time_s = 0.0
        self._last_s = self._next_slider_s = 0.0
        self.pose = Pose(session.mj_model)
        gui = server.gui
        with gui.add_folder("Recordings"):
            self.menu: Any = gui.add_dropdown("Show", (LIVE,), initial_value=LIVE)
            self._hint = gui.add_markdown("Every episode of the followed robot is recorded.")
            scrubber: Any = gui.add_slider("Time, s", 0.0, 1.0, 0.01, 0.0, visible=False)
            self.scrubber = NumberInput(scrubber, lambda: round(self._time_s, 2), self.seek)
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
        return self._episode is not None

    def choose(self, episode: Episode | None) -> None:
        """Shows an episode from its start; None for the simulation."""
        with self._lock:
            if episode is not None and self._episode is None:
                self._was_paused, self._session.paused = self._session.paused, True
            elif episode is None and self._episode is not None:
                self._session.paused = self._was_paused
            self._episode, self._time_s, self._last_s = episode, 0.0, time.monotonic()
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
            self._time_s, self._is_playing = max(0.0, min(time_s, self._length_s)), False
        self.play.label = "Play"

    def toggle(self) -> None:
        """Plays, from the start if the end was reached, or pauses."""
        with self._lock:
            if self._episode is None:
                return
            self._is_playing, self._last_s = not self._is_playing, time.monotonic()
            if self._is_playing and self._time_s >= self._episode.length_s:
                self._time_s = 0.0
        self.play.label = "Pause replay" if self._is_playing else "Play"

    def advance(self) -> None:
        """Moves to the current frame, and lists new episodes in the menu."""
        self._list()
        now_s = time.monotonic()
        with self._lock:
            episode = self._episode
            if episode is None:
                return
            if self._is_playing:
                self._time_s += (now_s - self._last_s) * float(str(self.speed.value).split()[0])
            self._last_s = now_s
            has_ended = self._is_playing and self._time_s >= episode.length_s
            if has_ended:
                self._time_s, self._is_playing = episode.length_s, False
            time_s = self._time_s
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
        """The frames of the episode up to the one that is shown, at most so many."""
        episode = self._episode
        return [] if episode is None else window(episode.frames, self._index(episode, self._time_s), num_frames)

    @property
    def _length_s(self) -> float:
        return 0.0 if self._episode is None else self._episode.length_s

    def _index(self, episode: Episode, time_s: float) -> int:
        return min(max(0, round(time_s / episode.step_s)), len(episode.frames) - 1)

    def _list(self) -> None:
        """Puts the finished episodes into the menu, the newest first."""
        listed = list(self._menu.values())[1:]
        episodes = self._recorder.finished[::-1]
        chosen = self._episode
        if chosen is not None and chosen not in episodes:
            episodes = (*episodes, chosen)  # one that was dropped for newer ones stays while it is shown
        if [id(x) for x in listed] != [id(x) for x in episodes]:
            labels = [episode.label for episode in episodes]
            # Two that are alike, such as a file that was loaded twice, are told apart by their number.
            labels = [f"{x} ({labels[:i].count(x) + 1})" if x in labels[:i] else x for i, x in enumerate(labels)]
            self._menu = {LIVE: None} | dict(zip(labels, episodes, strict=True))
            self.menu.options = tuple(self._menu)

    def _send(self, client: Any) -> None:
        episode = self._episode
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
