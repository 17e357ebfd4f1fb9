"""Videos of a recorded episode."""

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.evaluate.evaluator import Recording, ShouldStop
from ksim.host.files import write_whole
from ksim.host.terminal import Activity
from ksim.physics.names import with_moved_base
from ksim.physics.rendering import SUN_DIR, bounding_sphere, camera_distance, painted

FPS = 30
MAX_VIDEO_S = 10.0
"""Maximum length of a video, in s from the start of the episode: without a GPU a frame takes about 0.1 s to render."""
STEADY_S = 0.5
"""Time over which the camera's path is a mean of the robot's, in s."""
ORBIT_S, ORBIT_DEG = 3.0, 60.0
"""Time at the end of a film in which the camera goes round the robot, in s, and how far."""
ARROW_WIDTH = 0.04
"""Width of an arrow, relative to the robot's radius, which is the length of the longest."""
TIMEOUT_S = 900.0
"""Maximum time of rendering, in s."""
POLL_S = 0.2
"""Time between two looks at the rendering, in s."""
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
        model = painted(recording.model.mj_model, _base(recording))
        mujoco.mj_saveModel(model, str(model_path))
        np.savez(scene_path, allow_pickle=False, **make_scene(recording))
        made = [Path(directory, output.name) for output in outputs]
        if not _run_worker([str(model_path), str(scene_path), *map(str, made)], gl, should_stop):
            return []
        for source, target in zip(made, outputs, strict=True):
            write_whole(target, source.read_bytes())
    return outputs


def make_scene(recording: Recording) -> dict[str, np.ndarray]:
    """The input of the worker: pose and arrows of every frame, with frames spaced in real time."""
    assert recording.model is not None
    dt = recording.model.ctrl_dt
    fps = min(FPS, 1 / dt)
    num_frames = max(1, int(min(len(recording.reward) * dt, MAX_VIDEO_S) * fps))
    step_f = np.minimum(np.arange(num_frames) / fps / dt, len(recording.reward) - 1)
    states = {name: _at(step_f, x) for name, x in (("qpos", recording.qpos), *recording.extra.items())}
    # The camera goes with the base, and sees the robot as at the start, with the arrows of all frames. Without a base
    # it stands, and sees the robot in all frames, unless the robot travels, as one in a plane does.
    has_base = len(recording.base_position) > 0
    spheres = _spheres(recording, states, range(1 if has_base else num_frames))
    radius = max(radius for _, radius in spheres)
    path_f3 = _at(step_f, recording.base_position) if has_base else np.array([middle_3 for middle_3, _ in spheres])
    travels = has_base or np.linalg.norm(path_f3 - path_f3[0], axis=1).max() > radius
    spheres, path_f3 = (spheres[:1], path_f3) if travels else (spheres, np.zeros_like(path_f3))
    arrows, colors = _arrows(recording, step_f, radius)
    ends_n3 = (arrows - path_f3[:, None, None] + path_f3[0]).reshape(-1, 3)
    low_3 = np.min([*(middle_3 - radius for middle_3, radius in spheres), *ends_n3], axis=0)
    high_3 = np.max([*(middle_3 + radius for middle_3, radius in spheres), *ends_n3], axis=0)
    look_at_f3 = (low_3 + high_3) / 2 - path_f3[0] + _steady(path_f3, round(STEADY_S * fps))
    subject_radius = max(radius, float((high_3 - low_3).max()) / 2)
    seconds_left_f = np.arange(num_frames)[::-1] / fps
    turned_f = np.clip(1 - seconds_left_f / ORBIT_S, 0, 1) if num_frames / fps > 2 * ORBIT_S else np.zeros(num_frames)
    return {
        "fps": np.array(fps),
        **{f"state.{name}": state for name, state in states.items()},
        "look_at": look_at_f3,
        "distance": np.array(camera_distance(recording.model.mj_model, subject_radius)),
        "azimuth": ORBIT_DEG * turned_f**2 * (3 - 2 * turned_f),  # smooth at both ends
        "radius": np.array(radius),
        "sun_dir": SUN_DIR,
        "ghost": _at(step_f, _ghost(recording)) if len(recording.ghost) else np.zeros((0, 0)),
        "arrows": arrows,
        "arrow_width": np.array(ARROW_WIDTH * radius),
        "colors": colors,
    }


