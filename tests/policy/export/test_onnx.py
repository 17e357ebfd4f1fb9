"""ONNX models of the converter compute the same as JAX."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")

from ksim.errors import ConfigError  # noqa: E402
from ksim.nn import ActorCriticOutput, Gaussian, GruActorCritic, MlpActorCritic  # noqa: E402
from ksim.policy.export.onnx import onnx_policy  # noqa: E402
from ksim.policy.program import deterministic_policy, policy_arrays  # noqa: E402
from tests.policy.test_program import SIZES, KnowsNoBatch, modes, normalized, observations  # noqa: E402
from tests.support.still import Memoryless  # noqa: E402

NUM_IN = SIZES["actor"]
KEY = jax.random.key(0)


class Computes(Memoryless):
    """A policy whose action is any function of the actor's observation."""

    function: eqx.Module
    name: str = eqx.field(static=True, default="")

    def __call__(self, obs, carry):
        mean = jnp.ravel(self.function(obs["actor"])).astype(jnp.float32)
        return ActorCriticOutput(Gaussian(mean, jnp.ones_like(mean)), jnp.zeros(())), carry


def session_of(model, sizes=SIZES, metadata=None):
    policy = deterministic_policy(model, sizes).bound(policy_arrays(model))
    data = onnx_policy(policy, metadata or {}).SerializeToString()
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])


def assert_same(function):
    model = Computes(function)
    obs = {"actor": jnp.array(np.random.default_rng(0).uniform(-2, 2, (4, NUM_IN)), jnp.float32)}
    session = session_of(model, {"actor": NUM_IN})
    (expected,) = modes(model, [obs])
    for rows in (4, 1):
        (action,) = session.run(None, {"obs": np.asarray(obs["actor"])[:rows]})
        np.testing.assert_allclose(action, expected[:rows], atol=1e-6, rtol=1e-6)


ACTIVATIONS = [
    "elu", "relu", "relu6", "selu", "celu", "gelu", "silu", "swish", "softplus", "soft_sign", "sigmoid", "log_sigmoid",
    "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu", "mish", "softmax", "log_softmax", "squareplus",
    "logsumexp", "glu", "standardize", "sparse_plus", "identity",
]  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_jax(name):
    inputs = (lambda x: x[:4]) if name == "glu" else (lambda x: x)
    assert_same(lambda x: getattr(jax.nn, name)(inputs(x)))


LAYERS = {
    "Linear": lambda: eqx.nn.Linear(NUM_IN, 3, key=KEY),
    "Linear without bias": lambda: eqx.nn.Linear(NUM_IN, 3, use_bias=False, key=KEY),
    "MLP": lambda: eqx.nn.MLP(NUM_IN, 3, 8, 2, activation=jnp.tanh, key=KEY),
    "LayerNorm": lambda: eqx.nn.LayerNorm(NUM_IN),
    "RMSNorm": lambda: eqx.nn.RMSNorm(NUM_IN),
    "GroupNorm": lambda: eqx.nn.GroupNorm(1, NUM_IN),
    "PReLU": lambda: eqx.nn.PReLU(),
    "Dropout": lambda: eqx.nn.Dropout(0.5, inference=True),
    "Sequential": lambda: eqx.nn.Sequential([eqx.nn.Linear(NUM_IN, 4, key=KEY), eqx.nn.Lambda(jax.nn.gelu)]),
    "Conv1d": lambda: On(eqx.nn.Conv1d(1, 2, 3, padding=1, stride=2, key=KEY), lambda x: x[None]),
    "Conv2d": lambda: On(eqx.nn.Conv2d(2, 3, 2, dilation=1, key=KEY), lambda x: x[:4].reshape(1, 2, 2).repeat(2, 0)),
    "MultiheadAttention": lambda: On(
        eqx.nn.MultiheadAttention(2, 4, key=KEY), lambda x: x[:4, None] * jnp.arange(1.0, 5.0), times=3
    ),
    "LSTMCell": lambda: On(eqx.nn.LSTMCell(NUM_IN, 3, key=KEY), lambda x: x, ((jnp.ones(3), jnp.ones(3)),)),
    "GRUCell": lambda: On(eqx.nn.GRUCell(NUM_IN, 3, key=KEY), lambda x: x, (jnp.ones(3),)),
}


class On(eqx.Module):
    """A layer on an input made of the observation."""

    layer: eqx.Module
    prepare: object
    more: tuple = ()
    times: int = 1

    def __call__(self, x):
        out = self.layer(*[self.prepare(x)] * self.times, *self.more)
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(out)])


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers_of_equinox(make):
    assert_same(make())


