"""MuJoCo Warp by way of MJX: physics in CUDA kernels, for NVIDIA GPUs. On a CPU it is slow and has the same numbers."""

import copy
import dataclasses
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, Int

from ksim.host.machine import import_extra
from ksim.physics.constants import as_in_mjx
from ksim.physics.contact_sizes import ContactSizes
from ksim.physics.engine import DERIVED_FIELDS, MotorCurve
from ksim.physics.mjx import MjxEngine
from ksim.physics.mjx_support import elsewhere, in_actuators, in_options, mjx, refuse
from ksim.physics.model import PhysicsModel
from ksim.types import Device, Metrics, Overrides, PhysicsState

OVERFLOWS = "overflows"
"""Name in `PhysicsState.derived` of the bits of MuJoCo Warp's `OverflowType` that a control step has set."""
_DROPPED = {
    "contacts": ("BROADPHASE", "NARROWPHASE", "CCD"),
    "constraints": ("NEFC", "NJMAX_NNZ"),
    "others": ("HFIELD", "CONTACT_MATCH", "NVMAX", "EPA_HORIZON", "TACTILE"),
}
"""By the metric that counts them, the overflows by which physics is left out; limits of solver iterations are none."""

_NOT_NEEDED = (mujoco.mjtDisableBit.mjDSBL_AUTORESET, mujoco.mjtDisableBit.mjDSBL_MIDPHASE)
"""Flags that MuJoCo Warp refuses: it never resets a simulation by itself, and has no middle phase of collisions."""


def is_installed() -> bool:
    """Whether the package of MuJoCo Warp is there."""
    return importlib.util.find_spec("warp") is not None


def finds_gpu() -> bool:
    """Whether MuJoCo Warp is installed and finds an NVIDIA GPU."""
    return is_installed() and bool(_warp().is_cuda_available())


class WarpEngine(MjxEngine):
    """Physics by `mjx.step` with the kernels of MuJoCo Warp.

    The contacts of all simulations of a device share arrays, which are allocated for the number of simulations that a
    step is mapped over. Contacts and constraints beyond the allocated numbers are dropped; `metrics` counts them.
    """

    name = "warp"
    title = "MuJoCo Warp"

    def __init__(
        self,
        model: PhysicsModel,
        needs: Sequence[str] = (),
        *,
        sizes: ContactSizes,
        applies: Sequence[str] = (),
        motor_curve: MotorCurve | None = None,
        known: Sequence[str] = DERIVED_FIELDS,
    ) -> None:
        """Creates the engine; `make_engine` describes the arguments. `known` are the fields that `needs` may name.

        Raises:
            ConfigError: The package is not installed, or MuJoCo Warp cannot simulate the model.
        """
        self.sizes = sizes
        self._overflow_bits = {name: _bits(flags) for name, flags in _DROPPED.items()}
        super().__init__(model, needs, applies=applies, motor_curve=motor_curve, known=known)

    def _put(self, device: Device) -> tuple[mjx.Model, mjx.Data]:
        _check_supported(self.model.mj_model)
        mj_model = copy.copy(self.model.mj_model)
        for flag in _NOT_NEEDED:
            mj_model.opt.disableflags &= ~int(flag)
        model = mjx.put_model(mj_model, impl="warp", device=device)
        # Overflows are read from the data; printed by kernels, they would flood the console.
        model = model.replace(opt=model.opt.replace(_impl=model.opt._impl.replace(warn_overflow=0)))
        data = mjx.make_data(mj_model, impl="warp", device=device, naconmax=1, njmax=self.sizes.constraints)
        # On the host, so that programs for any device can be traced with them.
        self._contact_fields = {
            name: np.asarray(value)
            for name, value in vars(data._impl).items()
            if name.startswith("contact__") and value.size
        }
        return model, data

    def metrics(self, state: PhysicsState) -> Metrics:
        return self.overflow_metrics(state.derived[OVERFLOWS])

    def overflow_metrics(self, bits: Int[Array, ""]) -> Metrics:
        """The metrics that count dropped contacts and constraints, from the bits of `OVERFLOWS`."""
        return {f"dropped/{name}": (bits & own != 0).astype(jnp.float32) for name, own in self._overflow_bits.items()}

    def problem(self, metrics: Mapping[str, float]) -> str:
        dropped = {name: metrics.get(f"dropped/{name}", 0.0) for name in _DROPPED}
        advice = [
            f"MuJoCo Warp dropped {name} in {dropped[name]:.1%} of the control steps: warp_{name} ({size}) is too "
            f"small. Set warp_{name}={2 * size}."
            for name, size in self.sizes._asdict().items()
            if dropped[name]
        ]
        if dropped["others"]:
            advice.append(
                f"MuJoCo Warp dropped contacts of height fields, meshes or sensors in {dropped['others']:.1%} of the "
                "control steps: its limits of these are fixed. Set engine=mjx."
            )
        return " ".join(advice)

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        of_worlds = lambda worlds: lambda *args: self._forward(self._sized(worlds), *args)
        return _with_worlds(of_worlds)(state, ctrl, overrides)

    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        state = dataclasses.replace(state, derived=state.derived | {OVERFLOWS: jnp.zeros((), jnp.int32)})
        of_worlds = lambda worlds: lambda *args: self._substeps(self._sized(worlds), *args)
        return _with_worlds(of_worlds)(state, ctrl, overrides)

    def _run(self, function: Callable[[mjx.Model, mjx.Data], mjx.Data], model: mjx.Model, data: mjx.Data) -> mjx.Data:
        # XLA fuses a foreign call on a GPU with the slices of a loop's inputs and outputs around it. Such a fusion
        # shares one buffer between arguments of equal value, and the kernels would overwrite each other's outputs.
        return jax.lax.optimization_barrier(function(*jax.lax.optimization_barrier((model, data))))

    def _overridden(self, overrides: Overrides) -> mjx.Model:
        mj_model = self.model.mj_model
        return super()._overridden(as_in_mjx(mj_model, overrides)).tree_replace(_derived(mj_model, overrides))

    def _sized(self, worlds: int) -> mjx.Data:
        """The data with room for the contacts of so many simulations."""
        size = self.sizes.contacts * worlds
        shared = {
            name: jnp.full((size, *value.shape[1:]), value.flat[0]) for name, value in self._contact_fields.items()
        }
        return self._data.replace(_impl=self._data._impl.replace(naconmax=size, naccdmax=size, **shared))

    def _state(self, data: mjx.Data, before: PhysicsState) -> PhysicsState:
        state = super()._state(data, before)
        overflows = data._impl.overflow | before.derived.get(OVERFLOWS, 0)
        return dataclasses.replace(state, derived=state.derived | {OVERFLOWS: overflows})