def _at(step_f: np.ndarray, x_t: np.ndarray) -> np.ndarray:
    """Values between steps: films have frames at times of their own. Quaternions are normalised when they are shown."""
    before_f = np.floor(step_f).astype(int)
    after_f = np.minimum(before_f + 1, len(x_t) - 1)
    part_f = (step_f - before_f).reshape(-1, *(1,) * (x_t.ndim - 1))
    return (1 - part_f) * x_t[before_f] + part_f * x_t[after_f]


def _spheres(
    recording: Recording, states: Mapping[str, np.ndarray], frames: Iterable[int]
) -> list[tuple[np.ndarray, float]]:
    """Spheres around the robot in some frames: their middles and radii."""
    assert recording.model is not None
    model = recording.model.mj_model
    data, spheres = mujoco.MjData(model), []
    for frame in frames:
        for name, state in states.items():
            getattr(data, name)[:] = state[frame]
        mujoco.mj_forward(model, data)
        spheres.append(bounding_sphere(model, data, _base(recording)))
    return spheres


def _base(recording: Recording) -> int:
    """The robot's base; 0 if it is fixed to the world."""
    assert recording.model is not None
    return recording.model.names.base_body() if len(recording.base_position) else 0


def _arrows(recording: Recording, step_f: np.ndarray, length: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the arrows of each frame, (frame, arrow, 2, 3) in the world, the longest so long, and their colours."""
    velocities = [
        (_at(step_f, velocity_t3), color)
        for velocity_t3, color in ((recording.commanded_velocity, COMMANDED), (recording.velocity, MEASURED))
        if len(velocity_t3) and len(recording.base_position)
    ]
    arrows = np.zeros((len(step_f), len(velocities), 2, 3))
    fastest = max((float(np.linalg.norm(x[:, :2], axis=1).max()) for x, _ in velocities), default=0.0)
    scale = length / max(fastest, 1e-3)
    base_height = _base_height(recording) if velocities else 0.0
    for i, (velocity_f3, _) in enumerate(velocities):
        forward_f, leftward_f = scale * velocity_f3[:, 0], scale * velocity_f3[:, 1]
        cos_f, sin_f = _at(step_f, np.cos(recording.heading)), _at(step_f, np.sin(recording.heading))
        # Arrows float above the robot, assuming its base at half its height, each below the last.
        above = np.array([0.0, 0.0, 1.2 * base_height - 2.5 * ARROW_WIDTH * length * i])
        arrows[:, i] = (_at(step_f, recording.base_position) + above)[:, None]
        arrows[:, i, 1, 0] += cos_f * forward_f - sin_f * leftward_f
        arrows[:, i, 1, 1] += sin_f * forward_f + cos_f * leftward_f
    return arrows, np.array([color for _, color in velocities]).reshape(-1, 4)


def _base_height(recording: Recording) -> float:
    """The height of the base above the ground at the start, in m."""
    assert recording.model is not None
    start_3 = recording.base_position[0]
    return float(start_3[2] - recording.model.ground.height(jnp.asarray(start_3)))


def _steady(path_f3: np.ndarray, width: int) -> np.ndarray:
    """The mean of a path over so many frames around each."""
    frames = np.arange(len(path_f3))
    around = np.clip(frames[:, None] + np.arange(-width, width + 1), 0, len(path_f3) - 1)
    return path_f3[around].mean(axis=1)


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
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryFile() as said:
        worker = subprocess.Popen(command, env=_environment(gl), stdout=said, stderr=errors, start_new_session=True)
        try:
            while worker.poll() is None:
                if should_stop():
                    return False
                if time.monotonic() > deadline:
                    raise RenderError(f"Rendering took longer than {TIMEOUT_S:.0f} s.")
                Activity.tell(f"Filming: {_last_line(said)}; video=false leaves it out ...")
                time.sleep(POLL_S)
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


def _last_line(file: IO[bytes]) -> str:
    """The last whole line that the worker printed, read without moving its place in the file."""
    size = os.fstat(file.fileno()).st_size
    lines = os.pread(file.fileno(), size, 0).decode().split("\n")[:-1]
    return lines[-1] if lines else "starting"


def _environment(gl: str) -> dict[str, str]:
    return os.environ | ({"MUJOCO_GL": gl} if gl else {})
