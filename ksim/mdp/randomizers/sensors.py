"""Randomization of sensors."""

import jax
import jax.numpy as jnp
import mujoco

from ksim.checks import check_range
from ksim.errors import ConfigError
from ksim.mdp.randomizers.base import AbstractRandomizer
from ksim.mdp.term import Context
from ksim.physics.rotations import multiply_quaternions
from ksim.types import Overrides


class RandomImuAlignment(AbstractRandomizer):
    """IMU misalignment: turns a site about a random axis by a uniform angle up to `max_angle`, in rad.

    Every sensor at the site turns with it. site: its name.
    """

    site: str
    max_angle: float = 0.02

    def __check_init__(self) -> None:
        check_range(self, "max_angle", least=0.0)

    def __call__(self, context: Context) -> Overrides:
        index = context.model.names.index("site", self.site)
        mj_model = context.model.mj_model
        is_site = lambda kinds, ids: ((kinds == int(mujoco.mjtObj.mjOBJ_SITE)) & (ids == index)).any()
        at_sensor = is_site(mj_model.sensor_objtype, mj_model.sensor_objid)
        from_sensor = is_site(mj_model.sensor_reftype, mj_model.sensor_refid)
        if not (at_sensor or from_sensor or "site_xmat" in context.physics.derived):
            raise ConfigError(
                f"RandomImuAlignment of site {self.site!r} changes nothing: no sensor is there, and no term reads "
                "site_xmat. Name the site of a sensor."
            )
        axis_key, angle_key = jax.random.split(context.key)
        axis_3 = jax.random.normal(axis_key, (3,))
        axis_3 /= jnp.linalg.norm(axis_3)
        half = jax.random.uniform(angle_key, maxval=self.max_angle) / 2
        turn = jnp.concatenate([jnp.cos(half)[None], jnp.sin(half) * axis_3])
        quat_s4 = self.current(context, "site_quat")
        return {"site_quat": quat_s4.at[index].set(multiply_quaternions(quat_s4[index], turn))}
