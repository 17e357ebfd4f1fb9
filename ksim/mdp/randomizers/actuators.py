"""Randomization of motors and servos."""

import jax
import jax.numpy as jnp
import numpy as np

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.randomizers.base import AbstractRandomizer
from ksim.mdp.term import Context
from ksim.physics.actuator_kinds import ActuatorKind, actuator_kinds
from ksim.physics.labels import label
from ksim.types import Overrides

_HAS_KP = (ActuatorKind.POSITION, ActuatorKind.INTEGRATED_VELOCITY, ActuatorKind.PID)
"""Position servos: their bias holds -kp and -kd, and but for a PID their gain is kp."""
_STRENGTH = {
    ActuatorKind.FORCE: slice(0, 1),
    ActuatorKind.VARIABLE_GAIN: slice(0, 3),
    ActuatorKind.MUSCLE: slice(2, 4),  # the peak force, or the scale that it is computed from
}
"""By kind: the parameters of the gain that the force grows with. Those of a servo move its target as well."""


class RandomActuatorGains(AbstractRandomizer):
    """Multiplies kp and kd of each position servo by its own uniform numbers from `kp_factor` and `kd_factor`.

    `position`, `intvelocity` and `pid` are position servos; other actuators keep their gains. One must be a servo.
    """

    kp_factor: tuple[float, float] = (0.9, 1.1)
    kd_factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "kp_factor", least=0.0)
        check_range(self, "kd_factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        kp_key, kd_key = jax.random.split(context.key)
        kinds = actuator_kinds(context.model.mj_model)
        if not any(kind in _HAS_KP for kind in kinds):
            found = ", ".join(sorted({kind.name.lower() for kind in kinds})) or "none"
            raise ConfigError(
                f"RandomActuatorGains changes nothing: no actuator is a position servo (found: {found}). Use "
                "PositionActuators, or RandomMotorStrength for motors."
            )
        kp_u = jax.random.uniform(kp_key, (len(kinds),), minval=self.kp_factor[0], maxval=self.kp_factor[1])
        kd_u = jax.random.uniform(kd_key, (len(kinds),), minval=self.kd_factor[0], maxval=self.kd_factor[1])
        # A servo's force is gain[0] * target + bias[1] * position + bias[2] * velocity.
        is_servo = np.array([kind in _HAS_KP for kind in kinds])
        gain_is_kp = is_servo & np.array([kind is not ActuatorKind.PID for kind in kinds])
        kp_u, kd_u = jnp.where(is_servo, kp_u, 1.0), jnp.where(is_servo, kd_u, 1.0)
        bias = self.current(context, "actuator_biasprm").at[:, 1].multiply(kp_u).at[:, 2].multiply(kd_u)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(jnp.where(gain_is_kp, kp_u, 1.0))
        return {"actuator_gainprm": gain, "actuator_biasprm": bias}


class RandomMotorStrength(AbstractRandomizer):
    """Multiplies the strength of each actuator by its own uniform number from `factor`.

    The strength is the force range, if there is one, and the gain of a motor or the peak force of a muscle. A servo
    must have a force range.
    """

    factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        low, high = self.factor
        mj_model = context.model.mj_model
        kinds = actuator_kinds(mj_model)
        scaled = np.zeros(mj_model.actuator_gainprm.shape, bool)
        for i, kind in enumerate(kinds):
            if kind in _STRENGTH:
                scaled[i, _STRENGTH[kind]] = True
            elif not mj_model.actuator_forcelimited[i]:
                actuator = label(mj_model, "actuator", i)
                raise ConfigError(
                    f"RandomMotorStrength needs a force range of {actuator}. Give it a forcerange in the MJCF file."
                )
        factor_u = jax.random.uniform(context.key, (len(kinds),), minval=low, maxval=high)
        gain = self.current(context, "actuator_gainprm") * jnp.where(scaled, factor_u[:, None], 1.0)
        forcerange = self.current(context, "actuator_forcerange") * factor_u[:, None]
        return {"actuator_gainprm": gain, "actuator_forcerange": forcerange}
