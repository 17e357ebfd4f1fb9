"""Touch sensors of single bodies, and of feet made of several bodies."""

import mujoco

_EVERYWHERE_M = 100.0
"""Radius of the site of a body's touch sensor, in m: large enough to contain all contacts of the body."""


def add_touch_sensor(spec: mujoco.MjSpec, name: str, site: str) -> None:
    """Adds a touch sensor: the sum of the contact forces, in N, on the site's body within the site."""
    spec.add_sensor(
        name=name,
        type=mujoco.mjtSensor.mjSENS_TOUCH,
        objtype=mujoco.mjtObj.mjOBJ_SITE,
        objname=site,
    )


def add_body_touch_sensor(spec: mujoco.MjSpec, name: str, body: mujoco.MjsBody) -> None:
    """Adds a touch sensor for all contacts of a body, with an invisible site of the same name."""
    body.add_site(name=name, size=[_EVERYWHERE_M, 0, 0], group=5, rgba=[0, 0, 0, 0])
    add_touch_sensor(spec, name, name)


def part_of(sensor: str, k: int) -> str:
    """The name of the k-th further sensor, from 1, whose readings `ModelNames.reading` adds to those of `sensor`."""
    return f"ksim_{sensor}_part_{k}"
