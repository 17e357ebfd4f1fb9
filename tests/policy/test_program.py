import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.nn import AbstractActorCritic, ActorCriticOutput, Gaussian, GruActorCritic, MlpActorCritic
from ksim.nn.actor_critic import initial_carries
from ksim.nn.normalizer import NormalizedActorCritic, ObservationNormalizer
from ksim.policy.program import load_program, policy_arrays, policy_programs
from tests.support.still import Memoryless

SIZES = {"actor": 5, "critic": 7}
NUM_ROWS = 4


def normalized(network, sizes=SIZES):
    seen = {group: 3 + 2 * jax.random.normal(jax.random.key(1), (6, 6, size)) for group, size in sizes.items()}
    return NormalizedActorCritic(network, ObservationNormalizer.init(sizes).update(seen, None))


def observations(sizes=SIZES, *, key=2):
    return {group: 3 + jax.random.normal(jax.random.key(key), (NUM_ROWS, size)) for group, size in sizes.items()}


def modes(model, steps):
    """Actions of the model itself, step by step."""
    carry, actions = initial_carries(model, NUM_ROWS), []
    for obs in steps:
        output, carry = jax.vmap(model)(obs, carry)
        actions.append(output.distribution.mode())
    return actions


def assert_acts_alike(program, model, num_steps, *, groups=("actor", "critic")):
    """The program, shown some groups of observations, acts as the model."""
    steps, memory = [observations(key=i) for i in range(num_steps)], None
    for obs, expected in zip(steps, modes(model, steps), strict=True):
        action, memory = program(policy_arrays(model), {group: obs[group] for group in groups}, memory)
        np.testing.assert_allclose(action, expected, atol=1e-6)


class ReadsCritic(Memoryless):
    """A policy that is shown what others show to the critic alone, and has a buffer of whole numbers."""

    buffer: jax.Array

    def __call__(self, obs, carry):
        mean = obs["actor"][self.buffer] + jnp.sum(obs["critic"])
        return ActorCriticOutput(Gaussian(mean, jnp.ones(2)), jnp.zeros(())), carry


class KnowsNoBatch(ReadsCritic):
    """A policy that cannot be traced with an unknown number of rows."""

    def __call__(self, obs, carry):
        @jax.custom_batching.custom_vmap
        def flip(x):
            return -x

        @flip.def_vmap
        def rows(size, batched, x):
            return jnp.stack([-x[i] for i in range(int(size))]), True

        output, carry = super().__call__(obs, carry)
        return eqx.tree_at(lambda o: o.distribution.mean, output, flip(output.distribution.mean)), carry


class CallsPython(ReadsCritic):
    """A policy that leaves JAX."""

    def __call__(self, obs, carry):
        output, carry = super().__call__(obs, carry)
        mean = output.distribution.mean
        called = jax.pure_callback(np.asarray, mean, mean, vmap_method="expand_dims")
        return eqx.tree_at(lambda o: o.distribution.mean, output, called), carry


@pytest.mark.parametrize("std", ["state_independent", "learned"])
@pytest.mark.parametrize("network", [MlpActorCritic, GruActorCritic])
def test_a_program_acts_as_its_model_and_reads_the_actors_part_alone(network, std):
    model = normalized(network(SIZES, 3, std=std, key=jax.random.key(0)))
    program = load_program(*policy_programs(model, SIZES))
    assert_acts_alike(program, model, 3, groups=["actor"])
    assert program.obs_sizes == {"actor": 5}
    assert program.action_size == 3
    assert not any("critic" in name for name in program.arrays)
    assert program.memory_names == (("carry[0]",) if network is GruActorCritic else ())


def test_one_program_serves_all_weights_and_any_number_of_rows():
    models = [normalized(MlpActorCritic(SIZES, 2, key=jax.random.key(i))) for i in range(2)]
    shapes = eqx.filter_eval_shape(lambda: models[0])
    data = policy_programs(shapes, SIZES)
    assert sum(map(len, data)) < 30_000
    program, obs = load_program(*data), observations()
    for model in models:
        (expected,) = modes(model, [obs])
        for rows in (1, 3):
            action, _ = program(policy_arrays(model), jax.tree.map(lambda x, n=rows: x[:n], obs))
            np.testing.assert_allclose(action, expected[:rows], atol=1e-6)


