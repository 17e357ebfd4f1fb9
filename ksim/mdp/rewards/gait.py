"""Rewards for the gait: feet that follow a clock, and left-right symmetry.

A clock completes a period every `period_s` from the start of the episode, like the `PhaseClock` that the policy sees.
Phases are fractions of a period. The stance of a foot begins at phase 0; foot i is `offsets[i]` ahead of the clock. By
default feet are evenly spaced. (0, 0.5) is a walk, and (0, 0.5, 0.5, 0) a trot of feet in the order front left, front
right, rear left, rear right.
"""

from typing import Any

import jax.numpy as jnp
import mujoco
import numpy as np
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from ksim.checks import check_field, ranged
from ksim.errors import ConfigError
from ksim.mdp.rewards.base import AbstractReward, asks_to_move
from ksim.mdp.rewards.feet import add_velocity_sensors, feet_in_contact, foot_heights, horizontal_velocity
from ksim.mdp.term import Context

Offsets = tuple[float, ...] | None


class FeetPhase(AbstractReward):
    """Fraction of feet whose contact follows a clock, each foot down for `duty` of its period.

    While commanded to stand, the fraction of feet that are down. sensors: names of touch sensors, in the
    order of their phases. period_s: period of the clock, in s; use that of the policy's `PhaseClock`. offsets: initial
    phase of each foot, as a fraction of a period; default evenly spaced.
    """

    sensors: tuple[str, ...]
    command: str
    period_s: float = ranged(0.8, above=0.0)
    duty: float = ranged(0.55, above=0.0, most=1.0)
    offsets: Offsets = None
    scale: float = 1.0

    def __check_init__(self) -> None:
        _check_offsets(self, len(self.sensors))

    def __call__(self, context: Context) -> Float[Array, ""]:
        phase_f = foot_phases(context, len(self.sensors), self.period_s, self.offsets)
        is_asked = asks_to_move(context.command(self.command))
        should_be_down_f = (phase_f < self.duty) | ~is_asked
        return jnp.mean(feet_in_contact(context, self.sensors) == should_be_down_f)


class FeetPhaseForce(AbstractReward):
    """Contact force of feet that should swing: mean over feet of weighted 1 - exp(-force^2 / (2 std^2)).

    The weight is 1 in the swing and 0 in the stance, with edges smoothed by a Gaussian, so that landing slightly early
    costs little: the swing phase term of Margolis and Agrawal 2022 (arXiv:2212.03238), as a cost. 0 while the command
    asks to stand. sensors: names of touch sensors. std: N. edge_std: width of the smoothing, as a fraction of a period.
    Others: as FeetPhase.
    """

    sensors: tuple[str, ...]
    command: str
    period_s: float = ranged(0.8, above=0.0)
    duty: float = ranged(0.55, above=0.0, most=1.0)
    offsets: Offsets = None
    edge_std: float = ranged(0.05, above=0.0)
    std: float = ranged(50.0, above=0.0)
    scale: float = -1.0

    def __check_init__(self) -> None:
        _check_offsets(self, len(self.sensors))

    def __call__(self, context: Context) -> Float[Array, ""]:
        phase_f = foot_phases(context, len(self.sensors), self.period_s, self.offsets)
        swing_f = 1 - expected_contact(phase_f, self.duty, self.edge_std)
        cost_f = 1 - jnp.exp(-jnp.square(context.sensors(self.sensors)) / (2 * self.std**2))
        return jnp.mean(swing_f * cost_f) * asks_to_move(context.command(self.command))


class FeetPhaseVelocity(AbstractReward):
    """Speed of feet that should stand: mean over feet of weighted 1 - exp(-speed^2 / (2 std^2)).

    The weight is 1 in the stance and 0 in the swing, with smoothed edges: the stance phase term of Margolis and
    Agrawal 2022 (arXiv:2212.03238), as a cost. While commanded to stand, all feet stand. sites: names of the
    feet's sites; velocity sensors are added to the model if missing. std: m/s, horizontally. edge_std:
    width of the smoothing, as a fraction of a period. Others: as FeetPhase.
    """

    sites: tuple[str, ...]
    command: str
    period_s: float = ranged(0.8, above=0.0)
    duty: float = ranged(0.55, above=0.0, most=1.0)
    offsets: Offsets = None
    edge_std: float = ranged(0.05, above=0.0)
    std: float = ranged(0.5, above=0.0)
    scale: float = -1.0

    def __check_init__(self) -> None:
        _check_offsets(self, len(self.sites))

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        add_velocity_sensors(spec, self.sites)

    def __call__(self, context: Context) -> Float[Array, ""]:
        phase_f = foot_phases(context, len(self.sites), self.period_s, self.offsets)
        is_asked = asks_to_move(context.command(self.command))
        stance_f = jnp.where(is_asked, expected_contact(phase_f, self.duty, self.edge_std), 1.0)
        squared_f = jnp.sum(jnp.square(horizontal_velocity(context, self.sites)), axis=1)
        return jnp.mean(stance_f * (1 - jnp.exp(-squared_f / (2 * self.std**2))))


