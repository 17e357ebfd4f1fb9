"""Randomization of motors and servos."""

import jax
import jax.numpy as jnp
import numpy as np

from ksim.mdp.randomizers.base import AbstractRandomizer
from ksim.mdp.term import Context, check_range
from ksim.types import ConfigError, Overrides


class RandomActuatorGains(AbstractRandomizer):
    """Multiplies kp and kd of each position servo by its own uniform numbers from `kp_factor` and `kd_factor`."""

    kp_factor: tuple[float, float] = (0.9, 1.1)
    kd_factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "kp_factor", least=0.0)
        check_range(self, "kd_factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        kp_key, kd_key = jax.random.split(context.key)
        num_actuators = context.model.mj_model.nu
        kp_u = jax.random.uniform(kp_key, (num_actuators,), minval=self.kp_factor[0], maxval=self.kp_factor[1])
        kd_u = jax.random.uniform(kd_key, (num_actuators,), minval=self.kd_factor[0], maxval=self.kd_factor[1])
        # A servo's force is gain[0] * target + bias[1] * position + bias[2] * velocity.
        is_servo = context.model.mj_model.actuator_biasprm[:, 1] != 0
        kp_u, kd_u = jnp.where(is_servo, kp_u, 1.0), jnp.where(is_servo, kd_u, 1.0)
        bias = self.current(context, "actuator_biasprm").at[:, 1].multiply(kp_u).at[:, 2].multiply(kd_u)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(kp_u)
        return {"actuator_gainprm": gain, "actuator_biasprm": bias}


class RandomMotorStrength(AbstractRandomizer):
    """Weak and strong motors: multiplies what each actuator can give by its own uniform number from `factor`.

    That is the force range where there is one, and the gain of a motor. A servo must have a force range.
    """

    factor: tuple[float, float] = (0.9, 1.1)

    def __check_init__(self) -> None:
        check_range(self, "factor", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        low, high = self.factor
        mj_model = context.model.mj_model
        is_servo = mj_model.actuator_biasprm[:, 1] != 0
        for index in np.flatnonzero(is_servo & (mj_model.actuator_forcelimited == 0)):
            name = context.model.names.actuators[index]
            raise ConfigError(
                f"RandomMotorStrength needs a force range of servo {name!r}. Give it one in the MJCF file."
            )
        factor_u = jax.random.uniform(context.key, (mj_model.nu,), minval=low, maxval=high)
        gain = self.current(context, "actuator_gainprm").at[:, 0].multiply(jnp.where(is_servo, 1.0, factor_u))
        forcerange = self.current(context, "actuator_forcerange") * factor_u[:, None]
        return {"actuator_gainprm": gain, "actuator_forcerange": forcerange}
