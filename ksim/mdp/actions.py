"""What happens to actions on their way from the policy to the actuators."""

from abc import abstractmethod

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ksim.checks import check_positive, check_rule
from ksim.mdp.term import Context, Term


class AbstractActionFilter(Term):
    """From the action that was chosen, `context.action`, to the action that acts. Filters apply in their order."""

    @abstractmethod
    def __call__(self, context: Context) -> Float[Array, " a"] | Float[Array, "s a"]:
        """The action for the coming control step, or one for each of its substeps."""


class ActionLatency(AbstractActionFilter):
    """Actions act late, by a time that is drawn once per episode, as fine as a physics substep.

    seconds: the shortest and the longest latency. Until the first action has arrived, the action 0 acts.
    """

    seconds: tuple[float, float] = (0.0, 0.02)

    def __check_init__(self) -> None:
        is_met = 0 <= self.seconds[0] <= self.seconds[1]
        check_rule(f"ActionLatency of {self.seconds} s", is_met, "a shortest and a longest time, from 0 on")

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
    """Each action is lost with a probability; the one that acted before it then goes on acting."""

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
    """Actions pass a first-order low-pass filter, once per control step. time_constant_s: its time constant."""

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
