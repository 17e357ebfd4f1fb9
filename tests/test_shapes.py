"""Pure functions of ppo and rollout refuse shapes that JAX would broadcast or clamp, with no type checker around."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from ksim.ppo.losses import Minibatch
from tests.support.hyperparameters import make_hyper
from tests.support.processes import ROOT

E, T = 4, 3
ET, ET1, E1 = jnp.ones((E, T)), jnp.ones((E, T, 1)), jnp.ones((E, 1))
NO = jnp.zeros((E, T), bool)
KEYS = jax.random.split(jax.random.key(0), E)
HYPER = make_hyper(desired_kl=0.01)


def untyped(name):
    """A module of ksim as users have it: the tests' own import checks every annotation."""
    path = ROOT.joinpath("ksim", *name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"untyped_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rollout_of(num_carries):
    obs = {"actor": jnp.ones((E, T, 2))}
    carry = jnp.ones((num_carries, 5))
    return Minibatch(obs=obs, carry=carry, done=NO, action=ET1, log_prob=ET, value=ET, advantage=ET, value_target=ET)


CASES = {
    "ppo.losses": [
        ("generalized_advantages", (ET, ET, E1, NO, NO), {"gamma": 0.9, "gae_lambda": 0.9}),
        ("generalized_advantages", (ET, ET, ET, NO, ET), {"gamma": 0.9, "gae_lambda": 0.9}),
        ("normalize_advantages", (ET1, None), {}),
        ("clipped_policy_loss", (ET, ET1, 0.2), {}),
        ("value_loss", (ET, ET, E1, None), {}),
    ],
    "ppo.ppo": [
        ("adapt_learning_rate", (jnp.ones(()), jnp.ones(2), HYPER), {}),
    ],
    "ppo.minibatches": [
        ("stratified_minibatches", (KEYS[0], 10), {"num_batches": 4, "num_passes": 1, "axis_name": None}),
        ("update", (None, rollout_of(E - 1), jnp.zeros((2, 2), int)), dict.fromkeys(("loss", "optimizer", "sync"))),
    ],
    "learn.statistics": [
        ("running_episodes", (ET, NO, jnp.ones(1), jnp.ones(1, int)), {}),
        ("running_episodes", (ET, NO[:, :1], jnp.ones(E), jnp.ones(E, int)), {}),
    ],
    "rollout.environment": [
        ("select_envs", (NO[:, 0], {"x": E1}, {"x": jnp.ones(E)}), {}),
        ("select_envs", (NO[:, 0], {"x": jnp.ones(1)}, {"x": jnp.ones(1)}), {}),
    ],
    "rollout.starts": [
        ("empty_starts", ({"x": ET}, KEYS[0]), {}),
        ("continue_or_start", (None, {"x": ET}, NO, None, {"x": ET}), {}),
        ("continue_or_start", (None, {"x": ET}, NO[:2, 0], None, {"x": ET}), {}),
        ("initial_env_states", (None, KEYS[0], jnp.ones((E, 1), int)), {}),
    ],
    "rollout.unroll": [
        ("unroll", (None, None, {"x": ET}, None, KEYS[:2]), {"num_steps": 3}),
        ("unroll", (None, None, {"x": ET}, None, KEYS[0]), {"num_steps": 3}),
    ],
}


@pytest.mark.parametrize(
    ("module", "function", "arguments", "options"),
    [(module, *case) for module, cases in CASES.items() for case in cases],
    ids=[f"{module}.{case[0]}" for module, cases in CASES.items() for case in cases],
)
def test_shape_that_does_not_fit_is_an_error_while_tracing(module, function, arguments, options):
    with pytest.raises((AssertionError, ValueError), match="Chex"):
        getattr(untyped(module), function)(*arguments, **options)
