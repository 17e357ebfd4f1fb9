"""Makes the humanoid's reference motions: walks and a turn of its trained policy, a squat and a get-up of splines.

python -m examples.motions OUT_DIR
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from ksim.host.terminal import print_line
from ksim.motion.files import save_motion
from ksim.motion.motion import Motion
from ksim.physics.names import ModelNames, base_of_qpos, joints_of_qpos

from ..deploy import Policy, Robot, observe
from ..pretrained import PRETRAINED
from ..robots import HUMANOID
from .poses import FPS, Foot, Keyframe, motion_of

WIDTH = 0.1
"""Lateral distance of a foot from the middle, in m."""
STANDING = 0.77
"""Height of the pelvis, in m."""
REST = {"shoulder_pitch": 0.1, "shoulder_roll": 0.15, "elbow": 0.5}
STROLL = (
    *((0.4, 0.0, 0.0), (1.0, 0.0, 0.0), (0.7, 0.0, 0.5), (0.7, 0.0, -0.5)),
    *((0.5, 0.3, 0.0), (0.5, -0.3, 0.0), (0.1, 0.0, 0.4), (0.1, 0.0, -0.4)),
)
"""Velocities, forward and leftward in m/s, and yaw rates in rad/s."""
AHEAD = {"shoulder_pitch": 1.3, "shoulder_roll": 0.1, "elbow": 0.2}


def from_policy(name: str, velocities: Sequence[tuple[float, float, float]], seconds: float) -> Motion:
    """The trained walking policy at commanded velocities, each for so long: as in `STROLL`."""
    policy = Policy(PRETRAINED / "humanoid" / "policy.onnx")
    robot = Robot(HUMANOID, policy.metadata)
    qpos_tq = [robot.data.qpos.copy()]
    for velocity in velocities:
        robot.command = {"velocity": np.array(velocity)}
        for _ in range(round(seconds * FPS)):
            robot.step(policy(observe(robot, policy.metadata)))
            qpos_tq.append(robot.data.qpos.copy())
    if robot.has_fallen:
        raise RuntimeError(f"The robot fell while it made {name!r}.")
    names = ModelNames(robot.model)
    poses = np.array(qpos_tq)
    fps = policy.metadata["control_rate_hz"]
    return Motion(name, fps, tuple(names.joints), *base_of_qpos(names, poses), joints_of_qpos(names, poses))


def on_toes(x: float, y: float, heel_up: float) -> Foot:
    """The foot on its toes: x of their contact, y of the foot, in m, and the angle of the sole, in rad."""
    ahead, below, radius = 0.13, 0.055, 0.015  # of the contact, from the ankle
    c, s = np.cos(heel_up), np.sin(heel_up)
    return Foot(x - ahead * c + below * s, y, ahead * s + below * c + radius, heel_up)


def squat(model: mujoco.MjModel) -> Motion:
    """Down and up twice on flat feet, the arms forward."""
    left, right = Foot(0.0, WIDTH), Foot(0.0, -WIDTH)
    stand = (0.03, 0.0), STANDING, 0.0, left, right, REST
    low = (0.03, 0.0), 0.52, 0.45, left, right, AHEAD
    lower = (0.03, 0.0), 0.47, 0.55, left, right, AHEAD
    steps = ((0.0, stand), (0.4, stand), (1.6, low), (2.0, low), (3.0, stand), (4.2, lower), (4.6, lower))
    return motion_of("squat", model, [Keyframe(time, *pose) for time, pose in (*steps, (5.8, stand), (6.2, stand))])


def get_up(model: mujoco.MjModel) -> Motion:
    """From one knee on the ground to standing: weight over the front foot, up, and the rear foot beside it."""
    left = Foot(0.0, WIDTH)
    kneeling, rolling = on_toes(-0.57, -WIDTH, 1.25), on_toes(-0.57, -WIDTH, 1.15)
    pushing = dataclasses.replace(on_toes(-0.5, -WIDTH, 1.0), z=0.17)  # off the ground by a little
    lifted, landed = Foot(-0.25, -WIDTH, 0.15, 0.3), Foot(0.0, -WIDTH)
    keyframes = [
        Keyframe(0.0, (-0.13, 0.01), 0.43, 0.1, left, kneeling, REST),
        Keyframe(0.5, (-0.13, 0.01), 0.43, 0.1, left, kneeling, REST),
        Keyframe(1.3, (-0.04, 0.06), 0.47, 0.55, left, kneeling, AHEAD),
        Keyframe(2.0, (0.0, 0.085), 0.58, 0.5, left, rolling, AHEAD),
        Keyframe(2.6, (0.02, 0.095), 0.65, 0.4, left, pushing, AHEAD),
        Keyframe(3.0, (0.03, 0.1), 0.71, 0.2, left, lifted, REST),
        Keyframe(3.4, (0.03, 0.09), 0.75, 0.05, left, landed, REST),
        Keyframe(4.0, (0.03, 0.0), STANDING, 0.0, left, landed, REST),
        Keyframe(4.4, (0.03, 0.0), STANDING, 0.0, left, landed, REST),
    ]
    return motion_of("get_up", model, keyframes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Makes the humanoid's reference motions.")
    parser.add_argument("out_dir", type=Path, help="directory of the .npz files; made if missing")
    out_dir: Path = parser.parse_args(arguments).out_dir
    out_dir.mkdir(parents=True, exist_ok=True)
    model = mujoco.MjModel.from_xml_path(str(HUMANOID))
    walks = from_policy("walk", [(0.8, 0.0, 0.0)], 5.0), from_policy("turn", [(0.0, 0.0, 0.5)], 5.0)
    for motion in (*walks, squat(model), get_up(model), from_policy("stroll", STROLL, 2.5)):
        path = out_dir / f"{motion.name}.npz"
        save_motion(motion, path)
        print_line(f"{path}: {motion.num_frames} frames, {motion.duration_s:.2f} s")


if __name__ == "__main__":
    main()
