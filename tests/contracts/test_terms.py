"""The contract of every term: each is run in a real environment around it."""

import dataclasses
import functools
import importlib
import inspect
import operator
import pkgutil
from typing import Any, NamedTuple

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim.mdp
from ksim.mdp import actions, commands, env_curriculum, events, observations, randomizers, resets, rewards, terminations
from ksim.mdp.curriculum import LinearCurriculum
from ksim.mdp.term import Context, Term, snake_case
from ksim.physics import FlatTile, Terrain, compile_model
from ksim.rollout.mdp_environment import Mdp, MdpEnvironment
from ksim.types import PhysicsState
from tests.support.arguments import ARGUMENTS, MOTIONS
from tests.support.engines import WARP
from tests.support.programs import free_programs
from tests.support.robots import ACTUATORS, biped_spec
from tests.support.scale import scale

KINDS = {
    "observation": observations,
    "reward": rewards,
    "command": commands,
    "termination": terminations,
    "reset": resets,
    "event": events,
    "randomizer": randomizers,
    "action_filter": actions,
    "curriculum": env_curriculum,
}

NUM_ENVS, NUM_STEPS = 3, 3
KEYS = jax.random.split(jax.random.key(0), NUM_ENVS)
ACTIONS_TE2 = np.random.default_rng(0).uniform(-1, 1, (NUM_STEPS, NUM_ENVS, 2)).astype(np.float32)


def concrete_terms(module) -> list[type[Term]]:
    """Public term classes of a module that can be made."""
    classes = [x for x in vars(module).values() if inspect.isclass(x) and issubclass(x, Term)]
    return [cls for cls in dict.fromkeys(classes) if not inspect.isabstract(cls) and cls.__name__[0] != "_"]


KIND_OF = {cls: kind for kind, module in KINDS.items() for cls in concrete_terms(module)}


STEADY = np.array([0.5, 0.1, 0.2], np.float32)


class SteadyCommand(commands.AbstractCommand):
    """The cheapest command to compile."""

    def __call__(self, context):
        return jnp.asarray(STEADY)


def make_term(cls: type[Term]) -> Term:
    """The term with its arguments of this file."""
    given = ARGUMENTS.get(cls, {})
    fields = dataclasses.fields(cls)
    needed = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in needed if name not in given]
    if missing:
        pytest.fail(f"{cls.__name__} needs {', '.join(missing)}. Add them to ARGUMENTS in tests/support/arguments.py.")
    return cls(**given)


ON_TERRAIN = (env_curriculum.TerrainCurriculum, observations.HeightScan, resets.OnTerrain, terminations.OffTerrain)


def needs_terrain(terms: dict[str, dict[str, Any]]) -> bool:
    return any(isinstance(term, ON_TERRAIN) for named in terms.values() for term in named.values())


def make_environment(engine: str, terms: dict[str, dict[str, Any]]) -> MdpEnvironment:
    """The biped under terms by kind and name, with the last action as an observation where there is no other."""
    given = {f"{kind}s": terms.get(kind, {}) for kind in KINDS if kind != "curriculum"}
    given["env_curricula"] = terms.get("curriculum", {})
    given["observations"] = {"actor": given["observations"] or {"last_action": observations.LastAction()}}
    given["commands"] = {"velocity": SteadyCommand()} | given["commands"]
    if any(getattr(term, "command", None) == "motion" for named in terms.values() for term in named.values()):
        given["commands"] |= {"motion": commands.MotionCommand(MOTIONS)}
    curricula = {"hardness": LinearCurriculum(end_iteration=2)}
    mdp = Mdp(**given, actuators=ACTUATORS, curricula=curricula)
    edits = [ACTUATORS.edit_spec, *(term.edit_spec for term in mdp.terms().values())]
    spec = biped_spec()
    spec.joint("left_hip").stiffness = [1.0, 0, 0]  # for the term that makes it another
    spec.add_key(name="home", qpos=[0, 0, 0.5, 1, 0, 0, 0, 0, 0])
    spec.add_key(name="crouched", qpos=[0, 0, 0.48, 1, 0, 0, 0, 0.3, -0.3])
    # Level, so that only the terms that ask for it see that it is a heightfield.
    terrain = Terrain(tiles=(FlatTile(),), num_levels=2, tile_m=4.0, border_m=1.0) if needs_terrain(terms) else None
    model = compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=edits, terrain=terrain)
    return MdpEnvironment(mdp, mdp.make_engine(engine, model))