class FootSwingHeight(AbstractReward):
    """Squared error of the height of feet that should swing, in m^2, from a swing curve, summed.

    The swing curve is half a sine, `height` at its middle, above `rest_height`. 0 while commanded to stand. sites:
    names of the feet's sites. height: m. rest_height: height of the sites above the ground in stance, in m.
    Others: as FeetPhase.
    """

    needs = ("site_xpos",)
    sites: tuple[str, ...]
    command: str
    height: float = ranged(0.08, least=0.0)
    rest_height: float = 0.0
    period_s: float = ranged(0.8, above=0.0)
    duty: float = ranged(0.55, above=0.0, most=0.95)
    offsets: Offsets = None
    scale: float = -20.0

    def __check_init__(self) -> None:
        _check_offsets(self, len(self.sites))

    def __call__(self, context: Context) -> Float[Array, ""]:
        phase_f = foot_phases(context, len(self.sites), self.period_s, self.offsets)
        bump_f = jnp.sin(jnp.pi * (phase_f - self.duty) / (1 - self.duty))
        error_f = foot_heights(context, self.sites) - (self.rest_height + self.height * bump_f)
        squared_f = jnp.where(phase_f >= self.duty, jnp.square(error_f), 0.0)
        return jnp.sum(squared_f) * asks_to_move(context.command(self.command))


class SwingPose(AbstractReward):
    """Squared distances, in rad^2, of the joints of legs from poses that follow a clock, summed.

    A leg is in the default pose for `duty` of its period and then bends along half a sine, up to `bend`; while the
    command asks to stand, all are in the default pose. legs: names of joints, per leg in the order of their phases.
    bend: rad beyond the default pose in the middle of the swing, per joint of a leg; or such numbers for each leg.
    Others: as FeetPhase.
    """

    legs: tuple[tuple[str, ...], ...]
    bend: tuple[float, ...] | tuple[tuple[float, ...], ...]
    command: str
    period_s: float = ranged(0.8, above=0.0)
    duty: float = ranged(0.55, above=0.0, most=0.95)
    offsets: Offsets = None
    scale: float = -5.0

    def __check_init__(self) -> None:
        _check_offsets(self, len(self.legs))
        for joints, bend in zip(self.legs, self._bends(), strict=True):
            if len(joints) != len(bend) or any(isinstance(angle, tuple) for angle in bend):
                raise ConfigError(
                    f"SwingPose bends {len(bend)} joints of a leg ({bend}), but a leg has {len(joints)}: {joints}. "
                    "Give bend one number for each joint of a leg, or a tuple of such numbers for each leg."
                )

    def _bends(self) -> tuple[tuple[Any, ...], ...]:
        """The bends of each leg."""
        if len(self.bend) == len(self.legs) and all(isinstance(bend, tuple) for bend in self.bend):
            return self.bend  # type: ignore[return-value]
        return (self.bend,) * len(self.legs)

    def __call__(self, context: Context) -> Float[Array, ""]:
        phase_l = foot_phases(context, len(self.legs), self.period_s, self.offsets)
        swing_l = jnp.maximum(phase_l - self.duty, 0.0) / (1 - self.duty)
        raised_l = jnp.sin(jnp.pi * swing_l) * asks_to_move(context.command(self.command))
        places_lj = np.array([context.model.names.joint_qpos(joints) for joints in self.legs])
        target_lj = context.model.default_qpos[places_lj] + raised_l[:, None] * jnp.array(self._bends())
        return jnp.sum(jnp.square(context.physics.qpos[places_lj] - target_lj))


