"""Choice of the physics engine."""

from collections.abc import Sequence
from typing import NamedTuple

from ksim.checks import check_choice
from ksim.physics.contact_sizes import ContactSizes, sizes_under_random_controls
from ksim.physics.engine import AbstractEngine, MotorCurve
from ksim.physics.model import PhysicsModel

ENGINES = ("mjx", "mujoco", "warp")


class PickedEngine(NamedTuple):
    """An engine of `ENGINES`, and the reason for the choice in a few words."""

    name: str
    reason: str


def pick_engine(engine: str, platform: str) -> PickedEngine:
    """The engine for a platform (`cpu`, `gpu` or `tpu`).

    Raises:
        ConfigError: There is no such engine.
    """
    check_choice("engine", engine, ("auto", *ENGINES))
    if engine != "auto":
        return PickedEngine(engine, "as asked")
    if platform == "cpu":
        return PickedEngine("mujoco", "auto: native MuJoCo is several times faster than MJX on a CPU")
    if platform == "gpu":
        from ksim.physics.warp import finds_gpu, is_installed  # noqa: PLC0415 - imports MJX

        if finds_gpu():
            return PickedEngine("warp", "auto: MuJoCo Warp is the fastest on an NVIDIA GPU")
        if not is_installed():
            advice = "MuJoCo Warp is faster on NVIDIA's: pip install 'ksim-rl[warp]'"
            return PickedEngine("mjx", f"auto: MJX runs on the GPU. {advice}")
    return PickedEngine("mjx", f"auto: MJX runs on the {platform.upper()}")


def make_engine(
    engine: str,
    model: PhysicsModel,
    needs: Sequence[str] = (),
    *,
    num_devices: int = 1,
    applies: Sequence[str] = (),
    motor_curve: MotorCurve | None = None,
    sizes: ContactSizes | None = None,
) -> AbstractEngine:
    """Creates an engine by name.

    Args:
        engine: One of `ENGINES`.
        needs: Derived fields that terms read.
        num_devices: Number of devices that step it at the same time.
        applies: Fields of external forces that terms write.
        motor_curve: The actuators' force ranges as a function of velocity; None if velocity does not limit them.
        sizes: The contacts and constraints that MuJoCo Warp allocates for each simulation, measured if None; the others
            need none.

    Raises:
        ConfigError: The engine cannot simulate the model, or is not installed.
    """
    # Imported here, so that only the engine in use is set up.
    if engine == "mujoco":
        from ksim.physics.mujoco import MujocoEngine  # noqa: PLC0415

        return MujocoEngine(model, needs, num_devices=num_devices, applies=applies, motor_curve=motor_curve)
    if engine == "warp":
        from ksim.physics.warp import WarpEngine  # noqa: PLC0415

        sizes = sizes or sizes_under_random_controls(model).with_margin()
        return WarpEngine(model, needs, sizes=sizes, applies=applies, motor_curve=motor_curve)
    from ksim.physics.mjx import MjxEngine  # noqa: PLC0415

    return MjxEngine(model, needs, applies=applies, motor_curve=motor_curve)
