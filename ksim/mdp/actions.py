"""Filters between the actions of the policy and the actuators."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import check_positive, check_rule
from ksim.mdp.commands import motion_frame
from ksim.mdp.term import Context, Term
from ksim.physics.actuators import PositionActuators, per_joint


class AbstractActionFilter(Term):
    """A map from the chosen action, `context.action`, to the applied action. Filters apply in order."""

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " a"] | Float[Array, "s a"]:
        """The action for the coming control step, or one for each of its substeps."""


class ActionLatency(AbstractActionFilter):
    """Delays actions by a time drawn once per episode, in whole physics substeps.

    seconds: the shortest and the longest latency. Until the first action arrives, the action 0 is applied.
    """

    seconds: tuple[float, float] = (0.0, 0.02)

    def __check_init__(self) -> None:
        is_met = 0 <= self.seconds[0] <= self.seconds[1]
        check_rule(f"ActionLatency of {self.seconds} s", is_met, "two times from 0, the shorter first")

    def init(self, context: Context) -> tuple[Array, Array]:
        low, high = (round(s / context.model.dt) for s in self.seconds)
        late_substeps = jax.random.randint(context.key, (), low, high + 1)
        # The substeps of the present control step, and as many before them as the latency reaches back.
        num_kept = -(-high // context.model.decimation) + 1
        return jnp.zeros((num_kept, *context.action.shape)), late_substeps

    def update(self, context: Context) -> tuple[Array, Array]:
        past_ka, late_substeps = context.memory
        return jnp.concatenate([context.action[None], past_ka[:-1]]), late_substeps

    def __call__(self, context: Context) -> Float[Array, "s a"]:
        past_ka, late_substeps = context.memory
        decimation = context.model.decimation
        # Substep s runs under the action chosen ceil((late - s) / decimation) control steps ago.
        steps_ago_s = -((jnp.arange(decimation) - late_substeps) // decimation)
        return past_ka[steps_ago_s]


class DroppedActions(AbstractActionFilter):
    """Drops each action with a probability; the previously applied one is repeated."""

    probability: float = 0.05

    def __check_init__(self) -> None:
        is_met = 0 <= self.probability < 1
        check_rule(f"DroppedActions with probability {self.probability}, which", is_met, "from 0 to below 1")

    def init(self, context: Context) -> Float[Array, " a"]:
        return jnp.zeros_like(context.action)

    def update(self, context: Context) -> Float[Array, " a"]:
        is_lost = jax.random.bernoulli(context.key, self.probability)
        return jnp.where(is_lost, context.memory, context.action)

    def __call__(self, context: Context) -> Float[Array, " a"]:
        return context.memory


class ActionSmoothing(AbstractActionFilter):
    """First-order low-pass filter on actions, applied once per control step. `time_constant_s`: its time constant."""

    time_constant_s: float = 0.02

    def __check_init__(self) -> None:
        check_positive("ActionSmoothing's time_constant_s", self.time_constant_s)

    def init(self, context: Context) -> Float[Array, " a"]:
        return jnp.zeros_like(context.action)

    def update(self, context: Context) -> Float[Array, " a"]:
        share = 1 - jnp.exp(-context.dt / self.time_constant_s)
        return context.memory + share * (context.action - context.memory)

    def __call__(self, context: Context) -> Float[Array, " a"]:
        return context.memory


class AroundMotion(AbstractActionFilter):
    """Adds the commanded frame of a motion, so that the action 0 has its joint positions as targets.

    A policy then learns by how much to lead the motion, and need not first learn to reach its poses.

    command: name of a `MotionCommand`. actuators: those of the task, which turn actions into targets.
    """

    command: str
    actuators: PositionActuators

    def __call__(self, context: Context) -> Float[Array, " a"]:
        command, frame = motion_frame(context, self.command)
        names = context.model.names
        joints = names.actuator_joints()
        places = names.joint_qpos(joints)
        scale_a = per_joint(self.actuators.action_scale, joints, "action_scale")
        check_rule(f"AroundMotion's smallest action_scale ({scale_a.min():g})", scale_a.min() > 0, "positive")
        offset_a = (jnp.asarray(command.motions.qpos)[frame, places] - context.model.default_qpos[places]) / scale_a
        return jnp.asarray(context.action + offset_a, jnp.float32)