class TrackGait(AbstractReward):
    """Fraction of feet whose contact follows a commanded gait: its frequency, duty and offsets.

    sensors: names of touch sensors, the first foot first. command: a GaitCommand, with an offset for each further
    foot. velocity: a velocity command; while it is to stand, the fraction of feet that are down. None: always step.
    """

    sensors: tuple[str, ...]
    command: str
    velocity: str | None = None
    scale: float = 1.0

    def init(self, context: Context) -> Float[Array, ""]:
        return jnp.zeros(())

    def update(self, context: Context) -> Float[Array, ""]:
        # As the `GaitClock` that the policy sees.
        return (context.memory + context.command(self.command)[0] * context.dt) % 1.0

    def __call__(self, context: Context) -> Float[Array, ""]:
        command_n = context.command(self.command)
        if command_n.size != len(self.sensors) + 1:
            raise ConfigError(
                f"TrackGait has {len(self.sensors)} sensors, but command {self.command!r} sets the gait of "
                f"{command_n.size - 1} feet. Give the command an offset for each foot but the first."
            )
        phase_f = (context.memory + jnp.concatenate([jnp.zeros(1), command_n[2:]])) % 1.0
        should_be_down_f = phase_f < command_n[1]
        if self.velocity is not None:
            should_be_down_f |= ~asks_to_move(context.command(self.velocity))
        return jnp.mean(feet_in_contact(context, self.sensors) == should_be_down_f)


class Symmetry(AbstractReward):
    """Squared difference, in rad^2, of each joint from its mirror image half a period ago, summed.

    It is 0 in a symmetrical gait as defined by Hildebrand 1965 (Science 150:701): left and right move alike, half a
    stride apart. 0 in the first half period and while commanded to stand. pairs: left and right joints. signs:
    for each pair, -1 if mirror images have opposite positions (roll, yaw), 1 if equal (pitch); default all 1. A joint
    in the middle is a pair with itself. period_s: period in s, about an even number of control steps.
    """

    pairs: tuple[tuple[str, str], ...]
    command: str
    signs: tuple[float, ...] | None = None
    period_s: float = ranged(0.8, above=0.0)
    scale: float = -0.1

    def __check_init__(self) -> None:
        if not self.pairs:
            raise ConfigError("Symmetry has no pairs of joints. Name at least one.")
        signs = (1.0,) * len(self.pairs) if self.signs is None else self.signs
        is_met = len(signs) == len(self.pairs) and all(abs(sign) == 1 for sign in signs)
        check_field(self, "signs", is_met, f"1 or -1 for each of its {len(self.pairs)} pairs")

    def init(self, context: Context) -> Array:
        position_2p = self._positions(context)
        half_turn = max(1, round(self.period_s / 2 / context.dt))
        return jnp.broadcast_to(position_2p, (half_turn + 1, *position_2p.shape))

    def update(self, context: Context) -> Array:
        return jnp.concatenate([self._positions(context)[None], context.memory[:-1]])

    def __call__(self, context: Context) -> Float[Array, ""]:
        past_t2p = context.memory
        signs_p = jnp.array(self.signs or [1.0] * len(self.pairs))
        error_2p = past_t2p[0] - signs_p * past_t2p[-1, ::-1]
        counts = asks_to_move(context.command(self.command)) & (context.episode_step >= len(past_t2p) - 1)
        return jnp.sum(jnp.square(error_2p)) * counts

    def _positions(self, context: Context) -> Float[Array, "2 p"]:
        left, right = zip(*self.pairs, strict=True)
        names = context.model.names
        return jnp.stack([context.physics.qpos[names.joint_qpos(side)] for side in (left, right)])


def foot_phases(context: Context, num_feet: int, period_s: float, offsets: Offsets) -> Float[Array, " f"]:
    """The phase of each foot, from 0 to 1."""
    offset_f = jnp.arange(num_feet) / num_feet if offsets is None else jnp.array(offsets)
    return (context.episode_step * context.dt / period_s + offset_f) % 1.0


def expected_contact(phase_f: Float[Array, " f"], duty: float, edge_std: float) -> Float[Array, " f"]:
    """Expected contact of each foot: 1 over phases from 0 to `duty`, else 0, smoothed by a periodic Gaussian."""
    turns_k1 = jnp.array([[-1.0], [0.0], [1.0]])
    into_kf = (phase_f - turns_k1) / edge_std
    past_kf = (phase_f - turns_k1 - duty) / edge_std
    return jnp.sum(norm.cdf(into_kf) - norm.cdf(past_kf), axis=0)


def _check_offsets(
    term: "FeetPhase | FeetPhaseForce | FeetPhaseVelocity | FootSwingHeight | SwingPose", num_feet: int
) -> None:
    if term.offsets is not None and len(term.offsets) != num_feet:
        raise ConfigError(
            f"{type(term).__name__} has offsets={term.offsets} for {num_feet} feet. Give one for each foot, in turns."
        )
