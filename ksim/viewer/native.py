"""MuJoCo's viewer, in a window."""

import sys
import threading

import glfw
import mujoco
import mujoco.viewer

from ksim.errors import ConfigError
from ksim.physics.rendering import frame_robot
from ksim.viewer.controls import CommandNumber
from ksim.viewer.frontend import AbstractFrontend
from ksim.viewer.session import ViewSession

# Pairs of keys, up and down, that do nothing in MuJoCo's passive viewer.
NUMBER_KEYS = ((glfw.KEY_UP, glfw.KEY_DOWN), (glfw.KEY_7, glfw.KEY_9), (glfw.KEY_LEFT, glfw.KEY_RIGHT))

HELP = """\
Keys: up and down, 7 and 9, left and right change the three numbers shown in the window \
(of a velocity: forward, leftward, turning); 8 selects the next three, 6 resets all of them. \
Space pauses, backspace resets, enter pushes."""


class Keyboard:
    """Handles keys; called from the window's thread."""

    def __init__(self, session: ViewSession) -> None:
        self._session = session
        self._first = 0

    def __call__(self, key: int) -> None:
        """Handles a GLFW key; keys without a function are ignored."""
        session = self._session
        for number, (up, down) in zip(self.numbers, NUMBER_KEYS, strict=False):
            if key in (up, down):
                session.nudge(number, 1 if key == up else -1)
        if key == glfw.KEY_8:
            following = self._first + len(NUMBER_KEYS)
            self._first = following if following < len(session.numbers) else 0
        elif key == glfw.KEY_6:
            session.set_to_start()
        elif key == glfw.KEY_SPACE:
            session.paused = not session.paused
        elif key == glfw.KEY_BACKSPACE:
            session.ask_reset()
        elif key == glfw.KEY_ENTER:
            session.ask_push()

    @property
    def numbers(self) -> list[CommandNumber]:
        """The numbers that the keys change at present, at most three."""
        return self._session.numbers[self._first : self._first + len(NUMBER_KEYS)]


class NativeFrontend(AbstractFrontend):
    """A window of MuJoCo's viewer, with the commands shown in a corner."""

    def __init__(self, session: ViewSession) -> None:
        """Opens the window.

        Raises:
            ConfigError: There is no display that can be opened, or on macOS this is not mjpython.
        """
        # Otherwise the viewer's thread would fail silently, and this one would wait for it forever.
        if sys.platform != "darwin" and not glfw.init():
            raise ConfigError("The display cannot be opened for viewer=native. Choose viewer=browser.")
        self._session = session
        self._keyboard = Keyboard(session)
        threads_before = set(threading.enumerate())
        try:
            self._viewer = mujoco.viewer.launch_passive(
                session.mj_model, session.data, key_callback=self._keyboard, show_left_ui=False, show_right_ui=False
            )
        except RuntimeError as error:
            if sys.platform != "darwin":
                raise
            raise ConfigError(
                "viewer=native needs mjpython on macOS. Run mjpython instead of python, or choose viewer=browser."
            ) from error
        self._threads = set(threading.enumerate()) - threads_before
        if session.base_body is not None:
            self._follow(session.base_body)

    def _follow(self, body: int) -> None:
        with self._viewer.lock():
            self._viewer.cam.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            self._viewer.cam.trackbodyid = body
            self._viewer.cam.distance = frame_robot(self._session.mj_model, self._session.data, body)[1]
            self._viewer.cam.elevation = -15.0

    @property
    def is_open(self) -> bool:
        return self._viewer.is_running()

    def show(self, real_time_factor: float) -> None:
        rows = [(f"{n.command}: {n.label}", f"{self._session.get(n):.2f}") for n in self._keyboard.numbers]
        rows += [
            ("time (s)", f"{self._session.data.time:.1f}" + (" paused" if self._session.paused else "")),
            ("real-time factor", f"{real_time_factor:.2f}"),
            ("falls", str(self._session.num_falls)),
            *([("policy", self.note)] if self.note else []),
        ]
        left, right = ("\n".join(column) for column in zip(*rows, strict=True))
        if self.is_open:
            self._viewer.set_texts((None, None, left, right))
            self._viewer.sync()

    def close(self) -> None:
        self._viewer.close()
        # A thread that still draws when the process ends would crash, because GLFW is gone.
        for thread in self._threads:
            thread.join(timeout=10)
