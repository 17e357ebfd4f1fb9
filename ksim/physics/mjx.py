"""MuJoCo MJX: physics in pure JAX, on CPUs, GPUs and TPUs; see docs/tested.md."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.physics.constants import check_overrides
from ksim.physics.engine import DERIVED_FIELDS, AbstractEngine, MotorCurve, applied_fields, derived_fields
from ksim.physics.mjcf import label
from ksim.physics.model import PhysicsModel
from ksim.types import Overrides, PhysicsState

_printed = io.StringIO()
with contextlib.redirect_stdout(_printed):
    from mujoco import mjx as mjx
for _line in _printed.getvalue().splitlines():
    if not _line.startswith("Failed to import"):
        print(_line)  # noqa: T201 - printed by another thread meanwhile


_OPTIONS = {
    "integrator": (mjx.IntegratorType, mujoco.mjtIntegrator, "mjINT_", "implicitfast, Euler or RK4"),
    "solver": (mjx.SolverType, mujoco.mjtSolver, "mjSOL_", "Newton or CG"),
    "cone": (mjx.ConeType, mujoco.mjtCone, "mjCONE_", "pyramidal or elliptic"),
    "jacobian": (mjx.JacobianType, mujoco.mjtJacobian, "mjJAC_", "auto"),
}
"""By attribute of `<option>`: MJX's enum, MuJoCo's enum, the prefix of its names, and supported values to write."""
_FORCES = {
    "dyntype": (mjx.DynType, mujoco.mjtDyn, "mjDYN_"),
    "gaintype": (mjx.GainType, mujoco.mjtGain, "mjGAIN_"),
    "biastype": (mjx.BiasType, mujoco.mjtBias, "mjBIAS_"),
}
_TRANSMISSIONS = {
    mujoco.mjtTrn.mjTRN_SLIDERCRANK: 'a slider-crank (cranksite="...")',
    mujoco.mjtTrn.mjTRN_BODY: 'a body (<adhesion>, or body="...")',
    mujoco.mjtTrn.mjTRN_SO3: "an orientation (<orientation>)",
}
_SENSORS = {
    "geomdist": "distance",
    "geomnormal": "normal",
    "geomfromto": "fromto",
    "jointactfrc": "jointactuatorfrc",
    "tendonactfrc": "tendonactuatorfrc",
}
"""XML element of each sensor type whose element has another name than the type."""
_IGNORED = {
    "damping": (("actuator_damping", "actuator_dampingpoly"), "take it out and give it to the joint"),
    "armature": (("actuator_armature",), "take it out and give it to the joint"),
    "actearly": (("actuator_actearly",), "take it out"),
}
"""Attributes of actuators that MJX silently ignores: their fields, and the fix for the message."""
_MOST = 8
"""The most problems that a message lists, so that it stays readable."""
_MATCHED_BY = {"SITE": "site", "BODY": "body1 or body2", "XBODY": "subtree1 or subtree2"}


def check_supported(model: mujoco.MjModel) -> None:
    """Checks a model for features that MJX does not know or would silently ignore.

    MJX itself may reject more, such as pairs of shapes that it cannot collide: see `explained`.

    Raises:
        ConfigError: The model has such features. The message names the elements and attributes to edit.
    """
    found = [*_in_options(model), *_in_actuators(model), *_elsewhere(model)]
    if found:
        more = [f"{len(found) - _MOST} more like these"] if len(found) > _MOST else []
        raise ConfigError(
            f"MJX cannot simulate the model. In the MJCF file: {'. '.join(found[:_MOST] + more)}. Or set engine=mujoco."
        )


def check_touch(model: mujoco.MjModel, num_contacts: int) -> None:
    """Checks that a model with touch sensors can have contacts, of which MJX allocates `num_contacts`.

    Without any, MJX fails while it is traced.

    Raises:
        ConfigError: The model has a touch sensor, but no contacts.
    """
    touch = np.flatnonzero(model.sensor_type == int(mujoco.mjtSensor.mjSENS_TOUCH))
    if touch.size and not num_contacts:
        what = label(model, "sensor", int(touch[0]))
        raise ConfigError(
            f"MJX cannot simulate the model. In the MJCF file: {what} is a <touch>, but no two geoms can collide; take "
            "it out, or let geoms collide by contype and conaffinity. Or set engine=mujoco."
        )


def _in_options(model: mujoco.MjModel) -> Iterator[str]:
    option = model.opt
    for attribute, (known, every, prefix, instead) in _OPTIONS.items():
        value = getattr(option, attribute)
        if value not in set(known):
            word = every(value).name.removeprefix(prefix)
            word = word if attribute == "solver" else word.lower()
            yield f'<option {attribute}="{word}"> is not known to it; write {instead}'
    for bit in (1 << i for i in range(int(mujoco.mjtEnableBit.mjNENABLE))):
        if option.enableflags & bit and bit not in {int(flag) for flag in mjx.EnableBit}:
            flag = mujoco.mjtEnableBit(bit).name.removeprefix("mjENBL_").lower()
            yield f'<flag {flag}="enable"/> in <option> is not known to it; take it out'
    has_fluid = option.density > 0 or option.viscosity > 0 or np.any(option.wind)
    if option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST and has_fluid:
        yield (
            '<option integrator="implicitfast"> does not go with density, viscosity or wind; write Euler, or take them '
            "out"
        )
    if option.disableactuator:
        yield '<option actuatorgroupdisable="..."> would be ignored; take it out, and the actuators of those groups'


def _in_actuators(model: mujoco.MjModel) -> Iterator[str]:
    for i in range(model.nactuator):
        what = label(model, "actuator", i)
        unknown = [
            f'{attribute}="{every(value).name.removeprefix(prefix).lower()}"'
            for attribute, (known, every, prefix) in _FORCES.items()
            if (value := int(getattr(model, f"actuator_{attribute}")[i])) not in set(known)
        ]
        if unknown:
            yield f"{what} has {' '.join(unknown)}; write a <motor>, <position> or another that has none of these"
        if (transmission := int(model.actuator_trntype[i])) not in set(mjx.TrnType):
            drives = _TRANSMISSIONS.get(mujoco.mjtTrn(transmission), "something")
            yield f"{what} drives {drives}; only joints, tendons and sites can be driven, so take it out"
        for attribute, (fields, instead) in _IGNORED.items():
            if any(np.any(getattr(model, field)[i]) for field in fields):
                yield f'{what} has {attribute}="...", which would be ignored; {instead}'


def _elsewhere(model: mujoco.MjModel) -> Iterator[str]:
    if model.nflex:
        yield "<flex> and <flexcomp> are not known to it; take them out"
    for kind, strengths in (("joint", model.jnt_springyield), ("tendon", model.tendon_springyield)):
        for i in np.flatnonzero(strengths):
            yield f'{label(model, kind, int(i))} has springyield="...", which would be ignored; take it out'
    for kind in ("body", "geom", "actuator", "sensor"):
        for i in np.flatnonzero(getattr(model, f"{kind}_plugin") >= 0):
            yield f"{label(model, kind, int(i))} has a <plugin>, which would be ignored; take it out"
    for i in range(model.nsensor):
        kind, what = int(model.sensor_type[i]), label(model, "sensor", i)
        if kind not in set(mjx.SensorType):
            name = mujoco.mjtSensor(kind).name.removeprefix("mjSENS_").lower()
            yield f"{what} is a <{_SENSORS.get(name, name)}>, which is not known to it; take it out"
        if kind == mujoco.mjtSensor.mjSENS_CONTACT:
            yield from (f"{what} is a <contact> {problem}" for problem in _of_contact_sensor(model, i))
    for i in np.flatnonzero(~np.isin(model.eq_type, [int(x) for x in mjx.EqType])):
        element = mujoco.mjtEq(int(model.eq_type[i])).name.removeprefix("mjEQ_").lower()
        yield f"{label(model, 'equality', int(i))} is a <{element}>, which is not known to it; take it out"


def _of_contact_sensor(model: mujoco.MjModel, sensor: int) -> Iterator[str]:
    types = {mujoco.mjtObj(int(x[sensor])).name[6:] for x in (model.sensor_objtype, model.sensor_reftype)}
    for kind in types & set(_MATCHED_BY):
        yield f"that matches by {_MATCHED_BY[kind]}; match by geom1 and geom2"
    if model.sensor_intprm[sensor, 1] == 3:
        yield 'with reduce="netforce"; write mindist or maxforce'


def explained(reason: str, model: mujoco.MjModel) -> str:
    """MJX's error message with the names of the geoms concerned: MJX itself only names types of geoms."""
    types = list(dict.fromkeys(re.findall(r"mjGEOM_[A-Z]+", reason)))
    if not types:
        return reason
    collide = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    named = []
    for name in types:
        found = np.flatnonzero(collide & (model.geom_type == int(getattr(mujoco.mjtGeom, name))))
        geoms = [label(model, "geom", int(i)) for i in found[:3]] + ["..."] * (len(found) > 3)
        named.append(f'type="{name[7:].lower()}": {", ".join(geoms)}')
    rule = "must have margin and gap 0" if "margin" in reason else "cannot collide with each other"
    return (
        f"geoms of these types {rule} ({'; '.join(named)}). Give them another type, or keep them apart by contype, "
        "conaffinity or <exclude>"
    )


