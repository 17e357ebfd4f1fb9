"""The robot and its world, compiled by MuJoCo."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax.numpy as jnp
import mujoco
import numpy as np

from ksim.checks import check_rule
from ksim.errors import ConfigError
from ksim.physics.files import read_spec
from ksim.physics.mjcf import find_not_finite, label
from ksim.physics.names import ModelNames
from ksim.physics.rendering import add_light_and_sky
from ksim.physics.terrain import Ground, Terrain
from ksim.physics.trees import Loops
from ksim.types import PhysicsState

SpecEdit = Callable[[mujoco.MjSpec], None]
MIN_DT, MAX_DT = 1e-6, 1.0
"""Bounds of the physics step, in s. With smaller steps, the simulation's time in float32 soon stops advancing."""
MAX_DECIMATION = 10_000
"""The most physics steps in a control step."""
_EXTRA_STATE = {"mocap_pos": "nmocap", "mocap_quat": "nmocap", "plastic": "nplastic", "plugin_state": "npluginstate"}
"""Fields of MjData that only some models have in their state, each with the field of MjModel that holds its size."""


class PhysicsModel:
    """A compiled model with its control rate and its names. Lives on the host; never traced.

    Attributes:
        mj_model: The compiled model.
        names: Lookup of its names.
        extra_state: Names of the fields that its states have in `PhysicsState.extra`.
        dt: Seconds per physics substep.
        ctrl_dt: Seconds per control step.
        decimation: Substeps per control step.
        default_qpos: Positions in the first keyframe, or in the model's reference pose where it has none.
        ground: The height of the ground anywhere.
        terrain: The tiles that the ground is made of; None for the model's own floor.
        loops: Its closed loops.
    """

    def __init__(self, mj_model: mujoco.MjModel, ctrl_dt: float, terrain: Terrain | None = None) -> None:
        self.mj_model = mj_model
        self.names = ModelNames(mj_model)
        self.extra_state = tuple(name for name, size in _EXTRA_STATE.items() if getattr(mj_model, size))
        self.ground = Ground(mj_model)
        self.terrain = terrain
        self.loops = Loops(mj_model)
        self.dt = float(mj_model.opt.timestep)
        self.ctrl_dt = ctrl_dt
        self.decimation = round(ctrl_dt / self.dt)
        self.default_qpos = np.array(mj_model.key_qpos[0] if mj_model.nkey else mj_model.qpos0)

    def start(self, keyframe: str | None = None) -> PhysicsState:
        """The state of a keyframe at time 0, without derived fields.

        The keyframe's time and controls are left out: an episode's time starts at 0, and its actions set the controls.

        Args:
            keyframe: Its name. By default the first one, or the model's reference pose at rest where it has none.

        Raises:
            ConfigError: The model has no such keyframe.
        """
        data = mujoco.MjData(self.mj_model)
        if keyframe is not None:
            mujoco.mj_resetDataKeyframe(self.mj_model, data, self.names.index("key", keyframe))
        elif self.mj_model.nkey:
            mujoco.mj_resetDataKeyframe(self.mj_model, data, 0)
        field = lambda name: jnp.asarray(getattr(data, name), jnp.float32)
        return PhysicsState(
            qpos=field("qpos"),
            qvel=field("qvel"),
            act=field("act"),
            qacc_warmstart=jnp.zeros(self.mj_model.nv),
            time=jnp.zeros(()),
            derived={},
            extra={name: field(name) for name in self.extra_state},
        )


def load_spec(robot: str | Path | mujoco.MjSpec) -> mujoco.MjSpec:
    """A model to edit, from an MJCF or URDF file or from a spec, which is copied.

    Raises:
        ConfigError: There is no such file, or MuJoCo cannot read it.
    """
    if not isinstance(robot, str | Path):
        return _copy(robot)
    path = Path(robot)
    if path.is_dir():
        raise ConfigError(f"Robot file {path} is a directory. Give the path of an MJCF or URDF file in it.")
    if not path.is_file():
        raise ConfigError(f"Robot file {path} does not exist. Give the path of an MJCF or URDF file.")
    with _reported(f"MuJoCo cannot read the robot file {path}"):
        return read_spec(path)


