"""Videos of a recorded episode."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import mujoco
import numpy as np

from ksim.evaluate.evaluator import Recording, ShouldStop
from ksim.host.files import whole_file
from ksim.physics.names import with_moved_base
from ksim.physics.rendering import frame_robot

FPS = 25
MAX_VIDEO_S = 10.0
"""Maximum length of a video, in s from the start of the episode: without a GPU a frame takes about 0.1 s to render."""
TIMEOUT_S = 900.0
"""Maximum time of rendering, in s."""
COMMANDED = (0.1, 0.7, 0.2, 1.0)
"""Colour of the commanded velocity: green."""
MEASURED = (0.1, 0.4, 1.0, 1.0)
"""Colour of the measured velocity: blue."""
GHOST_APART = 1.1
"""Sideways distance between robot and ghost, relative to the greatest height of the base."""

NO_GL = "MuJoCo cannot render here: neither EGL nor OSMesa works. Install one, or set video=false."

_WORKER = Path(__file__).with_name("render_worker.py")


class RenderError(RuntimeError):
    """A video could not be rendered."""


@functools.cache
def find_gl() -> str | None:
    """The value of MUJOCO_GL with which MuJoCo can render: the user's, or else egl, osmesa or the system default.

    None if none works.
    """
    if "MUJOCO_GL" in os.environ:
        candidates = [os.environ["MUJOCO_GL"]]
    else:
        candidates = ["egl", "osmesa", ""] if sys.platform == "linux" else [""]
    for gl in candidates:
        command = [sys.executable, "-P", str(_WORKER), "--probe"]
        try:
            # In a separate session, so that Ctrl-C in the terminal does not reach it.
            done = subprocess.run(
                command, env=_environment(gl), capture_output=True, timeout=60, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0:
            return gl
    return None


def film(recording: Recording, path: Path, should_stop: ShouldStop) -> list[Path]:
    """Renders a video of an episode. The camera follows the base; arrows show commanded and measured velocity.

    A target pose, such as the pose of a reference motion, is shown as a ghost beside the robot.

    Args:
        recording: The episode, of an environment with a model.
        path: Path of the videos, without a suffix.
        should_stop: Polled during rendering; if true, rendering is aborted.

    Returns:
        The paths of an MP4 and of a smaller GIF; empty if aborted.

    Raises:
        RenderError: Rendering failed, or there is no OpenGL.
    """
    gl = find_gl()
    if gl is None:
        raise RenderError(NO_GL)
    outputs = [path.with_name(f"{path.name}.{suffix}") for suffix in ("mp4", "gif")]
    with tempfile.TemporaryDirectory() as directory:
        model_path, scene_path = Path(directory, "model.mjb"), Path(directory, "scene.npz")
        assert recording.model is not None
        mujoco.mj_saveModel(recording.model.mj_model, str(model_path))
        np.savez(scene_path, allow_pickle=False, **make_scene(recording))
        made = [Path(directory, output.name) for output in outputs]
        if not _run_worker([str(model_path), str(scene_path), *map(str, made)], gl, should_stop):
            return []
        for source, target in zip(made, outputs, strict=True):
            with whole_file(target) as temporary:
                temporary.write_bytes(source.read_bytes())
    return outputs


def make_scene(recording: Recording) -> dict[str, np.ndarray]:
    """The input of the worker: pose and arrows of every frame, with frames spaced in real time."""
    assert recording.model is not None
    dt, names = recording.model.ctrl_dt, recording.model.names
    fps = min(FPS, 1 / dt)
    num_frames = max(1, int(min(len(recording.reward) * dt, MAX_VIDEO_S) * fps))
    steps = np.minimum(np.round(np.arange(num_frames) / fps / dt).astype(int), len(recording.reward) - 1)
    velocities = [
        (velocity_t3[steps], color)
        for velocity_t3, color in ((recording.commanded_velocity, COMMANDED), (recording.velocity, MEASURED))
        if len(velocity_t3) and len(recording.base_position)
    ]
    arrows = np.zeros((num_frames, len(velocities), 2, 3))
    for i, (velocity_f3, _) in enumerate(velocities):
        forward_f, leftward_f = velocity_f3[:, 0], velocity_f3[:, 1]
        cos_f, sin_f = np.cos(recording.heading[steps]), np.sin(recording.heading[steps])
        # Arrows float above the robot, assuming its base at half its height, each below the last. 1 m/s is 1 m long.
        above = np.array([0.0, 0.0, 1.2 * recording.base_position[0, 2] - 0.06 * i])
        arrows[:, i] = (recording.base_position[steps] + above)[:, None]
        arrows[:, i, 1, 0] += cos_f * forward_f - sin_f * leftward_f
        arrows[:, i, 1, 1] += sin_f * forward_f + cos_f * leftward_f
    states = {name: x[steps] for name, x in (("qpos", recording.qpos), *recording.extra.items())}
    body = names.base_body() if len(recording.base_position) else 0
    data = mujoco.MjData(recording.model.mj_model)
    for name, state in states.items():
        getattr(data, name)[:] = state[0]
    mujoco.mj_forward(recording.model.mj_model, data)
    look_at_3, distance = frame_robot(recording.model.mj_model, data, body)
    return {
        "fps": np.array(fps),
        **{f"state.{name}": state for name, state in states.items()},
        "body": np.array(body),
        "look_at": look_at_3,
        "distance": np.array(distance),
        "ghost": _ghost(recording)[steps] if len(recording.ghost) else np.zeros((0, 0)),
        "arrows": arrows,
        "colors": np.array([color for _, color in velocities]).reshape(-1, 4),
    }


def _ghost(recording: Recording) -> np.ndarray:
    """The poses of the ghost, moved to the side of the robot if it has a free base."""
    if not len(recording.base_position) or recording.model is None:
        return recording.ghost
    apart = GHOST_APART * max(float(recording.base_position[:, 2].max()), 0.1)
    return with_moved_base(recording.model.names, recording.ghost, np.array([0.0, apart, 0.0]))


def _run_worker(arguments: list[str], gl: str, should_stop: ShouldStop) -> bool:
    """Runs the worker to its end; returns False if it was stopped before."""
    command = [sys.executable, "-P", str(_WORKER), *arguments]
    deadline = time.monotonic() + TIMEOUT_S
    with tempfile.TemporaryFile("w+") as errors:
        worker = subprocess.Popen(
            command, env=_environment(gl), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            while worker.poll() is None:
                if should_stop():
                    return False
                if time.monotonic() > deadline:
                    raise RenderError(f"Rendering took longer than {TIMEOUT_S:.0f} s.")
                time.sleep(0.2)
        finally:
            if worker.poll() is None:
                # The group, to include the encoder that the worker started.
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
        if worker.returncode != 0:
            errors.seek(0)
            lines = errors.read().strip().splitlines() or [f"exit code {worker.returncode}"]
            raise RenderError(f"Rendering failed: {lines[-1]}")
    return True


def _environment(gl: str) -> dict[str, str]:
    return os.environ | ({"MUJOCO_GL": gl} if gl else {})
