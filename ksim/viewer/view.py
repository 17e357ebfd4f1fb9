"""Watching the policy of a checkpoint; see `run_mode=view`."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from ksim.checkpoint.format import find_checkpoints, read_checkpoint
from ksim.checkpoint.snapshot import restored_policy
from ksim.errors import ConfigError
from ksim.host.signals import stop_on_signal
from ksim.host.terminal import print_line
from ksim.policy.load import PolicyContext, load_task_policy, policy_context, task_on_one_device
from ksim.task.result import RunResult
from ksim.task.rl import RLTask
from ksim.viewer.frontend import AbstractFrontend, check_viser, run_session
from ksim.viewer.session import ViewSession, shown_of

LOOK_EVERY_S = 2.0
"""Seconds between two looks for a newer checkpoint."""


def view_checkpoint(task: RLTask[Any]) -> RunResult:
    """Shows the policy of a checkpoint in native MuJoCo and in real time; see `RLTask.run`.

    A page in the browser is served with the robot at rest while the policy is prepared. Where the checkpoint is given
    as a run's directory, the run's newer checkpoints are shown as it writes them.

    Returns:
        With the exit code 0 once the window was closed or after Ctrl-C, or 128 + the number of another signal that
        ended it.

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
    path = find_checkpoints(config.checkpoint, "checkpoint")[0]  # before a page is served in vain
    context = policy_context(task_on_one_device(task))
    with contextlib.ExitStack() as stack, stop_on_signal() as request:
        open_frontend = _prepare_frontend(viewer, context, stack)
        print_line(f"Preparing {path} ...")
        path, context, model = load_task_policy(task, context)
        session = ViewSession(
            context.env, model, seed=config.seed, num_envs=config.viewer_num_envs, axis_name=task.device_axis
        )
        frontend = stack.enter_context(closing(open_frontend(session)))
        feed = NewestPolicy(context, path, session, frontend)
        print_line(f"Showing the {frontend.note}.")
        run_session(session, frontend, request, before_step=feed.update)
    code = 0 if request.signal == signal.SIGINT else request.exit_code
    return RunResult(exit_code=code, run_dir=feed.path.parents[1], checkpoint=feed.path)


class NewestPolicy:
    """A feed of a run's newest policy to a session, for runs in progress. `path` is the shown checkpoint."""

    def __init__(
        self,
        context: PolicyContext,
        path: Path,
        session: ViewSession,
        frontend: AbstractFrontend,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._context, self._session, self._frontend, self._clock = context, session, frontend, clock
        self._next_s = clock() + LOOK_EVERY_S
        frontend.note = f"policy of iteration {path.name}"

    def update(self) -> None:
        """Looks for a newer checkpoint, every `LOOK_EVERY_S`, and shows its policy; one that cannot be read is left."""
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + LOOK_EVERY_S
        try:
            newest = find_checkpoints(self._context.task.config.checkpoint, "checkpoint")[0].absolute()
            if newest == self.path:
                return
            checkpoint = read_checkpoint(newest)
            learner = restored_policy(checkpoint, self._context.task.initial_learner().state)
        # The run may be removing it, or have been removed.
        except (ConfigError, OSError) as error:
            self._frontend.note = f"policy of iteration {self.path.name}, as the newest cannot be read: {error!s:.80}"
            return
        self._session.model, self.path = self._context.task.policy_of(learner), newest
        self._frontend.note = f"policy of iteration {newest.name}"


def _prepare_frontend(
    viewer: str, context: PolicyContext, stack: contextlib.ExitStack
) -> Callable[[ViewSession], AbstractFrontend]:
    """Serves a page if the viewer is the browser; returns a function that opens the viewer with a session."""
    config, shown = context.task.config, shown_of(context.env)
    if viewer == "native":
        from ksim.viewer.native import HELP, NativeFrontend  # noqa: PLC0415 - opens GLFW

        def open_window(session: ViewSession) -> AbstractFrontend:
            frontend = NativeFrontend(session)
            print_line(f"{HELP}\nClose the window to stop the viewer.")
            return frontend

        return open_window
    from ksim.viewer.browser import BrowserFrontend  # noqa: PLC0415 - needs an extra
    from ksim.viewer.page import Page  # noqa: PLC0415

    page = Page(shown.model, config.viewer_num_envs, host=config.viewer_host, port=config.viewer_port)
    stack.callback(page.close)
    print_line(f"Open {page.url} in a browser. Ctrl-C stops the viewer.")
    return lambda session: BrowserFrontend(session, page)


def pick_viewer(name: str) -> str:
    """`native` or `browser`; `auto` chooses native if there is a display.

    On macOS `auto` chooses the browser, because the window needs another interpreter, mjpython.
    """
    if name != "auto":
        return name
    has_display = sys.platform == "win32" or any(os.environ.get(x) for x in ("DISPLAY", "WAYLAND_DISPLAY"))
    return "native" if has_display and sys.platform != "darwin" else "browser"