@pytest.mark.parametrize("network", [ReadsCritic, KnowsNoBatch])
def test_a_policy_of_the_users_own_runs_on_all_that_it_reads(network):
    model = normalized(network(jnp.array([3, 0])))
    program, obs = load_program(*policy_programs(model, SIZES)), observations()
    action, _ = program(policy_arrays(model), obs)
    np.testing.assert_allclose(action, modes(model, [obs])[0], rtol=1e-6)
    assert program.obs_sizes == SIZES
    assert program.takes_one_row == (network is KnowsNoBatch)


class Blind(ReadsCritic):
    """A policy that looks at nothing, and remembers how often it was asked."""

    def initial_carry(self):
        return jnp.zeros(2)

    def __call__(self, obs, carry):
        return ActorCriticOutput(Gaussian(carry, jnp.ones(2)), jnp.sum(obs["actor"])), carry + 1


def test_a_policy_that_looks_at_nothing_acts_for_as_many_robots_as_it_is_shown():
    model = normalized(Blind(jnp.array([3, 0])))
    program, obs = load_program(*policy_programs(model, SIZES)), observations()
    action, memory = program(policy_arrays(model), obs)
    np.testing.assert_array_equal(action, np.zeros((NUM_ROWS, 2)))
    action, _ = program(policy_arrays(model), obs, memory)
    np.testing.assert_array_equal(action, np.ones((NUM_ROWS, 2)))


class Remembers(AbstractActorCritic):
    """A policy that learns the memory it starts with, of a size that is a plain field."""

    start: jax.Array
    size: int

    def initial_carry(self):
        return self.start, jnp.ones(self.size), jnp.zeros((), jnp.int32)

    def __call__(self, obs, carry):
        start, ones, count = carry
        mean = start + ones * count + obs["actor"][: self.size]
        return ActorCriticOutput(Gaussian(mean, jnp.ones(self.size)), jnp.zeros(())), (start, ones, count + 1)


def test_an_episode_starts_with_the_memory_that_the_arrays_say():
    shapes = eqx.filter_eval_shape(lambda: normalized(Remembers(jnp.zeros(2), 2)))
    program = load_program(*policy_programs(shapes, SIZES))
    for start in (jnp.array([1.0, 2.0]), jnp.array([-3.0, 0.5])):
        assert_acts_alike(program, normalized(Remembers(start, 2)), 3)


def test_a_policy_that_calls_python_is_an_error():
    with pytest.raises(ConfigError, match=r"cannot be exported by jax.export .*Write it in JAX alone"):
        policy_programs(normalized(CallsPython(jnp.array([3, 0]))), SIZES)


class CriticCallsPython(AbstractActorCritic):
    """A policy beside a critic that leaves JAX."""

    def initial_carry(self):
        return jnp.zeros(2), jnp.zeros(())

    def __call__(self, obs, carry):
        value = jax.pure_callback(np.asarray, carry[1], carry[1], vmap_method="expand_dims")
        remembered = carry[0] + obs["actor"][:2]
        return ActorCriticOutput(Gaussian(remembered, jnp.ones(2)), value), (remembered, value + 1)


def test_what_the_critic_alone_needs_is_no_part_of_the_program():
    model = normalized(CriticCallsPython())
    program = load_program(*policy_programs(model, SIZES))
    assert program.memory_names == ("carry[0]",)
    assert_acts_alike(program, model, 2, groups=["actor"])


def test_a_program_runs_where_there_is_no_code_of_the_model(tmp_path):
    model = normalized(GruActorCritic(SIZES, 2, key=jax.random.key(0)))
    for name, data in zip(("step", "start"), policy_programs(model, SIZES), strict=True):
        (tmp_path / name).write_bytes(data)
    np.savez(tmp_path / "arrays.npz", **policy_arrays(model))
    code = """
import sys, jax, jax.export, numpy as np
step, start = (jax.export.deserialize(bytearray(open(name, "rb").read())) for name in ("step", "start"))
(arrays, obs, memory), _ = jax.tree.unflatten(step.in_tree, step.in_avals)
given = np.load("arrays.npz")
given = {k: given[k] for k in arrays}
memory = {k: np.tile(x, (2, 1)) for k, x in start.call(given).items()}
action, memory = step.call(given, {"actor": np.ones((2, 5), np.float32)}, memory)
assert not {"ksim", "equinox"} & set(sys.modules)
np.save("action.npy", action)
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    (expected,) = modes(model, [{"actor": jnp.ones((NUM_ROWS, 5)), "critic": jnp.zeros((NUM_ROWS, 7))}])
    np.testing.assert_allclose(np.load(tmp_path / "action.npy"), expected[:2], atol=1e-6)