_DATA_FIELDS = frozenset(field.name for field in dataclasses.fields(mjx.Data))


class MjxEngine(AbstractEngine):
    """Physics by `mjx.step`.

    Only the fields that a step needs are carried from one substep to the next, and MJX's Data is rebuilt around them.
    This makes the scan's carry, and with it memory and copies, some twenty times smaller.
    """

    name = "mjx"

    def __init__(
        self,
        model: PhysicsModel,
        needs: Sequence[str] = (),
        *,
        applies: Sequence[str] = (),
        motor_curve: MotorCurve | None = None,
    ) -> None:
        """Creates the engine; `make_engine` describes the arguments."""
        self.model = model
        self.applied = applied_fields(applies)
        self._motor_curve = motor_curve
        self.derived = derived_fields(needs, DERIVED_FIELDS)
        check_supported(model.mj_model)
        try:
            # The implementation is given because MJX_GPU_DEFAULT_WARP would choose another one, with other fields. The
            # device is given because MJX takes the first device of all processes, which only process 0 can address.
            where = {"impl": "jax", "device": jax.local_devices()[0]}
            self._model = mjx.put_model(model.mj_model, **where)
            self._data = mjx.make_data(model.mj_model, **where)
        except (NotImplementedError, ValueError) as error:
            reason = explained(" ".join(str(error).split()), model.mj_model)
            raise ConfigError(f"MJX cannot simulate the model: {reason}. Or set engine=mujoco.") from error
        check_touch(model.mj_model, self._data._impl.contact.dist.shape[0])
        reference = mujoco.MjData(model.mj_model)
        self._shapes = {name: np.shape(getattr(reference, name)) for name in self.derived}

    def forward(self, state: PhysicsState, ctrl: Float[Array, " u"], overrides: Overrides) -> PhysicsState:
        state = self.without_applied_forces(state)
        return self._state(mjx.forward(self._overridden(overrides), self._load(state, ctrl)), state)

    def substeps(
        self, state: PhysicsState, ctrl: Float[Array, " u"] | Float[Array, "s u"], overrides: Overrides
    ) -> PhysicsState:
        model = self._overridden(overrides)

        def substep(state: PhysicsState, ctrl: Float[Array, " u"]) -> tuple[PhysicsState, None]:
            data = mjx.step(self._at_velocity(model, state), self._load(state, ctrl))
            return self._state(data, state), None

        ctrl_su = jnp.broadcast_to(ctrl, (self.model.decimation, ctrl.shape[-1]))
        # A nested scan keeps the program small: unrolled, it would be several times larger.
        return jax.lax.scan(substep, state, ctrl_su)[0]

    def _overridden(self, overrides: Overrides) -> mjx.Model:
        check_overrides(self.model.mj_model, overrides)
        return self._model.tree_replace(overrides)

    def _at_velocity(self, model: mjx.Model, state: PhysicsState) -> mjx.Model:
        """The model with the actuators' force ranges at their current velocities."""
        if self._motor_curve is None:
            return model
        places, gear = self.actuator_velocity_at()
        force_range = self._motor_curve(gear * state.qvel[places], model.actuator_forcerange)
        return model.replace(actuator_forcerange=force_range)

    def _load(self, state: PhysicsState, ctrl: Float[Array, " u"]) -> mjx.Data:
        return self._data.replace(
            qpos=state.qpos,
            qvel=state.qvel,
            act=state.act,
            qacc_warmstart=state.qacc_warmstart,
            time=state.time,
            ctrl=ctrl,
            **state.applied,
            **state.extra,
        )

    def _state(self, data: mjx.Data, before: PhysicsState) -> PhysicsState:
        """The state in `data`, with the external forces of the state `before`."""
        return PhysicsState(
            qpos=data.qpos,
            qvel=data.qvel,
            act=data.act,
            qacc_warmstart=data.qacc_warmstart,
            time=data.time,
            derived={name: self._derived(data, name) for name in self.derived},
            applied=before.applied,
            extra={name: getattr(data, name) for name in before.extra},
        )

    def _derived(self, data: mjx.Data, name: str) -> Array:
        # Fields that only some of MJX's implementations have are in `_impl`. Matrices get MuJoCo's flat shape.
        holder = data if name in _DATA_FIELDS else data._impl
        return jnp.reshape(getattr(holder, name), self._shapes[name])