FUNCTIONS = {
    "trigonometry": lambda x: jnp.sin(x) + jnp.cos(x) + jnp.tan(x / 4) + jnp.arctan(x) + jnp.arcsin(x / 3),
    "hyperbolic": lambda x: jnp.sinh(x) + jnp.cosh(x) + jnp.arcsinh(x) + jnp.arctanh(x / 3) + jnp.arccosh(x + 4),
    "powers": lambda x: x**2 + x**3 + x**-2 + jnp.abs(x) ** 1.5 + 2.0**x + jnp.exp2(x) + jax.lax.rsqrt(jnp.abs(x)),
    "rounding": lambda x: jnp.floor(x) + 2 * jnp.ceil(x) + 3 * jnp.round(x) + 4 * jnp.sign(x),
    "small numbers": lambda x: jnp.expm1(1e-4 * x) * 1e4 + jnp.log1p(1e-4 * x) * 1e4 + jax.lax.erfc(x),
    "large numbers": lambda x: jnp.log1p(jnp.exp(3 * x)) + jnp.minimum(jnp.expm1(60 * x), 2.0),
    "comparisons": lambda x: (x > 0) + 2 * (x >= 1) + 4 * (x < -1) + 8 * (x <= 0) + 16 * (x == 0) + 32 * (x != 1),
    "logic": lambda x: (x > 0) & (x < 1) | ~(x > -1) ^ (x > 1.5),
    "choices": lambda x: jnp.where(x > 0, x, -2 * x) + jnp.where(x[0] > 0, x > 1, x < 1),
    "clips": lambda x: jnp.clip(x, -1, 1) + jax.lax.clamp(-0.5, x, 0.5) + jnp.remainder(x, 0.7) + jnp.fmod(x, 0.3),
    "reductions": lambda x: jnp.stack(
        [x.sum(), x.max(), x.min(), x.prod(), x.mean(), x.std(), jnp.linalg.norm(x), (x > 1).any(), (x > -3).all()]
    ),
    "positions": lambda x: jnp.stack([jnp.argmax(x), jnp.argmin(x)]),
    "indices": lambda x: jnp.concatenate(
        [x[jnp.array([3, 0])], x[2:3], x[-1:], x[::-1], x[::2], x.take(np.array([1]))]
    ),
    "matrices of indices": lambda x: jnp.outer(x, x)[:, np.array([[0, 2], [1, 1]])],
    "order": lambda x: jnp.roll(x, 2) + jnp.cumsum(x) + jnp.flip(x),
    "padding": lambda x: jnp.pad(x, (1, 2), constant_values=3.0),
    "outer products": lambda x: jnp.outer(x, jnp.arange(3.0)).T + jnp.arange(3.0)[:, None],
    "contractions": lambda x: jnp.einsum("ij,kj,kl->il", jnp.outer(x, x), jnp.ones((2, NUM_IN)), jnp.ones((2, 3))),
    "products of rows": lambda x: jnp.einsum("ij,ij->i", jnp.outer(x, x), jnp.outer(x, x + 1)),
    "tensors": lambda x: jnp.tensordot(jnp.outer(x, x), 0.01 * jnp.arange(50.0).reshape(NUM_IN, NUM_IN, 2), 2),
    "attention": lambda x: jax.nn.softmax(jnp.outer(x, x), axis=0) @ x,
    "loops": lambda x: jax.lax.scan(lambda c, y: (0.5 * c + y, c * y), x[0], x, reverse=True)[1],
    "loops with constants": lambda x: jax.lax.scan(lambda c, _: (c + x * x[0], None), x, None, length=3)[0],
    "one value for all": lambda x: jnp.concatenate([x, jnp.array([7.0])]),
    "conversions": lambda x: x.astype(jnp.int32) // 2 + (x > 0).astype(jnp.float32) + jnp.isfinite(x),
    "a frozen part": lambda x: jax.lax.stop_gradient(x) + jax.jit(lambda y: jax.checkpoint(jnp.tanh)(y))(x),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_jax(function):
    assert_same(function)


@pytest.mark.parametrize("network", [MlpActorCritic, GruActorCritic])
def test_policies_of_ksim_are_few_nodes_with_each_weight_once(network):
    model = normalized(network(SIZES, 3, key=KEY))
    policy = deterministic_policy(model, SIZES)
    written = onnx_policy(policy.bound(policy_arrays(model)), {"a": "b"})
    assert len(written.graph.node) < 60
    weights = sum(x.size for name, x in policy_arrays(model).items() if name in policy.arrays)
    numbers = sum(np.prod(x.dims, dtype=int) for x in written.graph.initializer)
    assert numbers < weights + 60
    assert "Transpose" not in {node.op_type for node in written.graph.node}
    assert {p.key: p.value for p in written.metadata_props} == {"a": "b"}


def test_a_policy_that_knows_no_batch_takes_one_row():
    model = normalized(KnowsNoBatch(jnp.array([3, 0])))
    session, obs = session_of(model), observations()
    assert [i.shape for i in session.get_inputs()] == [[1, 5], [1, 7]]
    row = {"obs": np.asarray(obs["actor"])[:1], "obs_critic": np.asarray(obs["critic"])[:1]}
    np.testing.assert_allclose(session.run(None, row)[0], modes(model, [obs])[0][:1], rtol=1e-6)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (jnp.sort, "'sort' is not covered"),
        (lambda x: x[jnp.argmax(x)[None]], "'gather', used other than elements along one axis"),
        (lambda x: jax.lax.while_loop(lambda y: y[0] < 1, lambda y: y + 1, x), "'while' is not covered"),
    ],
)
def test_an_operation_that_is_not_covered_is_named(function, named):
    with pytest.raises(ConfigError, match=rf"(?s){named}.*Compose it of others.*policy\.jaxexport"):
        session_of(Computes(function), {"actor": NUM_IN})
