"""The difference between MJX and the engine in its place, in an environment written for MJX.

Both implement the same physics, but not the same contacts. For a box on a plane, MJX keeps the corners within 1 mm of
the deepest one; native MuJoCo keeps all corners that touch. A tilted box foot, such as those of Playground's G1, is
therefore supported differently, whatever the number of solver iterations.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree
from mujoco import mjx

from ksim._version import __version__
from ksim.envs.engines import InsteadOfMjx, data_of
from ksim.envs.wrapped import WrappedEnvironment
from ksim.host.files import write_whole
from ksim.host.terminal import Activity
from ksim.rollout.environment import QUICKLY
from ksim.types import EnvState

TOLERANCE = 0.05
"""Largest accepted difference of the velocities after one physics step, as a share of the change by the step.

Measured: rounding to float32 gives 1e-7 to 1e-5 (Playground's dm_control suite). A solver that stops after a single
iteration gives up to 1.6 % (Go1JoystickFlatTerrain). Contacts that one engine lacks give up to 137 %
(G1JoystickFlatTerrain).
"""
QUANTILE = 0.9
"""Share of the states that must be within the tolerance.

Engines that otherwise differ only by rounding exceed the tolerance in a few states: in 6 % of HopperHop's and 3 % of
HumanoidRun's, whatever the number of solver iterations, and in 2 % of FingerTurnHard's, whose solver stops after two
iterations. In G1JoystickFlatTerrain they exceed it in 49 % of the states.
"""
NUM_ENVS, NUM_STEPS = 64, 12
COMPARED = (0, 2, 6, NUM_STEPS)
"""Control steps after a reset at which the engines are compared. The reset itself is 0."""


def gap_to_mjx(env: WrappedEnvironment, mjx_model: Any) -> float:
    """The difference between one physics step of MJX and of the engine in its place, as a share of the step's change.

    90 % of the states have at most this difference. It is infinite if an engine returns a non-finite velocity.

    The velocities after one step are compared. The states are those at resets and after random actions in that
    engine. The difference is divided by the change of velocity in the same state, or by the median change if that is
    larger: at rest, rounding errors would otherwise be compared with each other.

    Args:
        env: The environment, stepped by another engine than MJX.
        mjx_model: The model that it passes to MJX.
    """
    instead = _instead(env)
    env = dataclasses.replace(env, randomizer=None)

    def visited(key: PRNGKeyArray) -> Any:
        reset_key, action_key = jax.random.split(key)
        start = env.reset(reset_key)
        action_ta = jax.random.uniform(action_key, (NUM_STEPS, env.action_size), minval=-1.0, maxval=1.0)

        def step(state: EnvState, action: Array) -> tuple[EnvState, PyTree]:
            state = env.step(state, action)
            return state, state.inner.state

        after = jax.lax.scan(step, start, action_ta)[1]
        states = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), start.inner.state, after)
        return jax.tree.map(lambda x: x[jnp.array(COMPARED)], states)

    def prepared(key: PRNGKeyArray) -> tuple[Array, Any]:
        states_et = jax.vmap(visited)(jax.random.split(key, NUM_ENVS))
        states_s = jax.tree.map(lambda x: jnp.reshape(x, (NUM_ENVS * len(COMPARED), *x.shape[2:])), states_et)
        data_s = jax.vmap(lambda state: data_of(instead.unpacked(state)))(states_s)
        # NaN marks fields that a step recomputes. Velocities are not among them, and are returned unchanged.
        return data_s.qvel, jax.tree.map(jnp.nan_to_num, data_s)

    def by_other(data: Any) -> Array:
        return instead.steps(mjx_model, data, data.ctrl, 1).qvel

    def by_mjx(data: Any) -> Array:
        return mjx.step(mjx_model, data).qvel

    # Separate programs, so that MJX's, which takes long to compile, is found in the compilation cache the next time.
    compiled = functools.partial(jax.jit, compiler_options=QUICKLY)
    before_sv, data_s = compiled(prepared)(jax.random.key(0))
    velocities = (before_sv, compiled(jax.vmap(by_other))(data_s), compiled(jax.vmap(by_mjx))(data_s))
    return usual_share(*(np.asarray(x, np.float64) for x in velocities))


def kept_gap(env: WrappedEnvironment, mjx_model: Any, package: str, options: Sequence[str]) -> float:
    """The result of `gap_to_mjx`, cached in a file in JAX's compilation cache.

    It is measured again if the version of MuJoCo, MJX, JAX, ksim or the package changes, or the environment's model or
    own options. It is not cached if JAX has no compilation cache on this machine, or if no installed package has the
    environment's code, which may then change.
    """
    directory = cache_directory()
    if not package or directory is None or "://" in directory:
        return _measured(env, mjx_model)
    path = Path(directory) / "engines" / f"{_digest(env, package, options)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return float(json.loads(path.read_text(encoding="utf-8"))["gap"])
    gap = _measured(env, mjx_model)
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps({"env": type(env.env).__name__, "gap": gap}))
    return gap


def _measured(env: WrappedEnvironment, mjx_model: Any) -> float:
    with Activity.doing(f"Comparing {_instead(env).title} with MJX"):
        return gap_to_mjx(env, mjx_model)


def cache_directory() -> str | None:
    """The directory or URL of JAX's compilation cache; None if there is none."""
    return jax.config.values["jax_compilation_cache_dir"]


def _digest(env: WrappedEnvironment, package: str, options: Sequence[str]) -> str:
    """A digest of everything that a gap depends on."""
    model = _instead(env).mj_model
    model_bytes = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, model_bytes)
    names = ("mujoco", "mujoco-mjx", "jax", package, *_instead(env).packages)
    versions = [f"ksim {__version__}", *(f"{name} {version(name)}" for name in names)]
    settings = [type(env.env).__qualname__, *sorted(options), str(env.action_repeat), str(env.episode_length)]
    settings.append(_instead(env).name)
    return hashlib.sha256(json.dumps(versions + settings).encode() + model_bytes.tobytes()).hexdigest()[:32]


def usual_share(before_sv: np.ndarray, other_sv: np.ndarray, mjx_sv: np.ndarray) -> float:
    """The 90 % quantile over states of the difference between two engines' velocities, as a share of their change.

    Rows are states; `before_sv` are the velocities before the step.
    """
    difference_s = np.abs(other_sv - mjx_sv).max(axis=1)
    change_s = np.abs(mjx_sv - before_sv).max(axis=1)
    if not np.isfinite([difference_s, change_s]).all():
        return float("inf")
    scale_s = np.maximum(change_s, np.median(change_s))
    return float(np.quantile(difference_s / np.maximum(scale_s, np.finfo(np.float32).eps), QUANTILE))


def in_words(gap: float) -> tuple[bool, str]:
    """Whether engines with this gap agree, and the result in words."""
    if gap <= TOLERANCE:
        return True, f"one physics step is within {gap:.1g} of that of MJX"
    return False, f"one physics step differs from that of MJX by {gap:.0%} of its change, {TOLERANCE:.0%} at most agree"


def _instead(env: WrappedEnvironment) -> InsteadOfMjx:
    if not isinstance(env.physics, InsteadOfMjx):
        raise TypeError("env must be stepped by another engine than MJX")
    return env.physics
