"""The metadata of an exported policy: everything needed to run it on a robot or in another simulator."""

import dataclasses
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ksim._version import __version__
from ksim.errors import ConfigError, as_number
from ksim.host.terminal import warn_user
from ksim.mdp.term import Term
from ksim.motion.library import MotionLibrary
from ksim.nn.normalizer import MAX_NORMALIZED, NormalizedActorCritic
from ksim.physics import AbstractActuators, PhysicsModel
from ksim.physics.actuators import SpeedTorqueLine
from ksim.policy.load import PolicyContext
from ksim.policy.program import DeterministicPolicy, policy_arrays
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.task.hook_checks import action_bounds
from ksim.task.mdp import compile_robot
from ksim.task.rl import RLTask

STRUCTURE = (
    *("body_parentid", "body_mocapid", "body_simple", "jnt_type", "jnt_bodyid", "dof_simplenum"),
    *("geom_type", "geom_bodyid", "geom_contype", "geom_conaffinity", "geom_condim", "geom_priority"),
    *("site_type", "site_bodyid", "pair_dim", "pair_geom1", "pair_geom2", "exclude_signature"),
    *("eq_type", "eq_obj1id", "eq_obj2id", "tendon_num", "wrap_type", "wrap_objid"),
    *("actuator_dyntype", "actuator_gaintype", "actuator_biastype", "actuator_ctrlspec"),
    *("actuator_trntype", "actuator_trnid"),
)
"""Fields of MjModel that define the parts of a model and their connections."""

FIELDS = {
    "": "qpos0 qpos_spring",
    "body_": "pos quat ipos iquat mass subtreemass inertia invweight0 gravcomp margin",
    "jnt_": "pos axis range margin solref solimp limited stiffness stiffnesspoly springyield "
    "actfrcrange actfrclimited actgravcomp",
    "dof_": "armature damping dampingpoly frictionloss invweight0 M0 length solref solimp",
    "geom_": "pos quat size aabb rbound friction margin gap solmix solref solimp fluid adhesion surfacevel",
    "site_": "pos quat size",
    "pair_": "friction margin gap solref solreffriction solimp adhesion",
    "eq_": "data active0 solref solimp",
    "tendon_": "range limited margin stiffness stiffnesspoly springyield damping dampingpoly frictionloss armature "
    "lengthspring length0 invweight0 actfrcrange actfrclimited solref_lim solimp_lim solref_fri solimp_fri",
    "wrap_": "prm",
    "actuator_": "dynprm gainprm biasprm gear cranklength armature damping dampingpoly ctrllimited ctrlrange "
    "forcelimited forcerange actlimited actrange actearly acc0 length0 lengthrange",
}
"""Fields of MjModel with the numbers of these parts, grouped by the prefix of their names."""


def model_record(model: PhysicsModel) -> dict[str, Any]:
    """Everything that training may change in a robot's model, for JSON: options, parts, sensors and numbers.

    Raises:
        ConfigError: A number is non-finite, which JSON cannot hold.
    """
    mj_model = model.mj_model
    counts = {"body": mj_model.nbody, "joint": mj_model.njnt, "geom": mj_model.ngeom, "site": mj_model.nsite}
    names = {kind: [getattr(mj_model, kind)(i).name for i in range(count)] for kind, count in counts.items()}
    names_of_fields = [beginning + name for beginning, ends in FIELDS.items() for name in ends.split()]
    fields = {name: getattr(mj_model, name) for name in names_of_fields}
    options = {name: getattr(mj_model.opt, name) for name in dir(mj_model.opt) if not name.startswith("_")}
    return {
        "option": _values(options),
        "names": names,
        "sensors": _sensors(mj_model),
        "structure": _values({name: getattr(mj_model, name) for name in STRUCTURE}),
        "fields": _values({name: array for name, array in fields.items() if array.size}),
    }


def _sensors(mj_model: mujoco.MjModel) -> list[dict[str, Any]]:
    """Named sensors, each with its type and the objects that it refers to."""

    def name_of(kind: int, index: int) -> str:
        return (mujoco.mj_id2name(mj_model, kind, index) or "") if index >= 0 else ""

    return [
        {
            "name": mj_model.sensor(i).name,
            "type": int(mj_model.sensor_type[i]),
            "objtype": int(mj_model.sensor_objtype[i]),
            "objname": name_of(mj_model.sensor_objtype[i], mj_model.sensor_objid[i]),
            "reftype": int(mj_model.sensor_reftype[i]),
            "refname": name_of(mj_model.sensor_reftype[i], mj_model.sensor_refid[i]),
            "intprm": mj_model.sensor_intprm[i].tolist(),
            "cutoff": float(mj_model.sensor_cutoff[i]),
        }
        for i in range(mj_model.nsensor)
        if mj_model.sensor(i).name
    ]


