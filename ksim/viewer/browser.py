"""A viewer in the browser, for machines without a display."""

import contextlib
import errno
import io
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np

from ksim.errors import ConfigError
from ksim.physics.looks import frame_robot
from ksim.viewer.access import start_server
from ksim.viewer.frontend import AbstractFrontend
from ksim.viewer.manual import CommandNumber
from ksim.viewer.scene import BrowserScene
from ksim.viewer.session import ViewSession


class BrowserFrontend(AbstractFrontend):
    """A web page with the robot, an input for each number of the commands, and buttons.

    Attributes:
        url: The page's address.
        inputs: The page's inputs, in the order of the session's numbers.
    """

    def __init__(self, session: ViewSession, *, host: str, port: int) -> None:
        """Serves the page.

        Raises:
            ConfigError: The host is not an address of this machine, or no port from `port` on is free.
        """
        self._session = session
        port = free_port(host, port)
        with _silence():
            self._server = start_server(host, port)
        shown_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown_host = f"[{shown_host}]" if ":" in shown_host else shown_host
        self.url = f"http://{shown_host}:{self._server.get_port()}"
        # Hides the button that would publish the page through a third-party server.
        self._server.gui.configure_theme(show_share_button=False, show_logo=False, control_width="medium")
        self._server.scene.configure_environment_map("studio", environment_intensity=0.4)
        self._scene = BrowserScene(self._server, session.mj_model)
        self._status = self._server.gui.add_markdown("")
        self._shown_status = ""
        self.inputs = self._add_inputs()
        self._add_buttons()
        self._place_camera()
        self.show(1.0)

    @property
    def is_open(self) -> bool:
        return True  # pages come and go; a signal stops the viewer

    def show(self, real_time_factor: float) -> None:
        self._scene.update(self._session.data, self._centre_3())
        status = (
            f"time {self._session.data.time:.1f} s{', **paused**' if self._session.paused else ''}  \n"
            f"real-time factor {real_time_factor:.2f}  \nfalls {self._session.num_falls}"
        )
        if status != self._shown_status:
            self._status.content = self._shown_status = status

    def close(self) -> None:
        with _silence():
            self._server.stop()

    def _centre_3(self) -> np.ndarray:
        """What is shown in the middle of the page's world."""
        return self._session.base_position_3 * [1, 1, 0] if self._follow.value else np.zeros(3)

    def _place_camera(self) -> None:
        target_3, distance = frame_robot(self._session.mj_model, self._session.data, self._session.base_body or 0)
        target_3 = target_3 - self._centre_3()
        self._server.initial_camera.look_at = target_3
        self._server.initial_camera.position = target_3 + distance * np.array([0.68, -0.68, 0.28])

    def _add_inputs(self) -> list[Any]:
        inputs: dict[CommandNumber, Any] = {}
        gui = self._server.gui
        for name in dict.fromkeys(number.command for number in self._session.numbers):
            with gui.add_folder(f"Command: {name}"):
                for number in self._session.numbers:
                    if number.command == name:
                        inputs[number] = self._add_input(number)
        back = gui.add_button("Initial commands", visible=bool(inputs))

        @back.on_click
        def _(_: Any) -> None:
            self._session.set_to_start()
            for number, handle in inputs.items():
                handle.value = self._session.get(number)

        return list(inputs.values())

    def _add_input(self, number: CommandNumber) -> Any:
        gui, value = self._server.gui, self._session.get(number)
        if number.range is not None and number.range[0] < number.range[1]:
            low, high = map(float, number.range)
            handle = gui.add_slider(number.label, low, high, min(0.01, (high - low) / 20), value)
        else:
            handle = gui.add_number(number.label, value, step=0.01)
        handle.on_update(lambda _: self._session.set(number, float(handle.value)))
        return handle

    def _add_buttons(self) -> None:
        gui, session = self._server.gui, self._session
        reset, pause = gui.add_button("Reset"), gui.add_button("Pause")
        push = gui.add_button("Push", visible=session.can_push)
        self._follow = gui.add_checkbox("Follow the robot", session.base_body is not None)
        reset.on_click(lambda _: session.ask_reset())
        push.on_click(lambda _: session.ask_push())

        @pause.on_click
        def _(_: Any) -> None:
            session.paused = not session.paused
            pause.label = "Resume" if session.paused else "Pause"


def free_port(host: str, port: int) -> int:
    """The first free port, starting at `port`.

    Raises:
        ConfigError: There is none, or the host is not an address of this machine.
    """
    for candidate in range(port, 2**16):
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As servers do: a port that was in use a moment ago is free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, candidate))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"viewer_host ({host}) must be an address of this machine: {error.strerror}. "
                    "127.0.0.1 is this machine alone, 0.0.0.0 is every network that it is in."
                ) from error
            continue
        return candidate
    raise ConfigError(f"viewer_port ({port}): no port from there on is free. Choose a lower one.")


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Without what viser prints when it starts and stops; ksim says it in its own words."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