class Subject(NamedTuple):
    """One term in its environment, under native MuJoCo, with its traced functions.

    Attributes:
        kind: Of `KINDS`.
        env: The environment.
        reset: Key -> the environment's state.
        step: State, action -> the environment's state, and the term's own value in it.
    """

    kind: str
    env: MdpEnvironment
    reset: Any
    step: Any


@functools.cache
def subject_of(cls: type[Term]) -> Subject:
    kind = KIND_OF[cls]
    term = make_term(cls)
    env = make_environment("mujoco", {kind: {"it": term}})
    path = "observation/actor/it" if kind == "observation" else f"{kind}/it"

    def step(before, action):
        state = env.step(before, action)
        inner = state.inner
        context = Context(
            model=env.engine.model,
            physics=inner.physics,
            action=action,
            previous_action=before.inner.action,
            control=env.mdp.actuators(action, env.engine.model),
            commands=before.inner.commands,
            episode_step=inner.episode_step,
            terminated=state.terminated,
            overrides=inner.overrides,
            key=inner.key,
            levels=inner.levels,
            memory=inner.memories.get(path),
            episode_key=inner.key,
            command_terms=env.mdp.commands,
        )
        return state, term(context)

    # chex tells functions apart by their names; a reward may be called as an observation is.
    step.__name__ = f"step_with_{kind}_{cls.__name__}"
    counted_step = chex.assert_max_traces(step, n=1)
    return Subject(kind, env, jax.jit(env.reset), jax.jit(counted_step))


def run_env(subject: Subject, env: int):
    """States of an episode's start and of its steps, and the term's values after the steps."""
    states, values = [subject.reset(KEYS[env])], []
    for action in ACTIONS_TE2[:, env]:
        state, value = subject.step(states[-1], action)
        states.append(state)
        values.append(value)
    return states, values


@functools.cache
def first_env_of(cls: type[Term]):
    return run_env(subject_of(cls), env=0)


def shapes_and_dtypes(tree):
    return jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), tree)


def assert_same(first, second, **tolerance):
    """Compares two pytrees, keys as well."""
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(plain(x), plain(y), **tolerance)


@pytest.fixture(scope="module", params=KIND_OF, ids=lambda cls: f"{KIND_OF[cls]}-{cls.__name__}")
def cls(request):
    """Each term in turn, with all tests of it one after the other, so that its programs can be dropped then."""
    yield request.param
    subject_of.cache_clear()
    first_env_of.cache_clear()
    free_programs()


def test_value_is_finite(cls):
    _, values = first_env_of(cls)
    leaves = jax.tree.leaves(values)
    assert leaves
    for leaf in leaves:
        assert np.isfinite(leaf).all()


def test_value_has_the_shape_and_dtype_of_its_kind(cls):
    states, values = first_env_of(cls)
    state, value = states[-1], values[-1]
    match KIND_OF[cls]:
        case "observation":
            assert value.dtype == jnp.float32
            assert state.obs["actor"].shape == (value.size,)
        case "reward" | "curriculum":
            assert (value.shape, value.dtype) == ((), jnp.float32)
        case "command":
            assert (value.ndim, value.dtype) == (1, jnp.float32)
        case "termination":
            assert (value.shape, value.dtype) == ((), jnp.bool_)
        case "reset" | "event":
            assert isinstance(value, PhysicsState)
            assert shapes_and_dtypes(value) == shapes_and_dtypes(state.inner.physics)
        case "action_filter":
            assert (value.shape[-1], value.dtype) == (2, jnp.float32)
        case "randomizer":
            mj_model = subject_of(cls).env.engine.model.mj_model
            fields = {name: operator.attrgetter(name)(mj_model) for name in value}
            assert shapes_and_dtypes(value) == {name: (np.shape(x), jnp.float32) for name, x in fields.items()}


def test_episode_is_the_same_for_the_same_key(cls):
    assert_same(first_env_of(cls), run_env(subject_of(cls), env=0), rtol=0)


def test_step_is_traced_once(cls):
    # From the reset's state, from a step's state, and with other keys and actions; a second trace raises in chex.
    for env in range(NUM_ENVS):
        run_env(subject_of(cls), env)