def _values(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays as lists."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ConfigError(f"The robot's model cannot be exported: {name} has a number that is not finite.")
    return {name: np.asarray(array).tolist() for name, array in arrays.items()}


FORMAT = 2
"""Version of the metadata, incremented when an entry changes its meaning."""

_FAR = 1e6
"""An action large enough to reach every limit."""
_TRIED = 1e-3 * 2.0 ** np.arange(18)
"""Actions at which the slopes of the actuators are measured, from 0.001 to 131 in factors of 2."""


def policy_metadata(
    context: PolicyContext, policy: DeterministicPolicy, model: NormalizedActorCritic, checkpoint: Path, out_dir: Path
) -> dict[str, Any]:
    """The metadata, ready for JSON; the table in docs/deploying.md describes each entry.

    The recorded path of the checkpoint is relative to `out_dir`, the directory of the exported files.
    """
    task, env = context.task, context.env
    metadata: dict[str, Any] = {
        "format": FORMAT,
        "ksim_version": __version__,
        "git": git_revision(_directory_of(task)),
        "task": f"{module_name(type(task))}.{type(task).__qualname__}",
        "checkpoint": {"path": os.path.relpath(checkpoint, out_dir), "iteration": as_number(checkpoint.name)},
        "action_size": env.action_size,
        "action_bounds": action_bounds(model, task.obs_sizes, task.shapes_of),
        "memory": _memory(policy.bound(policy_arrays(model))),
        "control_rate_hz": 1 / task.config.ctrl_dt,
        "control_dt_s": task.config.ctrl_dt,
    }
    inputs, _ = policy.input_names()
    sizes = {group: {"input": inputs[group], "size": x.shape[0]} for group, x in policy.obs.items()}
    if not isinstance(env, MdpEnvironment):  # a custom environment, without joints and terms
        return metadata | {"observations": sizes}
    shapes = env.shapes(task.device_axis)
    is_bounded = bool(model.normalizer.count > 0)
    sizes = {group: {**size, "clip": MAX_NORMALIZED if is_bounded else None} for group, size in sizes.items()}
    layouts = {group: {**size, "terms": _layout(env, shapes, group, model)} for group, size in sizes.items()}
    return metadata | {"observations": layouts} | _of_robot(context, env, shapes)


def module_name(cls: type) -> str:
    """The module of a class. For a module run by `python -m`, its name when it is imported."""
    spec = getattr(sys.modules.get(cls.__module__), "__spec__", None)
    return cls.__module__ if cls.__module__ != "__main__" or spec is None else spec.name


def _of_robot(context: PolicyContext, env: MdpEnvironment, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The entries about the robot, the actuators, the action filters and the commands."""
    physics_model, mdp = env.engine.model, env.mdp
    return {
        "physics_dt_s": physics_model.dt,
        "engine": context.training_engine,
        "model": model_record(_on_flat_ground(context.task, env)) | {"on_terrain": physics_model.terrain is not None},
        "robot": _robot(context.task, physics_model),
        "joints": described_joints(physics_model),
        "actuators": _actuators(mdp.actuators, physics_model),
        "action_to_ctrl": action_map(mdp.actuators, physics_model),
        "action_filters": {name: describe(term) for name, term in mdp.action_filters.items()},
        "commands": {
            name: {
                **describe(term),
                "size": int(np.prod(shapes[f"command/{name}"], dtype=int)),
                "ranges": term.ranges(),
            }
            for name, term in mdp.commands.items()
        },
    }


def _memory(bound: DeterministicPolicy) -> list[dict[str, Any]]:
    """The arrays of the policy's memory: names, shapes, and values at the start of an episode."""
    start = bound.start({})
    return [
        {
            "input": name,
            "output": f"next_{name}",
            "shape": list(x.shape),
            "dtype": str(x.dtype),
            "start": numbers(start[name]),
        }
        for name, x in bound.memory.items()
    ]


def _layout(
    env: MdpEnvironment, shapes: Mapping[str, tuple[int, ...]], group: str, model: NormalizedActorCritic
) -> list[dict[str, Any]]:
    """The terms of an observation group, in the order of its vector."""
    mean, variance = (np.asarray(x[group]) for x in (model.normalizer.mean, model.normalizer.variance))
    return [
        {
            "name": name,
            **describe(env.mdp.observations[group][name]),
            "start": place.start,
            "size": place.stop - place.start,
            "shape": list(shapes[f"observation/{group}/{name}"]),
            "mean": numbers(mean[place]),
            "scale": numbers(np.sqrt(variance[place] + 1e-8)),
        }
        for name, place in env.columns(group, shapes).items()
    ]


def describe(term: Term) -> dict[str, Any]:
    """Class and arguments of a term. Noise is left out, because a real robot has its own."""
    fields = [field.name for field in dataclasses.fields(term) if field.name != "noise"]
    return {"class": class_name(type(term)), "args": {name: _plain(getattr(term, name)) for name in fields}}


def class_name(cls: Any) -> str:
    """The name of a class, with its module unless it is one of ksim's."""
    return cls.__qualname__ if cls.__module__.startswith("ksim.") else f"{module_name(cls)}.{cls.__qualname__}"


def _plain(value: Any) -> Any:
    """A value as JSON; types that JSON does not have, as a string, and non-finite numbers as None."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Term):
        return describe(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, float | np.ndarray | np.generic | jax.Array):
        return numbers(value)
    return value.record() if isinstance(value, MotionLibrary) else str(value)


def _on_flat_ground(task: RLTask[Any], env: MdpEnvironment) -> PhysicsModel:
    """The model of training. If it has a terrain, whose heights no file holds, the robot's own floor replaces it."""
    model = env.engine.model
    return compile_robot(task, task.config, [env.mdp.edit_spec], on_terrain=False) if model.terrain else model


def _robot(task: RLTask[Any], model: PhysicsModel) -> dict[str, Any]:
    robot, names, start = task.get_robot(), model.mj_model.names, model.start()
    return {
        "model": names[: names.index(b"\0")].decode(),
        "file": Path(robot).name if isinstance(robot, str | Path) else None,
        "base_body": model.names.base_body() if model.names.has_base else None,
        "default_qpos": numbers(model.default_qpos),
        "start": {name: numbers(x) for name, x in {"qvel": start.qvel, "act": start.act, **start.extra}.items()},
    }


def described_joints(model: PhysicsModel) -> dict[str, Any]:
    """Names, default positions and ranges of the joints. Warns of default positions outside their ranges."""
    names = model.names
    position, limits = model.default_qpos[names.joint_qpos()], names.joint_range()
    for name, x, (low, high) in zip(names.joints, position, limits, strict=True):
        if not low - 1e-6 <= x <= high + 1e-6:
            warn_user(
                f"The default pose has joint {name!r} at {x:.4g}, outside its range of {low:.4g} to {high:.4g}: "
                "actions around 0 hold it at the limit, on the robot as in training. To train otherwise, move the pose "
                "of the first keyframe into the range."
            )
    return {"names": names.joints, "default_position": numbers(position), "range": numbers(limits)}


def _actuators(actuators: AbstractActuators, model: PhysicsModel) -> dict[str, Any]:
    mj_model = model.mj_model
    has_feedback = mj_model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)
    first = mj_model.actuator_outadr
    limits = np.where(mj_model.actuator_forcelimited.astype(bool)[:, None], mj_model.actuator_forcerange, np.inf)
    return {
        "class": class_name(type(actuators)),
        "names": model.names.actuators,
        "joints": [model.names.actuator_joint(i) for i in range(mj_model.nactuator)],
        "stiffness": numbers(np.where(has_feedback, -mj_model.actuator_biasprm[:, 1], 0.0)),
        "damping": numbers(np.where(has_feedback, -mj_model.actuator_biasprm[:, 2], 0.0)),
        "gain": numbers(mj_model.actuator_gainprm[:, 0]),
        "gear": numbers(mj_model.actuator_gear[first, 0]),
        "force_limit": numbers(np.abs(limits).max(axis=1)),
        "motor_curve": _motor_curve(actuators, model),
    }


def _motor_curve(actuators: AbstractActuators, model: PhysicsModel) -> dict[str, Any] | None:
    """The velocity limits of the actuators' forces: numbers of a speed-torque line, or the class of another curve."""
    curve = actuators.motor_curve(model)
    if curve is None:
        return None
    if type(curve) is not SpeedTorqueLine:
        return {"class": class_name(curve if inspect.isfunction(curve) else type(curve))}
    return {name: numbers(getattr(curve, name)) for name in ("no_load_speed", "stall_ratio")}


def action_map(actuators: AbstractActuators, model: PhysicsModel) -> dict[str, Any] | None:
    """Actuators as numbers: ctrl = clip(offset + scale * action, lower, upper), found by evaluating them.

    `scale` has one number per control, or one row per control if components of the action are mixed.

    Returns:
        The numbers by name; None if the actuators do not have this form.
    """
    size = actuators.action_size(model)
    control = jax.jit(jax.vmap(lambda action: jnp.asarray(actuators(action, model), jnp.float32)))
    slopes = jax.jit(jax.vmap(jax.jacfwd(lambda action: jnp.asarray(actuators(action, model), jnp.float32))))
    # In both directions, with growing actions: if action 0 is at or beyond a limit, only some of them have a slope.
    tried_na = np.concatenate([side * most * np.eye(size) for most in _TRIED for side in (1, -1)])
    slope_nu = np.stack([slope[:, n % size] for n, slope in enumerate(np.asarray(slopes(tried_na)))])
    slope_pua = slope_nu.reshape(-1, size, slope_nu.shape[1]).swapaxes(1, 2)
    scale_ua = np.take_along_axis(slope_pua, np.abs(slope_pua).argmax(axis=0)[None], axis=0)[0]
    offset_u = np.asarray(control(jnp.zeros((1, size))))[0]
    # The offset of a control that is clipped at action 0 is taken at the nearest action that is not clipped.
    moves_nu = (np.abs(slope_nu) > 0) & (slope_nu == scale_ua.T[np.arange(len(tried_na)) % size])
    without_nu = np.asarray(control(jnp.asarray(tried_na, jnp.float32))) - tried_na @ scale_ua.T
    unclipped_u = without_nu[moves_nu.argmax(axis=0), np.arange(len(offset_u))]
    is_clipped_u = moves_nu.any(axis=0) & ~np.isclose(unclipped_u, offset_u, rtol=1e-5, atol=1e-5)
    offset_u = np.where(is_clipped_u, unclipped_u, offset_u).astype(np.float32)
    reach_u = _FAR * np.abs(scale_ua).sum(axis=1)
    far_ua = _FAR * np.sign(scale_ua)
    upper_u, lower_u = (np.diag(np.asarray(control(jnp.asarray(side * far_ua, jnp.float32)))) for side in (1, -1))
    upper_u = np.where(upper_u < offset_u + 0.5 * reach_u, upper_u, np.inf)
    lower_u = np.where(lower_u > offset_u - 0.5 * reach_u, lower_u, -np.inf)
    actions = np.random.default_rng(0).normal(size=(64, size)) * np.logspace(-2, 2, 64)[:, None]
    expected = np.clip(offset_u + actions @ scale_ua.T, lower_u, upper_u)
    if not np.allclose(control(jnp.asarray(actions, jnp.float32)), expected, rtol=1e-4, atol=1e-4):
        return None
    is_plain = len(scale_ua) == size and not (scale_ua * (1 - np.eye(size))).any()
    scale = np.diag(scale_ua) if is_plain else scale_ua
    figures = {"offset": offset_u, "scale": scale, "lower": lower_u, "upper": upper_u}
    return {name: numbers(x) for name, x in figures.items()}


def numbers(array: Any) -> Any:
    """An array as lists, with as many digits as its dtype has. Non-finite numbers, which JSON lacks, are None."""
    array = np.asarray(array)
    if array.ndim:
        return [numbers(x) for x in array]
    if array.dtype.kind in "biu":
        return int(array)
    return float(str(array)) if np.isfinite(array) else None


def git_revision(directory: Path) -> dict[str, Any] | None:
    """The commit of a directory's repository, and whether files differ from it; None if there is no repository."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return {"revision": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _directory_of(task: RLTask[Any]) -> Path:
    """The directory of the task's code, or the working directory if the code is in no file."""
    try:
        return Path(inspect.getfile(type(task))).resolve().parent
    except (OSError, TypeError):
        return Path.cwd()
