"""The base class of all terms of an MDP, and the context that they see."""

import dataclasses
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from ksim.checks import CheckedModule
from ksim.errors import ConfigError, get_named
from ksim.physics.model import PhysicsModel
from ksim.physics.names import Base
from ksim.types import Levels, Overrides, PhysicsState


@dataclasses.dataclass(frozen=True)
class Context:
    """The input of a term: one env at one step. It exists only while tracing.

    Attributes:
        model: The compiled model, for names and rates.
        physics: The physics state reached.
        action: The action that led here; zeros at a reset.
        previous_action: The action before that one; zeros at a reset.
        control: The last controls of the actuators, in their units.
        commands: Values of the command terms, by name. Rewards and terminations see the commands that were in force
            when the action was chosen, observations those for the next action.
        episode_step: Control steps since the reset.
        terminated: The episode ended here (the robot fell). Only rewards and curricula see it; for others it is False.
        overrides: Model fields that randomizers have changed for this env.
        key: This term's own key for this step.
        levels: Levels of difficulty, from 0 to 1, by the name of a curriculum.
        memory: This term's memory, as `init` and `update` return it.
        episode_key: The key of the episode, the same for all terms and steps: for terms that must agree on a draw.
        command_terms: The command terms by name, for terms that need more than a command's value.
    """

    model: PhysicsModel
    physics: PhysicsState
    action: Float[Array, " a"]
    previous_action: Float[Array, " a"]
    control: Float[Array, " u"]
    commands: dict[str, Array]
    episode_step: Array
    terminated: Bool[Array, ""]
    overrides: Overrides
    key: PRNGKeyArray
    levels: Levels = dataclasses.field(default_factory=dict)
    memory: PyTree = None
    episode_key: PRNGKeyArray | None = None
    command_terms: "Mapping[str, Term]" = dataclasses.field(default_factory=dict)

    @classmethod
    def at(cls, model: PhysicsModel, physics: PhysicsState, **fields: Any) -> "Context":
        """A context in which the fields that are not given are neutral: no action, command, override or step so far."""
        no_action = lambda: jnp.zeros(model.mj_model.nu)
        neutral: dict[str, Callable[[], Any]] = {
            "action": no_action,
            "previous_action": no_action,
            "control": no_action,
            "commands": dict,
            "episode_step": lambda: jnp.int32(0),
            "terminated": lambda: jnp.bool_(False),
            "overrides": dict,
            "key": lambda: jax.random.key(0),
        }
        # Made only where they are missed: each would be an operation of the traced program.
        return cls(model=model, physics=physics, **{x: neutral[x]() for x in neutral if x not in fields}, **fields)

    @property
    def dt(self) -> float:
        """Seconds per control step."""
        return self.model.ctrl_dt

    @property
    def base(self) -> Base:
        """The robot's base: where it is and how it moves."""
        return Base(self.physics, self.model.names)

    def command(self, name: str) -> Array:
        """A command's value.

        Raises:
            ConfigError: No command term has this name.
        """
        return get_named(self.commands, name, "command")

    def level(self, name: str) -> Float[Array, "*b"]:
        """A curriculum's level, from 0, the easiest, to 1, the full task; a vector if it has bins.

        Raises:
            ConfigError: No curriculum has this name.
        """
        return get_named(self.levels, name, "curriculum")

    def derived(self, name: str) -> Array:
        """A derived field of the physics state.

        Raises:
            ConfigError: No term declares that it needs this field.
        """
        if name not in self.physics.derived:
            raise ConfigError(
                f"The physics state does not carry {name!r}. Add needs = ({name!r},) to the term's class."
            )
        return self.physics.derived[name]

    def height_above_ground(self, position: Float[Array, "*n 3"]) -> Float[Array, "*n"]:
        """Height of positions in the world above the ground below them, in m."""
        return position[..., 2] - self.model.ground.height(position)

    def sensor(self, name: str) -> Array:
        """A sensor's readings."""
        return self.model.names.reading(self.derived("sensordata"), name)

    def sensors(self, names: Sequence[str]) -> Array:
        """The readings of several sensors, concatenated."""
        return jnp.concatenate([self.sensor(name) for name in names])


class Term(CheckedModule):
    """A term: configuration in its fields, pure functions of a `Context`.

    A term without memory implements `__call__` alone. One with memory also implements `init` and `update`; at each
    step `update` comes first, and `__call__` sees the memory that it returned.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """Derived fields of the physics state that the term reads, besides sensordata."""

    applies: ClassVar[tuple[str, ...]] = ()
    """Fields of forces from outside (`xfrc_applied`, `qfrc_applied`) that the term, an event, writes."""

    @abstractmethod
    def __call__(self, context: Context) -> Any:
        """The term's value."""

    def init(self, context: Context) -> PyTree:
        """The memory at a reset."""
        return None

    def update(self, context: Context) -> PyTree:
        """The memory after a step."""
        return context.memory

    def edit_spec(self, spec: mujoco.MjSpec) -> None:
        """Adds to the model what the term needs, such as sensors, before it is compiled; by default for inner terms."""
        for term in self.inner_terms():
            term.edit_spec(spec)

    def inner_terms(self) -> "list[Term]":
        """The terms that this one wraps: fields that are terms."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return [value for value in values if isinstance(value, Term)]

    def with_inner_terms(self) -> "Iterator[Term]":
        """The term and all terms within it, the outer first."""
        yield self
        for term in self.inner_terms():
            yield from term.with_inner_terms()


class ChangeOfVelocity(Term):
    """A term whose memory is a velocity and its change per second over the last control step, which is 0 at a reset."""

    @abstractmethod
    def velocity(self, context: Context) -> Float[Array, " n"]:
        """The velocity to differentiate."""

    def init(self, context: Context) -> tuple[Array, Array]:
        velocity_n = self.velocity(context)
        return velocity_n, jnp.zeros_like(velocity_n)

    def update(self, context: Context) -> tuple[Array, Array]:
        before_n, _ = context.memory
        velocity_n = self.velocity(context)
        return velocity_n, (velocity_n - before_n) / context.dt


T = TypeVar("T", bound=eqx.Module)
Terms = Sequence[T] | Mapping[str, T]


def named_terms(terms: Sequence[Any] | Mapping[str, Any], *kinds: type[T]) -> dict[str, T]:
    """Terms of any of the kinds by name: a mapping's own, or in a sequence the class's name in snake case.

    Raises:
        ConfigError: A term is of another kind, or two have the same name.
    """
    named: dict[str, T] = {}
    if isinstance(terms, Mapping):
        items = list(terms.items())
    else:
        items = [(snake_case(t.__name__ if isinstance(t, type) else type(t).__name__), t) for t in terms]
    for name, term in items:
        if isinstance(term, type):
            raise ConfigError(f"Term {term.__name__} must be an instance: write {term.__name__}().")
        if not isinstance(term, kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"Term {name!r} must be a {wanted}, not {type(term).__name__}.")
        if name in named:
            raise ConfigError(f"Two terms are named {name!r}. Give the terms as a mapping from names of your own.")
        named[name] = term
    return named


def snake_case(name: str) -> str:
    """`TrackYawRate` as `track_yaw_rate`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