def check_rates(dt: float, ctrl_dt: float) -> None:
    """Raises ConfigError unless the control step is a whole number of physics steps, both in seconds."""
    rule = f"positive, at least {MIN_DT:g} and at most {MAX_DT:g} s"
    check_rule(f"Physics step (dt={dt} s)", MIN_DT <= dt <= MAX_DT, rule)
    control_step = f"Control step (ctrl_dt={ctrl_dt} s)"
    longest = MAX_DECIMATION * dt
    rule = f"at most {MAX_DECIMATION} physics steps (dt={dt} s). Set ctrl_dt to at most {longest:g}"
    check_rule(control_step, ctrl_dt <= longest, rule)
    decimation = round(ctrl_dt / dt)
    is_met = decimation >= 1 and abs(decimation * dt - ctrl_dt) <= 1e-6 * ctrl_dt
    rule = f"a multiple of the physics step (dt={dt} s). Nearest valid value: {max(decimation, 1) * dt:g}"
    check_rule(control_step, is_met, rule)


def compile_model(
    spec: mujoco.MjSpec,
    *,
    dt: float,
    ctrl_dt: float,
    edits: Iterable[SpecEdit] = (),
    terrain: Terrain | None = None,
    source: str | Path | None = None,
) -> PhysicsModel:
    """Compiles a spec with the given rates and edits (actuators, sensors that terms need), and a light and a sky.

    Args:
        spec: The robot and its world; left as it is.
        dt: Seconds per physics substep.
        ctrl_dt: Seconds per control step, a multiple of `dt`.
        edits: Functions that change the spec before it is compiled.
        terrain: A terrain that replaces the floor; None leaves the floor.
        source: The file that the spec is from, for error messages.

    Raises:
        ConfigError: The rates do not fit, the model has no floor for the terrain, or MuJoCo cannot compile the model.
    """
    check_rates(dt, ctrl_dt)
    of_file = "" if source is None else f" of the robot file {source}"
    spec = edited_spec(spec, dt=dt, edits=edits, terrain=terrain, of_file=of_file)
    with _reported(f"MuJoCo cannot compile the model{of_file}"):
        mj_model = spec.compile()
    _check_compiled(mj_model, of_file)
    # If a body's frame coincides with its inertial frame or with a site's, MuJoCo skips the offset between them, even
    # after the offset has been randomized.
    mj_model.body_sameframe[:] = 0
    mj_model.site_sameframe[:] = 0
    return PhysicsModel(mj_model, ctrl_dt, terrain)


def edited_spec(
    spec: mujoco.MjSpec, *, dt: float, edits: Iterable[SpecEdit] = (), terrain: Terrain | None = None, of_file: str = ""
) -> mujoco.MjSpec:
    """The spec that `compile_model` compiles. `of_file` names the file in messages."""
    spec = _copy(spec, of_file)
    for edit in (*([terrain.edit_spec] if terrain else []), *edits):
        edit(spec)
    spec.option.timestep = dt
    # MuJoCo would silently reset a simulation that blew up. ksim detects, counts and resets it instead.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    add_light_and_sky(spec)
    return spec


def _check_compiled(mj_model: mujoco.MjModel, of_file: str) -> None:
    """Raises ConfigError if MuJoCo compiled the model, but a batch of simulations cannot use it."""
    not_finite = find_not_finite(mj_model)
    if not_finite is not None:
        raise ConfigError(f"The model{of_file} has a number that is not finite in 32 bits: {not_finite}. Change it.")
    if mj_model.nhistory:
        raise ConfigError(
            f"The model{of_file} has built-in delays, at {' and '.join(_delayed(mj_model))}, which all simulations "
            "of a batch would share. Remove delay, interval and nsample from the MJCF file, and delay in the task: "
            "observations by Delayed, actions by ActionLatency."
        )


def _delayed(mj_model: mujoco.MjModel) -> list[str]:
    """The sensors and actuators that keep samples of their past, such as `sensor 'gyro'`."""
    kinds = {"sensor": mj_model.sensor_history, "actuator": mj_model.actuator_history}
    return [
        label(mj_model, kind, int(place)) for kind, history in kinds.items() for place in np.flatnonzero(history[:, 0])
    ]


def _copy(spec: mujoco.MjSpec, of_file: str = "") -> mujoco.MjSpec:
    """A complete copy of a spec. MuJoCo's copy silently drops elements that refer to a missing name.

    Raises:
        ConfigError: The copy lacks an element.
    """
    copy = spec.copy()
    kinds = ("actuators", "sensors", "equalities", "tendons", "pairs", "excludes", "skins", "flexes")
    if any(len(getattr(copy, kind)) < len(getattr(spec, kind)) for kind in kinds):
        with _reported(f"MuJoCo cannot compile the model{of_file}"):
            spec.compile()  # its error names the missing reference
    return copy


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Turns any error of MuJoCo into a ConfigError with its message on one line."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError, RuntimeError, MemoryError, mujoco.FatalError) as error:
        raise ConfigError(f"{what}: {' '.join(str(error).split())}") from error