def _warp() -> Any:
    """The package `warp`, which then prints no line for each kernel that it compiles.

    Raises:
        ConfigError: It is not installed.
    """
    warp = import_extra("warp", "warp", "engine=warp")
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    return warp


def _check_supported(model: mujoco.MjModel) -> None:
    types = _types()
    found = [*in_options(model), *in_actuators(model, types, ("armature",)), *elsewhere(model, types)]
    if model.opt.enableflags & int(mujoco.mjtEnableBit.mjENBL_SLEEP):
        found.append('<flag sleep="enable"/> in <option> is not known to ksim; take it out')
    refuse(WarpEngine.title, found)


def _derived(model: mujoco.MjModel, overrides: Overrides) -> dict[str, Array]:
    """The constants that MuJoCo Warp reads and native MuJoCo derives from overridden fields."""
    derived: dict[str, Array] = {}
    if "opt.impratio" in overrides:
        derived["opt._impl.impratio_invsqrt"] = overrides["opt.impratio"] ** -0.5
    if "body_mass" in overrides and "body_subtreemass" not in overrides:
        in_subtree_bb = np.eye(model.nbody)
        for body in range(model.nbody - 1, 0, -1):  # children come after their parents
            in_subtree_bb[model.body_parentid[body]] += in_subtree_bb[body]
        derived["body_subtreemass"] = jnp.asarray(in_subtree_bb, jnp.float32) @ overrides["body_mass"]
    if "geom_size" in overrides:
        derived["geom_rbound"], derived["geom_aabb"] = _bounds(model, overrides["geom_size"])
    return derived


def _bounds(model: mujoco.MjModel, size_g3: Float[Array, "g 3"]) -> tuple[Float[Array, " g"], Float[Array, "g 2 3"]]:
    """Radii of the bounding spheres and the bounding boxes of geoms of these sizes.

    Planes, height fields and meshes keep theirs, which do not depend on `geom_size`.
    """
    radius, length = size_g3[:, 0], size_g3[:, 1]
    as_boxes = {
        mujoco.mjtGeom.mjGEOM_SPHERE: (radius, jnp.stack([radius, radius, radius], axis=1)),
        mujoco.mjtGeom.mjGEOM_CAPSULE: (radius + length, jnp.stack([radius, radius, radius + length], axis=1)),
        mujoco.mjtGeom.mjGEOM_CYLINDER: (jnp.hypot(radius, length), jnp.stack([radius, radius, length], axis=1)),
        mujoco.mjtGeom.mjGEOM_ELLIPSOID: (size_g3.max(axis=1), size_g3),
        mujoco.mjtGeom.mjGEOM_BOX: (jnp.linalg.norm(size_g3, axis=1), size_g3),
    }
    rbound_g, aabb_g23 = jnp.asarray(model.geom_rbound, jnp.float32), jnp.reshape(model.geom_aabb, (-1, 2, 3))
    half_g3 = jnp.asarray(aabb_g23[:, 1], jnp.float32)
    for kind, (own_rbound_g, own_half_g3) in as_boxes.items():
        is_kind = model.geom_type == int(kind)
        rbound_g = jnp.where(is_kind, own_rbound_g, rbound_g)
        half_g3 = jnp.where(is_kind[:, None], own_half_g3, half_g3)
    return rbound_g, jnp.stack([jnp.asarray(aabb_g23[:, 0], jnp.float32), half_g3], axis=1)


def _bits(flags: Sequence[str]) -> int:
    return sum(int(_types().OverflowType[flag]) for flag in flags)


def _types() -> Any:
    """The module with MuJoCo Warp's enums."""
    _warp()
    from mujoco.mjx.third_party.mujoco_warp._src import types  # noqa: PLC0415

    return types


def _with_worlds(of_worlds: Callable[[int], Callable[..., Any]], worlds: int = 1) -> Callable[..., Any]:
    """`of_worlds(n)`, a function of one simulation, where `n` is the number that `jax.vmap` maps the call over."""

    @jax.custom_batching.custom_vmap
    def call(*args: Any) -> Any:
        return of_worlds(worlds)(*args)

    @call.def_vmap
    def mapped(axis_size: int, in_batched: Any, *args: Any) -> Any:
        axes = tuple(jax.tree.map(lambda is_batched: 0 if is_batched else None, in_batched))
        each = lambda worlds: jax.vmap(of_worlds(worlds), in_axes=axes, axis_size=axis_size)
        out = _with_worlds(each, worlds * axis_size)(*args)
        return out, jax.tree.map(lambda _: True, out)

    return call
