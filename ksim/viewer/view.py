"""Watching the policy of a checkpoint; see `run_mode=view`."""

import os
import sys
from contextlib import closing
from typing import Any

from ksim.errors import ConfigError
from ksim.host.signals import stop_on_signal
from ksim.host.terminal import print_line
from ksim.policy.load import load_task_policy
from ksim.task.result import RunResult
from ksim.task.rl import RLConfig, RLTask
from ksim.viewer.frontend import AbstractFrontend, check_viser, run_session
from ksim.viewer.session import ViewSession


def view_checkpoint(task: RLTask[Any]) -> RunResult:
    """Shows the policy of a checkpoint in native MuJoCo and in real time; see `RLTask.run`.

    Returns:
        With the exit code 0 once the window was closed, or 128 + the number of the signal that ended it.

    Raises:
        ConfigError: There is no checkpoint, it does not fit the task, the task's environment shows no model, or the
            requested viewer is not available here.
    """
    config = task.config
    viewer = pick_viewer(config.viewer)
    if viewer == "browser":
        check_viser()
    elif config.viewer_num_envs != 1:
        raise ConfigError(
            f"viewer_num_envs ({config.viewer_num_envs}) is for viewer=browser. Choose that, or remove viewer_num_envs."
        )
    path, context, model = load_task_policy(task)
    print_line(f"Preparing {path} ...")
    session = ViewSession(
        context.env, model, seed=config.seed, num_envs=config.viewer_num_envs, axis_name=task.device_axis
    )
    with stop_on_signal() as request, closing(open_frontend(viewer, session, config)) as frontend:
        run_session(session, frontend, request)
    return RunResult(exit_code=request.exit_code, run_dir=path.parents[1], checkpoint=path)


def pick_viewer(name: str) -> str:
    """`native` or `browser`; `auto` chooses native if there is a display.

    On macOS `auto` chooses the browser, because the window needs another interpreter, mjpython.
    """
    if name != "auto":
        return name
    has_display = sys.platform == "win32" or any(os.environ.get(x) for x in ("DISPLAY", "WAYLAND_DISPLAY"))
    return "native" if has_display and sys.platform != "darwin" else "browser"


def open_frontend(viewer: str, session: ViewSession, config: RLConfig) -> AbstractFrontend:
    """Opens the native viewer or the one in the browser, and prints how to reach and close it."""
    if viewer == "native":
        from ksim.viewer.native import HELP, NativeFrontend  # noqa: PLC0415 - opens GLFW

        frontend = NativeFrontend(session)
        print_line(f"{HELP}\nClose the window to stop the viewer.")
        return frontend
    from ksim.viewer.browser import BrowserFrontend  # noqa: PLC0415 - needs an extra

    frontend = BrowserFrontend(session, host=config.viewer_host, port=config.viewer_port)
    print_line(f"Open {frontend.url} in a browser. Ctrl-C stops the viewer.")
    return frontend
