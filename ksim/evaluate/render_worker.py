"""A program that renders a video: `render_worker.py MODEL.mjb SCENE.npz OUT.mp4 OUT.gif`, or `--probe`.

It runs in a separate process, started by its path, for two reasons. MuJoCo chooses its OpenGL backend from MUJOCO_GL at
import, which in a training run is long before rendering. And a crash of the graphics driver must not end training. It
imports neither JAX nor the rest of ksim.
"""

import io
import sys
from collections.abc import Mapping
from pathlib import Path

import mujoco
import numpy as np

WIDTH, HEIGHT = 1280, 720
MAX_GIF_BYTES = 2_000_000
# Settings of ever smaller GIFs, tried until one fits: every n-th frame, width in pixels, number of colours.
GIF_STEPS = ((2, 320, 64), (3, 240, 48), (3, 200, 32), (4, 160, 32), (6, 120, 16))
GHOST_RGB, GHOST_ALPHA = (0.35, 0.6, 1.0), 0.45


def probe() -> None:
    """Renders one image; raises if MuJoCo cannot render."""
    model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.1'/></worldbody></mujoco>")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 32, 32) as renderer:
        renderer.update_scene(data)
        renderer.render()


def film(model_path: str, scene_path: str, mp4_path: str, gif_path: str) -> None:
    """Renders a video of a recorded motion, and prints a line after each frame.

    Args:
        scene_path: An npz file with `fps`; `state.qpos` (frame, q) and, likewise, other fields of MjData that make up
            a pose; `ghost` (frame, q), poses of a second, translucent robot, with no rows for none; the camera's
            `look_at` (frame, 3), `distance`, in m, and `azimuth` (frame), in degrees from its usual place; the robot's
            `radius`, in m; the direction of the sun's light, `sun_dir` (3); `arrows` (frame, arrow, two ends, 3) in the
            world, in m, with their `arrow_width`, in m, and `colors` (arrow, rgba).
        gif_path: Path of a smaller GIF, of at most `MAX_GIF_BYTES` if one of `GIF_STEPS` is that small.
    """
    import imageio_ffmpeg  # noqa: PLC0415 - not for the probe
    from PIL import Image  # noqa: PLC0415

    model, scene = mujoco.MjModel.from_binary_path(model_path), dict(np.load(scene_path))
    data, ghost, fps = mujoco.MjData(model), mujoco.MjData(model), float(scene["fps"])
    light_up(model, float(scene["radius"]))
    width, height = size = WIDTH, HEIGHT
    writer = imageio_ffmpeg.write_frames(mp4_path, size, fps=fps, macro_block_size=2, quality=6)  # type: ignore[arg-type]
    writer.send(None)
    small = []
    with mujoco.Renderer(model, height, width) as renderer:
        renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        for i in range(len(scene["state.qpos"])):
            set_pose(model, data, scene, i)
            renderer.update_scene(data, make_camera(scene, i))
            add_sun(renderer.scene, scene["look_at"][i], float(scene["radius"]), scene["sun_dir"])
            if len(scene["ghost"]):
                ghost.qpos[:] = scene["ghost"][i]
                mujoco.mj_kinematics(model, ghost)
                add_ghost(renderer.scene, model, ghost)
            for (start, end), color in zip(scene["arrows"][i], scene["colors"], strict=True):
                add_arrow(renderer.scene, start, end, color, float(scene["arrow_width"]))
            frame = np.ascontiguousarray(renderer.render())
            writer.send(frame)
            print(f"{i + 1} of {len(scene['state.qpos'])} frames", flush=True)
            image_width = GIF_STEPS[0][1]
            small.append(Image.fromarray(frame).resize((image_width, image_width * height // width)))
    writer.close()
    Path(gif_path).write_bytes(encode_gif(small, fps))


def set_pose(model: mujoco.MjModel, data: mujoco.MjData, scene: Mapping[str, np.ndarray], frame: int) -> None:
    """Sets the simulation to the pose of a frame."""
    for name in scene:
        if name.startswith("state."):
            getattr(data, name.removeprefix("state."))[:] = scene[name][frame]
    mujoco.mj_forward(model, data)


def make_camera(scene: Mapping[str, np.ndarray], frame: int) -> mujoco.MjvCamera:
    """A camera at the side, slightly above the robot."""
    camera = mujoco.MjvCamera()
    camera.lookat[:], camera.distance = scene["look_at"][frame], float(scene["distance"])
    camera.azimuth, camera.elevation = 120 + float(scene["azimuth"][frame]), -18
    return camera


def light_up(model: mujoco.MjModel, radius: float) -> None:
    """Sets the light of the sky, and a map of shadows that fits a robot of so many m."""
    head, extent = model.vis.headlight, model.stat.extent
    head.ambient[:], head.diffuse[:], head.specular[:], head.active = 0.38, 0.38, 0.15, 1
    # Far from the middle of the map the ground would be speckled: the map is larger than what is seen.
    model.vis.map.shadowclip, model.vis.quality.shadowsize = 5 * radius / extent, 4096
    model.vis.map.znear, model.vis.map.zfar = 0.02 * radius / extent, 100 * radius / extent
    # Without a GPU, antialiasing would take half of the time, and is barely visible at this size.
    model.vis.quality.offsamples = 0
    model.vis.global_.offwidth, model.vis.global_.offheight = WIDTH, HEIGHT


def add_sun(scene: mujoco.MjvScene, look_at_3: np.ndarray, radius: float, dir_3: np.ndarray) -> None:
    """Puts a sun, which follows the robot, in place of the model's own lights."""
    scene.nlight = 1 + sum(light.headlight for light in scene.lights[: scene.nlight])
    sun = scene.lights[scene.nlight - 1]
    sun.headlight, sun.type, sun.castshadow = 0, int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL), 1
    sun.dir[:], sun.pos[:] = dir_3, look_at_3 - 4 * radius * dir_3
    sun.ambient[:], sun.diffuse[:], sun.specular[:] = 0, 0.55, 0.25


def add_ghost(scene: mujoco.MjvScene, model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Adds a translucent robot of one colour to the next image, without the static geoms of its world."""
    before = scene.ngeom
    options, category = mujoco.MjvOption(), int(mujoco.mjtCatBit.mjCAT_DYNAMIC)
    mujoco.mjv_addGeoms(model, data, options, mujoco.MjvPerturb(), category, scene)
    for geom in scene.geoms[before : scene.ngeom]:
        geom.rgba[:3], geom.rgba[3] = GHOST_RGB, GHOST_ALPHA
        geom.matid, geom.transparent = -1, 1


def add_arrow(scene: mujoco.MjvScene, start: np.ndarray, end: np.ndarray, color: np.ndarray, width: float) -> None:
    """Adds an arrow to the next image, unless it is shorter than wide."""
    if scene.ngeom >= scene.maxgeom or np.linalg.norm(end - start) < width:
        return
    geom = scene.geoms[scene.ngeom]
    nothing = np.zeros(3), np.zeros(3), np.eye(3).ravel()
    mujoco.mjv_initGeom(geom, mujoco.mjtGeom.mjGEOM_ARROW, *nothing, np.asarray(color, np.float32))
    mujoco.mjv_connector(geom, mujoco.mjtGeom.mjGEOM_ARROW, width, start, end)
    geom.emission = 0.5
    scene.ngeom += 1


def encode_gif(frames: list, fps: float) -> bytes:
    """An animated GIF of images, by the first setting of `GIF_STEPS` that fits, else the last.

    Octree quantisation keeps the colours of the arrows, which cover few pixels.
    """
    from PIL import Image  # noqa: PLC0415 - not for the probe

    encoded = b""
    for every, width, colors in GIF_STEPS:
        height = frames[0].height * width // frames[0].width
        images = [
            image.resize((width, height)).quantize(colors, Image.Quantize.FASTOCTREE) for image in frames[::every]
        ]
        buffer = io.BytesIO()
        duration_ms = 1000 * every / fps
        images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=duration_ms, loop=0)
        encoded = buffer.getvalue()
        if len(encoded) <= MAX_GIF_BYTES:
            break
    return encoded


if __name__ == "__main__":
    if sys.argv[1:] == ["--probe"]:
        probe()
    else:
        film(*sys.argv[1:])
