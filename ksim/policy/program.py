"""A policy as programs that run without the code of the task: the deterministic policy, serialized by `jax.export`.

The programs hold no weights. They are made once per run, take less than 10 kB, and run with the arrays of any
checkpoint of the run.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.export
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ksim.errors import ConfigError
from ksim.nn.actor_critic import AbstractActorCritic, act
from ksim.nn.normalizer import NormalizedActorCritic
from ksim.parallel.placement import named_leaves
from ksim.policy.program_safety import PLATFORMS, RefusedError, bounded, read_programs
from ksim.types import Observation

# Primitives that only call the single jaxpr in their parameters.
_CALLS = {"jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "checkpoint", "remat2"}


def inner_jaxpr(eqn: Any) -> jax.extend.core.ClosedJaxpr | None:
    """The jaxpr that an equation calls with its own arguments; None if it is not a call."""
    if eqn.primitive.name not in _CALLS:
        return None
    for value in eqn.params.values():
        if isinstance(value, jax.extend.core.ClosedJaxpr):
            return value
        if isinstance(value, jax.extend.core.Jaxpr):
            return jax.extend.core.ClosedJaxpr(value, ())
    return None


def is_literal(atom: Any) -> bool:
    """Whether an argument of an equation is a literal, not a variable."""
    return isinstance(atom, jax.extend.core.Literal)


def live_equations(jaxpr: Any, wanted: Sequence[bool]) -> tuple[list[tuple[Any, list[bool]]], list[bool]]:
    """The equations and inputs that the wanted outputs of a jaxpr depend on.

    Follows calls. Loops and branches count as depending on all of their inputs.

    Returns:
        The needed equations in order, each with a mask of its needed outputs; and a mask of the inputs that are read.
    """
    live = {v for v, want in zip(jaxpr.outvars, wanted, strict=True) if want and not is_literal(v)}
    needed = []
    for eqn in reversed(jaxpr.eqns):
        outs = [v in live for v in eqn.outvars]
        if not any(outs):
            continue
        called = inner_jaxpr(eqn)
        used = [True] * len(eqn.invars) if called is None else live_equations(called.jaxpr, outs)[1]
        live |= {v for v, is_used in zip(eqn.invars, used, strict=True) if is_used and not is_literal(v)}
        needed.append((eqn, outs))
    return needed[::-1], [v in live for v in jaxpr.invars]


def evaluate(jaxpr: Any, wanted: Sequence[bool], inputs: Sequence[Any]) -> list[Any]:
    """The wanted outputs of a closed jaxpr, with None in place of the others.

    Inputs that the wanted outputs do not read may be None. This function can itself be traced.
    """
    values = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    values |= dict(zip(jaxpr.jaxpr.invars, inputs, strict=True))
    read = lambda atom: atom.val if is_literal(atom) else values.get(atom)
    for eqn, outs in live_equations(jaxpr.jaxpr, wanted)[0]:
        arguments, called = [read(v) for v in eqn.invars], inner_jaxpr(eqn)
        if called is not None:
            results = evaluate(called, outs, arguments)
        else:
            results = eqn.primitive.bind(*arguments, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(v) if want else None for v, want in zip(jaxpr.jaxpr.outvars, wanted, strict=True)]


_LOCATIONS = "jax_traceback_in_locations_limit"

Arrays = Mapping[str, Any]
"""Arrays by name: weights and the normalizer, or a memory."""

PolicyFunction = Callable[[dict[str, Array], Observation, dict[str, Array]], tuple[Array, dict[str, Array]]]
"""`(arrays, obs, memory) -> (action, memory)` for one env."""

StartFunction = Callable[[dict[str, Array]], dict[str, Array]]
"""`arrays -> memory` at the start of an episode. The initial memory may be learned."""


@dataclasses.dataclass(frozen=True)
class DeterministicPolicy:
    """The part of an actor-critic that the deterministic policy depends on.

    The critic, its observations and its memory are left out.

    Attributes:
        function: `(arrays, obs, memory) -> (action, memory)` for one env; takes exactly the inputs listed below.
        start: `arrays -> memory` at the start of an episode, by the same names.
        memory: Shapes and types of the memory, by name; empty for a feed-forward policy.
        is_bound: Whether the arrays are constants of the function; see `bound`.
    """

    function: PolicyFunction
    start: StartFunction
    arrays: dict[str, jax.ShapeDtypeStruct]
    obs: dict[str, jax.ShapeDtypeStruct]
    memory: dict[str, jax.ShapeDtypeStruct]
    is_bound: bool = False

    def input_names(self) -> tuple[dict[str, str], dict[str, str]]:
        """Input names in exported files: of observations by group, and of memory arrays by their names here."""
        observations = {group: "obs" if group == "actor" else f"obs_{group}" for group in self.obs}
        return observations, {name: f"memory_{i}" for i, name in enumerate(self.memory)}

    def bound(self, arrays: Arrays) -> "DeterministicPolicy":
        """The policy with its arrays as constants, and its inputs named as in exported files."""
        known = {name: jnp.asarray(arrays[name]) for name in self.arrays}
        obs_names, memory_names = self.input_names()

        def function(_: dict[str, Array], obs: Observation, memory: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
            before = {key: memory[name] for key, name in memory_names.items()}
            action, after = self.function(known, {key: obs[name] for key, name in obs_names.items()}, before)
            return action, {name: after[key] for key, name in memory_names.items()}

        def start(_: dict[str, Array]) -> dict[str, Array]:
            memory = self.start(known)
            return {name: memory[key] for key, name in memory_names.items()}

        obs = {name: self.obs[key] for key, name in obs_names.items()}
        memory = {name: self.memory[key] for key, name in memory_names.items()}
        return DeterministicPolicy(function, start, {}, obs, memory, is_bound=True)

    def batched(self, num_rows: Any) -> tuple[Callable[..., Any], tuple[dict[str, jax.ShapeDtypeStruct], ...]]:
        """The function over a leading axis of `num_rows` observations and memories, and the shapes of its arguments.

        The function of a bound policy takes only observations and memories.
        """
        rows = lambda tree: {k: jax.ShapeDtypeStruct((num_rows, *x.shape), x.dtype) for k, x in tree.items()}
        mapped, shapes = jax.vmap(self.function, in_axes=(None, 0, 0)), (rows(self.obs), rows(self.memory))
        if self.is_bound:
            return lambda obs, memory: mapped({}, obs, memory), shapes
        return mapped, (self.arrays, *shapes)


def deterministic_policy(model: AbstractActorCritic, obs_sizes: Mapping[str, int]) -> DeterministicPolicy:
    """The deterministic policy of a model on raw observations."""
    jaxpr, start_jaxpr, inputs = _traced(model, obs_sizes)
    # In the order in which JAX flattens dicts: by sorted keys.
    places = [(i, name) for i, part in enumerate(inputs) for name in sorted(part)]
    array_names, memory_names = sorted(inputs[0]), sorted(inputs[2])
    outs = [None, *((2, name) for name in memory_names)]
    # Always keep the actor's observations: they determine the number of rows.
    read = _places_read(jaxpr.jaxpr, places, outs) | {(1, "actor")}
    is_kept = [(2, name) in read for name in memory_names]
    used = live_equations(start_jaxpr.jaxpr, is_kept)[1]
    read |= {(0, name) for name, is_used in zip(array_names, used, strict=True) if is_used}
    keep = lambda i: {name: x for name, x in inputs[i].items() if (i, name) in read}

    def function(
        arrays: dict[str, Array], obs: Observation, memory: dict[str, Array]
    ) -> tuple[Array, dict[str, Array]]:
        given = (arrays, obs, memory)
        wanted = [place is None or place in read for place in outs]
        action, *after = evaluate(jaxpr, wanted, [given[i].get(name) for i, name in places])
        return action, dict(itertools.compress(zip(memory_names, after, strict=True), is_kept))

    def start(arrays: dict[str, Array]) -> dict[str, Array]:
        memory = evaluate(start_jaxpr, is_kept, [arrays.get(name) for name in array_names])
        return dict(itertools.compress(zip(memory_names, memory, strict=True), is_kept))

    return DeterministicPolicy(function, start, arrays=keep(0), obs=keep(1), memory=keep(2))


def _traced(
    model: AbstractActorCritic, obs_sizes: Mapping[str, int]
) -> tuple[Any, Any, tuple[dict[str, jax.ShapeDtypeStruct], ...]]:
    """Jaxprs of a whole model's `PolicyFunction` and `StartFunction`, and the shapes of arrays, obs and memory."""
    arrays, static = _split(model)
    carry = eqx.filter_eval_shape(lambda m: m.initial_carry(), model)
    names, carry_names = list(named_leaves(arrays)), list(named_leaves(carry, "carry"))

    def bound(given: dict[str, Array]) -> AbstractActorCritic:
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), [given[name] for name in names]), static)

    def step(given: dict[str, Array], obs: Observation, memory: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        before = jax.tree.unflatten(jax.tree.structure(carry), [memory[name] for name in carry_names])
        action, after = act(bound(given), obs, before)
        return action, named_leaves(after, "carry")

    def start(given: dict[str, Array]) -> dict[str, Array]:
        return named_leaves(bound(given).initial_carry(), "carry")

    shape = lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
    inputs = (
        {name: shape(x) for name, x in named_leaves(arrays).items()},
        {group: jax.ShapeDtypeStruct((size,), jnp.float32) for group, size in obs_sizes.items()},
        {name: shape(x) for name, x in named_leaves(carry, "carry").items()},
    )
    return jax.make_jaxpr(step)(*inputs), jax.make_jaxpr(start)(inputs[0]), inputs


def _places_read(jaxpr: Any, places: Sequence[Any], outs: Sequence[Any]) -> set[Any]:
    """The inputs that the action depends on, directly or through the memory.

    Memory outputs have the same names as memory inputs.
    """
    needed: set[Any] = {None}
    while True:
        used = live_equations(jaxpr, [place in needed for place in outs])[1]
        found = needed | {place for place, is_used in zip(places, used, strict=True) if is_used}
        if found == needed:
            return needed - {None}
        needed = found


def policy_arrays(model: AbstractActorCritic) -> dict[str, Array]:
    """All arrays of a model, by the names that its programs use.

    A program reads only the arrays that the policy depends on: `PolicyProgram.arrays`.
    """
    return named_leaves(_split(model)[0])


def policy_programs(model: NormalizedActorCritic, obs_sizes: Mapping[str, int]) -> tuple[bytes, bytes]:
    """The programs of a model's deterministic policy, for all platforms: a step, and the memory at an episode's start.

    The model takes raw observations; its arrays may be shapes. The step takes any number of rows. If the model cannot
    be traced with an unknown number of rows, the step takes one row at a time; `load_program` gives both the same
    interface.

    Raises:
        ConfigError: The model cannot be exported, for example because it calls back into Python, or `load_program`
            would refuse its programs.
    """
    policy = deterministic_policy(model, obs_sizes)
    programs = export_policy(policy), _exported(policy.start, policy.arrays)
    try:
        read_programs(*programs)
    except RefusedError as error:
        raise ConfigError(
            f"The program of the policy would not be loaded: {error}. Write the policy without it (jnp.linalg and "
            "approx_max_k call libraries), or load it by its task: ksim.load_policy(path, task=...)."
        ) from error
    return programs


def export_policy(policy: DeterministicPolicy) -> bytes:
    """A policy serialized by `jax.export` for all platforms, and for any number of rows if possible, else for one.

    Raises:
        ConfigError: The policy cannot be exported.
    """
    (any_number,) = jax.export.symbolic_shape("b")
    failures = []
    for num_rows in (any_number, 1):
        function, shapes = policy.batched(num_rows)
        try:
            return _exported(function, *shapes)
        except Exception as error:  # noqa: BLE001 - whatever a user's model raises while it is traced and lowered
            failures.append(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
    raise ConfigError(
        f"The policy cannot be exported by jax.export ({failures[-1]}). Write it in JAX alone: without callbacks, and "
        "with operations that exist on every platform."
    )


def _exported(function: Callable[..., Any], *shapes: Any) -> bytes:
    # Without source locations, which would contain paths of the machine that exports.
    limit = jax.config.values[_LOCATIONS]
    jax.config.update(_LOCATIONS, 0)
    try:
        return bytes(jax.export.export(jax.jit(function), platforms=PLATFORMS)(*shapes).serialize())
    finally:
        jax.config.update(_LOCATIONS, limit)


@dataclasses.dataclass(frozen=True)
class PolicyProgram:
    """A callable deterministic policy for any number of rows, from its programs or from its model.

    Attributes:
        memory_names: Names of its memory arrays; empty for a feed-forward policy.
        step: `(arrays, obs, memory) -> (action, memory)` over rows.
        start: `arrays -> memory` at the start of an episode, for one row.
    """

    arrays: dict[str, jax.ShapeDtypeStruct]
    obs_sizes: dict[str, int]
    memory_names: tuple[str, ...]
    action_size: int
    takes_one_row: bool
    step: Callable[..., Any]
    start: Callable[..., Any]

    def initial_memory(self, arrays: Arrays, num_rows: int) -> dict[str, Array]:
        """The memory at the start of an episode, one row per robot."""
        start = self.start({name: arrays[name] for name in self.arrays})
        return {name: jnp.broadcast_to(x, (num_rows, *x.shape)) for name, x in start.items()}

    def __call__(
        self, arrays: Arrays, obs: Mapping[str, Any], memory: Arrays | None = None
    ) -> tuple[Float[Array, "b a"], dict[str, Array]]:
        """The actions of the deterministic policy, and the next memory, with one row per robot.

        `arrays` are from `policy_arrays`; those that the programs do not read may be missing. Observation groups that
        the policy does not read are ignored. The memory is None at the start of an episode.
        """
        obs = {group: obs[group] for group in self.obs_sizes}
        num_rows = len(next(iter(obs.values())))
        memory = self.initial_memory(arrays, num_rows) if memory is None else memory
        rows = obs, {name: memory[name] for name in self.memory_names}
        arrays = {name: arrays[name] for name in self.arrays}
        if not self.takes_one_row:
            return self.step(arrays, *rows)
        each = [self.step(arrays, *jax.tree.map(lambda x, i=i: x[i : i + 1], rows)) for i in range(num_rows)]
        return jax.tree.map(lambda *x: np.concatenate(x), *each)


def load_program(step: bytes, start: bytes) -> PolicyProgram:
    """The inverse of `policy_programs`. Needs no code of the task.

    Raises:
        RefusedError: The programs are damaged, come from another version of JAX, or could do more than compute.
    """
    step_program, start_program = read_programs(step, start)
    (arrays, obs, memory), _ = jax.tree.unflatten(step_program.in_tree, step_program.in_avals)
    action = step_program.out_avals[0]
    return PolicyProgram(
        arrays={name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items()},
        obs_sizes={group: x.shape[1] for group, x in obs.items()},
        memory_names=tuple(memory),
        action_size=action.shape[1],
        takes_one_row=action.shape[0] == 1,
        step=bounded(step_program),
        start=bounded(start_program),
    )


def compiled_program(policy: DeterministicPolicy) -> PolicyProgram:
    """A policy compiled from the code of its model, without serialized programs."""
    step, shapes = policy.batched(1)
    return PolicyProgram(
        arrays=policy.arrays,
        obs_sizes={group: x.shape[0] for group, x in policy.obs.items()},
        memory_names=tuple(policy.memory),
        action_size=jax.eval_shape(step, *shapes)[0].shape[1],
        takes_one_row=False,
        step=jax.jit(step),
        start=jax.jit(policy.start),
    )


def _split(model: AbstractActorCritic) -> tuple[Any, Any]:
    """The arrays of a model, and the rest of its pytree."""
    is_array = lambda x: (
        isinstance(x, jax.ShapeDtypeStruct) or (eqx.is_array(x) and not jnp.issubdtype(x.dtype, jax.dtypes.prng_key))
    )
    return eqx.partition(model, is_array)