def test_memory_keeps_its_structure_from_init_to_update(cls):
    states, _ = first_env_of(cls)
    for state in states[1:]:
        chex.assert_trees_all_equal_structs(states[0].inner.memories, state.inner.memories)
        chex.assert_trees_all_equal_shapes_and_dtypes(states[0].inner.memories, state.inner.memories)


def make_episode(engine, terms):
    """The program of an episode: from a key and actions, the states of a reset and of each step."""
    env = make_environment(engine, terms())

    def episode(key, actions_t2):
        step = lambda state, action_2: (env.step(state, action_2),) * 2
        start = env.reset(key)
        return start, jax.lax.scan(step, start, actions_t2)[1]

    return episode


@functools.cache
def states_under(engine, terms):
    """States of a reset and of a few steps of the first env."""
    return jax.jit(make_episode(engine, terms))(KEYS[0], ACTIONS_TE2[:, 0])


def seen_under(engine, terms):
    """Observations and metrics of a reset and of a few steps, in which nothing is dropped."""
    seen = []
    for state in states_under(engine, terms):
        dropped = [name for name in state.metrics if name.startswith("dropped/")]
        assert not any(state.metrics[name].any() for name in dropped)
        seen.append((state.obs, {name: x for name, x in state.metrics.items() if name not in dropped}))
    return seen


def all_terms_on_a_plane():
    terms = {kind: {} for kind in KINDS}
    for cls, kind in KIND_OF.items():
        if cls not in ON_TERRAIN:
            terms[kind][snake_case(cls.__name__)] = make_term(cls)
    terms["command"]["velocity"] = make_term(commands.VelocityCommand)
    # The one that acts per substep comes last.
    terms["action_filter"]["action_latency"] = terms["action_filter"].pop("action_latency")
    return terms


def terms_of_a_terrain():
    return {
        "observation": {"scan": observations.HeightScan(), "height": observations.BaseHeight()},
        "reset": {"on_terrain": resets.OnTerrain()},
        "termination": {"off_terrain": terminations.OffTerrain()},
        "curriculum": {"row": make_term(env_curriculum.TerrainCurriculum)},
    }


def only(cls):
    """A function that makes a term alone."""
    return lambda: {KIND_OF[cls]: {"it": make_term(cls)}}


# Each reset alone as well: together, what one sets another sets again.
@pytest.mark.parametrize(
    "terms",
    [
        *scale([], [pytest.param(all_terms_on_a_plane, marks=pytest.mark.long)]),
        terms_of_a_terrain,
        *(pytest.param(only(cls), id=cls.__name__) for cls, kind in KIND_OF.items() if kind == "reset"),
    ],
)
def test_episode_is_the_same_for_one_env_and_among_others(terms):
    among_others = jax.jit(jax.vmap(make_episode("mujoco", terms), in_axes=(0, 1)))(KEYS, ACTIONS_TE2)
    assert_same(states_under("mujoco", terms), jax.tree.map(lambda x_e: x_e[0], among_others), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["mjx", *scale([], [WARP])])
def test_all_terms_together_agree_with_native_mujoco(engine):
    traced, native = (seen_under(name, all_terms_on_a_plane) for name in (engine, "mujoco"))
    chex.assert_trees_all_equal_shapes_and_dtypes(traced, native)
    assert_same(traced, native, rtol=1e-3, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("engine", scale([WARP], ["mjx", WARP]))
def test_terms_of_a_terrain_agree_with_native_mujoco(engine):
    # Apart from the others: on a heightfield the engines find other contacts, so that forces differ, and motions a bit.
    traced, native = (seen_under(name, terms_of_a_terrain) for name in (engine, "mujoco"))
    assert_same(traced, native, rtol=0, atol=2e-3)


def test_every_term_that_is_defined_is_exported():
    names = [info.name for info in pkgutil.walk_packages(ksim.mdp.__path__, "ksim.mdp.")]
    defined = {cls for name in names for cls in concrete_terms(importlib.import_module(name))}
    assert defined == set(KIND_OF)


def test_term_that_needs_arguments_and_has_none_here_fails_with_a_message():
    class Needy(rewards.AbstractReward):
        feet: tuple[str, ...] = eqx.field()
        scale: float = 1.0

        def __call__(self, context):
            return jnp.zeros(())

    with pytest.raises(pytest.fail.Exception, match=r"Needy needs feet\. Add them to ARGUMENTS"):
        make_term(Needy)
