"""The mirror image of a robot and its actuators, independent of observations."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ksim.errors import ConfigError
from ksim.mirror.dynamics import SECONDS, mirrored_dynamics_gap
from ksim.mirror.model import ModelMirror, mirror_model
from ksim.mirror.signed import SignedPermutation
from ksim.physics.model import PhysicsModel

MAX_DYNAMICS_GAP = 0.1
"""Largest gap of `mirrored_dynamics_gap`. Robots with slight differences between left and right have up to 0.035."""


@dataclasses.dataclass(frozen=True, eq=False)
class RobotMirror:
    """Mirror images of a robot's states, controls and actions.

    Attributes:
        model: Images of its states and controls.
        action: Images of actions.
        dynamics_gap: See `mirrored_dynamics_gap`.
    """

    model: ModelMirror
    action: SignedPermutation
    dynamics_gap: float


def mirror_robot(physics_model: PhysicsModel, control: Callable[[Array], Array], action_size: int) -> RobotMirror:
    """Finds the mirror image of a robot's model, and checks its motions and actions.

    Args:
        physics_model: The robot on a flat floor, which is its own mirror image.
        control: The function of the actuators from an action, (a,), to controls, (u,).

    Raises:
        ConfigError: The robot or its actuators have no mirror image.
    """
    mirror = mirror_model(physics_model)
    gap = mirrored_dynamics_gap(physics_model, mirror)
    if not np.isfinite(gap):
        raise ConfigError(
            f"The robot's simulation does not stay finite for {SECONDS} s near its default pose, so its mirror image "
            f"cannot be compared: it flies apart at dt={physics_model.mj_model.opt.timestep:g} s. Look at its first "
            "keyframe and its actuators, take a smaller dt, or set symmetry=off."
        )
    if not gap <= MAX_DYNAMICS_GAP:
        raise ConfigError(
            f"The robot does not move as its mirror image does: in {SECONDS} s, mirrored motions are off by {gap:.0%} "
            f"of how far it moves, more than {MAX_DYNAMICS_GAP:.0%}. Override get_mirror, or set symmetry=off."
        )
    return RobotMirror(mirror, _action_image(control, action_size, mirror.ctrl), gap)


def _action_image(control: Callable[[Array], Array], size: int, ctrl: SignedPermutation) -> SignedPermutation:
    """The image of actions, which is the image of the controls that they set."""
    action_n = np.random.default_rng(0).uniform(-0.5, 0.5, (4, size)).astype(np.float32)
    if size == ctrl.index.size:
        control_n = jax.vmap(control)
        expected, found = ctrl(control_n(jnp.asarray(action_n))), control_n(ctrl(jnp.asarray(action_n)))
        if np.allclose(expected, found, atol=0.02 * float(jnp.abs(expected).max())):
            return ctrl
    raise ConfigError(
        "The mirror image of an action is not known: mirrored actions do not set mirrored controls. The actuators of "
        "joints that are mirror images must be alike, also in their default positions. Override get_mirror, or set "
        "symmetry=off."
    )
