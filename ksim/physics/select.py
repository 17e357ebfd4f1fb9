"""Choice of the physics engine."""

from collections.abc import Sequence

from ksim.checks import check_choice
from ksim.physics.engine import AbstractEngine, MotorCurve
from ksim.physics.model import PhysicsModel

ENGINES = ("mjx", "mujoco")


def pick_engine(engine: str, platform: str) -> tuple[str, str]:
    """The engine for a platform (`cpu`, `gpu` or `tpu`), and the reason in a few words.

    Raises:
        ConfigError: There is no such engine.
    """
    check_choice("engine", engine, ("auto", *ENGINES))
    if engine != "auto":
        return engine, "as asked"
    if platform == "cpu":
        return "mujoco", "auto: native MuJoCo is several times faster than MJX on a CPU"
    return "mjx", f"auto: MJX runs on the {platform.upper()}"


def make_engine(
    engine: str,
    model: PhysicsModel,
    needs: Sequence[str] = (),
    *,
    num_devices: int = 1,
    applies: Sequence[str] = (),
    motor_curve: MotorCurve | None = None,
) -> AbstractEngine:
    """Creates an engine by name.

    Args:
        engine: One of `ENGINES`.
        needs: Derived fields that terms read.
        num_devices: Number of devices that step it at the same time.
        applies: Fields of external forces that terms write.
        motor_curve: The actuators' force ranges as a function of velocity; None if velocity does not limit them.
    """
    # Imported here, so that only the engine in use is set up.
    if engine == "mujoco":
        from ksim.physics.mujoco import MujocoEngine  # noqa: PLC0415

        return MujocoEngine(model, needs, num_devices=num_devices, applies=applies, motor_curve=motor_curve)
    from ksim.physics.mjx import MjxEngine  # noqa: PLC0415

    return MjxEngine(model, needs, applies=applies, motor_curve=motor_curve)
