import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ksim import ConfigError
from ksim.nn import Gaussian, GruActorCritic, MlpActorCritic, NormalizedActorCritic, ObservationNormalizer
from ksim.nn.actor_critic import evaluate_sequences, initial_carries, reset_carry
from ksim.nn.networks import elu

SIZES = {"actor": 4, "critic": 6}
E, T = 3, 5


def make_model(kind, std="state_independent", *, width=8):
    options = {"actor_sizes": (width,), "critic_sizes": (width,), "std": std, "key": jax.random.key(0)}
    if kind == "gru":
        return GruActorCritic(SIZES, 2, memory_size=7, **options)
    return MlpActorCritic(SIZES, 2, **options)


@pytest.mark.parametrize("kind", ["mlp", "gru"])
@pytest.mark.parametrize("std", ["state_independent", "learned"])
def test_outputs_along_a_sequence_equal_those_of_acting_step_by_step(kind, std):
    model = make_model(kind, std)
    obs_et = {g: jax.random.normal(jax.random.key(n), (E, T, n)) for g, n in SIZES.items()}
    done_et = jax.random.bernoulli(jax.random.key(9), 0.4, (E, T))
    carry_e = jax.tree.map(lambda x: jnp.broadcast_to(x + 0.3, (E, *x.shape)), model.initial_carry())
    output_et = evaluate_sequences(model, obs_et, carry_e, done_et)
    for t in range(T):
        output_e, carry_e = jax.vmap(model)({g: x[:, t] for g, x in obs_et.items()}, carry_e)
        carry_e = reset_carry(model, done_et[:, t], carry_e)
        np.testing.assert_allclose(output_et.value[:, t], output_e.value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(output_et.distribution.mean[:, t], output_e.distribution.mean, atol=1e-6)
        np.testing.assert_allclose(output_et.distribution.std[:, t], output_e.distribution.std, rtol=1e-5)


def loss_gradient(model, num_envs, num_steps, *, remat):
    """The gradient of some loss along sequences, compiled, and its arguments."""
    params, static = eqx.partition(model, eqx.is_inexact_array)
    obs_et = {g: jax.random.normal(jax.random.key(n), (num_envs, num_steps, n)) for g, n in SIZES.items()}
    done_et = jax.random.bernoulli(jax.random.key(9), 0.2, (num_envs, num_steps))

    def loss(params):
        network = eqx.combine(params, static)
        output_et = evaluate_sequences(network, obs_et, initial_carries(network, num_envs), done_et, remat=remat)
        return jnp.mean(output_et.value**2) + jnp.mean(
            output_et.distribution.log_prob(jnp.zeros((num_envs, num_steps, 2)))
        )

    return jax.jit(jax.grad(loss)).lower(params).compile(), params


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_remat_gives_the_same_gradient_for_less_memory(kind):
    # So wide that activations, and not observations, take most of the memory.
    model = make_model(kind, width=16)
    (plain, params), (again, _) = (loss_gradient(model, 32, 40, remat=remat) for remat in (False, True))
    chex.assert_trees_all_close(plain(params), again(params), rtol=1e-4, atol=1e-6)
    temporary = [program.memory_analysis().temp_size_in_bytes for program in (plain, again)]
    assert temporary[1] < temporary[0] / 3


ELU_POINTS = np.array([-np.inf, -100, -20, -1, -1e-3, -1e-6, -1e-30, 0, 1e-30, 1e-6, 1, 100, np.inf], np.float32)


def test_elu_is_within_rounding_of_the_exact_one():
    exact = np.where(ELU_POINTS > 0, ELU_POINTS, np.expm1(ELU_POINTS.astype(np.float64)))
    np.testing.assert_allclose(elu(jnp.asarray(ELU_POINTS)), exact, rtol=1e-6, atol=1e-7)
    assert jnp.isnan(elu(jnp.float32(jnp.nan)))


@pytest.mark.parametrize("mode", [jax.grad, jax.jacfwd])
def test_slope_of_elu_is_within_rounding_of_the_exact_one(mode):
    exact = np.exp(np.minimum(ELU_POINTS.astype(np.float64), 0))
    np.testing.assert_allclose(jax.vmap(mode(elu))(jnp.asarray(ELU_POINTS)), exact, rtol=1e-6, atol=1e-7)
    assert jnp.isnan(mode(elu)(jnp.float32(jnp.nan)))


@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_critic_sees_its_own_group_and_the_actor_does_not(kind):
    model = make_model(kind)
    obs = {g: jnp.ones(n) for g, n in SIZES.items()}
    carry = model.initial_carry()
    before, _ = model(obs, carry)
    after, _ = model(obs | {"critic": -obs["critic"]}, carry)
    assert before.value != after.value
    np.testing.assert_array_equal(before.distribution.mean, after.distribution.mean)


def test_learned_std_depends_on_the_observation():
    model = make_model("mlp", "learned")
    obs = {g: jnp.ones(n) for g, n in SIZES.items()}
    stds = [model(o, None)[0].distribution.std for o in (obs, jax.tree.map(lambda x: -x, obs))]
    assert (stds[0] != stds[1]).all()


def test_unknown_kind_of_std_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ConfigError, match=r"'fixed'.*state_independent.*learned"):
        make_model("mlp", "fixed")


