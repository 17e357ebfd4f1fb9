"""The viewer's page in the browser: served with the robots at rest before a policy is ready, and then driven by it."""

import math
from typing import Any

import mujoco
import numpy as np

from ksim.physics.model import PhysicsModel
from ksim.physics.rendering import frame_robot
from ksim.viewer.frontend import free_port
from ksim.viewer.scene import BrowserScene
from ksim.viewer.server import Channel, silence, start_server

_PHONE_ASPECT = 0.8
"""Aspect ratio below which the panel covers the lower part of the page, so the robot is shown higher."""
_AWAY = 1.25
"""The camera's distance, relative to that at which the robot just fits: room for the arrows above it."""
_PHONE_AWAY, _PHONE_LOWER = 1.9, 0.31
"""On phones: the camera's distance relative to that, and how much lower it looks, in such distances."""


class Page:
    """A served page with robots at rest, as `data` has them, and a badge that says what is shown.

    `status` is the first line of the panel, and `num_axes` the number of axes that the page's stick and keys drive.
    """

    def __init__(self, model: PhysicsModel, num_robots: int, *, host: str, port: int) -> None:
        """Serves the page.

        Raises:
            ConfigError: The host is not an address of this machine, or no port from `port` on is free.
        """
        self.channel, self.num_axes = Channel(), 0
        self.server = start_server(host, free_port(host, port), self.channel)
        shown_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        shown_host = f"[{shown_host}]" if ":" in shown_host else shown_host
        self.url = f"http://{shown_host}:{self.server.get_port()}"
        # Hides the button that would publish the page through a third-party server.
        self.server.gui.configure_theme(show_share_button=False, show_logo=False, control_width="medium")
        mj_model, base_body = model.mj_model, model.names.base_body() if model.names.has_base else None
        self.scene = BrowserScene(self.server, mj_model, base_body, num_robots)
        self.data = mujoco.MjData(mj_model)
        self.data.qpos[:] = model.default_qpos
        mujoco.mj_forward(mj_model, self.data)
        base_3 = self.data.xpos[base_body] * [1, 1, 0] if base_body is not None else np.zeros(3)
        with self.server.atomic():
            self.scene.update([self.data] * num_robots, base_3)
        self._fov = math.radians(mj_model.vis.global_.fovy)  # of videos: the distance depends on it
        target_3, distance = frame_robot(mj_model, self.data, base_body or 0)
        self._place_camera(self.scene.scale * (target_3 - base_3), self.scene.scale * distance, num_robots)
        self.status = self.server.gui.add_markdown("The controls appear when the policy is ready.")
        self.tell("preparing", "Preparing", "the robot at rest, until its policy is ready")

    def tell(self, mode: str, title: str, text: str = "", **more: float) -> None:
        """Shows a badge: its kind (preparing, live, paused or replay), its title and text.

        `recorded_s`, the time of a recording in s since 1970, is shown in the time zone of the browser.
        """
        self.channel.tell({"mode": mode, "title": title, "text": text, "num_axes": self.num_axes, **more})

    def close(self) -> None:
        """Stops serving."""
        with silence():
            self.server.stop()

    def _place_camera(self, target_3: np.ndarray, distance: float, num_robots: int) -> None:
        distance *= _AWAY * (1 + 0.7 * (num_robots**0.5 - 1))
        away_3 = distance * np.array([0.68, -0.68, 0.28])
        self.server.initial_camera.fov = self._fov
        self.server.initial_camera.look_at = target_3
        self.server.initial_camera.position = target_3 + away_3

        @self.server.on_client_connect
        def _(client: Any) -> None:
            if client.camera.aspect < _PHONE_ASPECT:
                lower_3 = target_3 - [0, 0, _PHONE_LOWER * distance]
                client.camera.position, client.camera.look_at = lower_3 + _PHONE_AWAY * away_3, lower_3