@pytest.mark.parametrize(("log_std", "std", "back"), [(3.0, 5.0, 1.0), (-9.0, 0.02, -1.0)])
def test_std_beyond_its_bound_is_bounded_and_learns_only_to_come_back(log_std, std, back):
    model = make_model("mlp")
    beyond = eqx.tree_at(lambda m: m.head.log_std, model, jnp.full(2, log_std))
    obs = {g: jnp.ones(n) for g, n in SIZES.items()}
    np.testing.assert_allclose(beyond(obs, None)[0].distribution.std, std, rtol=1e-6)
    for sign in (1.0, -1.0):
        grads = eqx.filter_grad(lambda m, sign=sign: sign * m(obs, None)[0].distribution.entropy())(beyond)
        np.testing.assert_allclose(grads.head.log_std, sign if sign == back else 0.0)


def test_normalizer_that_has_seen_nothing_changes_nothing():
    raw = {"actor": jnp.array([50.0, -1e4])}
    np.testing.assert_array_equal(ObservationNormalizer.init({"actor": 2})(raw)["actor"], raw["actor"])


def test_gaussian_log_prob_and_entropy_match_the_closed_form():
    gaussian = Gaussian(mean=jnp.array([1.0, 0.0]), std=jnp.array([2.0, 0.5]))
    # At the mean: -sum(log(std) + log(2 pi) / 2), and log 2 + log 0.5 = 0.
    np.testing.assert_allclose(gaussian.log_prob(gaussian.mean), -np.log(2 * np.pi), rtol=1e-6)
    np.testing.assert_allclose(gaussian.entropy(), np.log(2 * np.pi * np.e), rtol=1e-6)


def test_normalizer_after_two_batches_knows_the_moments_of_all_data():
    data = np.random.default_rng(0).normal(3.0, 2.0, (2, E, T, 4)).astype(np.float32)
    normalizer = ObservationNormalizer.init({"actor": 4})
    for batch in data:
        normalizer = normalizer.update({"actor": jnp.asarray(batch)}, None)
    flat = data.reshape(-1, 4)
    np.testing.assert_allclose(normalizer.mean["actor"], flat.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(normalizer.variance["actor"], flat.var(axis=0), rtol=1e-4)
    assert normalizer.count == len(flat)


def test_normalizer_over_devices_equals_that_over_the_whole_batch():
    data = jax.random.normal(jax.random.key(0), (4, T, 4)) * 3 + 1
    start = ObservationNormalizer.init({"actor": 4})
    whole = start.update({"actor": data}, None)
    split = jax.vmap(lambda x: start.update({"actor": x}, "device"), axis_name="device")(data.reshape(2, 2, T, 4))
    chex.assert_trees_all_close(whole, jax.tree.map(lambda x: x[0], split), rtol=1e-5, atol=1e-6)


def test_normalized_actor_critic_shows_the_network_normalised_observations():
    network = make_model("mlp")
    normalizer = ObservationNormalizer(
        count=jnp.ones(()),
        mean={g: jnp.ones(n) for g, n in SIZES.items()},
        variance={g: jnp.full(n, 4.0) for g, n in SIZES.items()},
    )
    model = NormalizedActorCritic(network, normalizer)
    raw = {g: jnp.full(n, 5.0) for g, n in SIZES.items()}  # (5 - 1) / 2 = 2
    shown = {g: jnp.full(n, 2.0) for g, n in SIZES.items()}
    np.testing.assert_allclose(model(raw, None)[0].value, network(shown, None)[0].value, rtol=1e-5)
