"""Return values of a task's hooks, and the errors for invalid ones before anything compiles."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ksim
from examples.point_mass import PointMassConfig, PointMassTask
from ksim import ConfigError
from ksim.nn.networks import AdaptedActorCritic
from ksim.task import LearnedTask
from ksim.task.rl import CALLBACKS
from ksim.task.robot_hooks import RobotHooks
from tests.support.scale import only_in_full
from tests.support.tasks import WITHOUT_REPORTS, assert_same_parameters, train_iterations


def make(cls, **options):
    small = {"num_envs": 8, "num_devices": 1, "rollout_length": 3, "actor_sizes": [4], "critic_sizes": [4]}
    return cls(PointMassConfig(**(small | WITHOUT_REPORTS | {"tensorboard": False} | options)))


def task_of(hook, function, **options):
    """The point mass with one hook replaced; its class is called Mine."""
    return make(type("Mine", (PointMassTask,), {hook: function}), **options)


@pytest.fixture
def compiles_nothing():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    yield
    assert compiled == []


def test_a_task_has_few_ancestors_and_declares_each_method_of_its_base_once():
    names = [cls.__name__ for cls in ksim.DistributedPPOTask.__mro__]
    ours = ["DistributedPPOTask", "DistributedRLTask", "PPOTask", "RLTask", "RobotHooks"]
    assert names == [*ours, "BaseTask", "Generic", "object"]
    assert not {name for name in vars(ksim.RLTask).keys() & vars(RobotHooks).keys() if not name.startswith("__")}
    assert all(name in vars(ksim.RLTask) for name in CALLBACKS)
    assert LearnedTask is ksim.RLTask


class PlainNetwork(eqx.Module):
    """As Equinox is taught: an observation to a mean and a value."""

    body: eqx.nn.MLP
    head: eqx.nn.Linear
    value: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.body = eqx.nn.MLP(2, 8, 8, 1, key=keys[0])
        self.head, self.value = eqx.nn.Linear(8, 1, key=keys[1]), eqx.nn.Linear(8, 1, key=keys[2])

    def __call__(self, obs):
        features = jax.nn.tanh(self.body(obs))
        return self.head(features), self.value(features)


class OfGroups(PlainNetwork):
    def __call__(self, obs):
        mean, value = super().__call__(obs["actor"])
        return ksim.Gaussian(mean, jnp.full(1, 0.3)), value[0]


class Returning(eqx.Module):
    """A network whose output is told."""

    output: object = eqx.field(static=True)

    def __call__(self, obs):
        return self.output(obs)


class Recurrent(ksim.AbstractActorCritic):
    """An actor-critic that returns what it is told."""

    carry: object = eqx.field(static=True)
    returns: object = eqx.field(static=True)

    def initial_carry(self):
        return self.carry

    def __call__(self, obs, carry):
        return self.returns(obs, carry)


GAUSSIAN = ksim.Gaussian(jnp.zeros(1), jnp.ones(1))


@dataclasses.dataclass
class Output:
    """As ActorCriticOutput, which in tests checks its fields by itself."""

    distribution: object
    value: object


jax.tree_util.register_dataclass(Output, ["distribution", "value"], [])


NO_MODELS = {
    "nothing": (lambda self, rng: None, "but returned None"),
    "a pair": (lambda self, rng: (PlainNetwork(rng), 1), r"returned a tuple of 2 \(PlainNetwork, int 1\)"),
    "a class": (lambda self, rng: PlainNetwork, "returned the class PlainNetwork"),
    "a mean alone": (lambda self, rng: eqx.nn.Linear(2, 1, key=rng),
        r"returned Linear \(for float32\[2\] it gives float32\[1\]; for \{'actor': float32\[2\]\} it raised "),
    "swapped": (lambda self, rng: Returning(lambda obs: (obs[0], obs[:1])),
        r"for float32\[2\] it gives a tuple of 2 \(float32\[\], float32\[1\]\)"),
    "a wrong size": (lambda self, rng: Returning(lambda obs: (obs, obs[0])),
        r"a tuple of 2 \(float32\[2\], float32\[\]"),
}  # fmt: skip


@pytest.mark.parametrize(("hook", "message"), NO_MODELS.values(), ids=NO_MODELS)
def test_model_that_is_none_is_an_error_with_the_lines_to_add(hook, message, compiles_nothing):
    with pytest.raises(ConfigError, match=message) as error:
        task_of("_get_initial_model", hook).check()
    text = str(error.value)
    assert text.startswith("Mine._get_initial_model must return a ksim.AbstractActorCritic, or an Equinox module")
    assert "'Custom networks' in docs/own_algorithm.md" in text
    assert "class MyActorCritic(ksim.AbstractActorCritic):" in text


def test_lines_to_add_are_those_of_an_actor_critic():
    with pytest.raises(ConfigError) as error:
        task_of("_get_initial_model", lambda self, rng: None).check()
    names = {"ksim": ksim, "jnp": jnp, "MyNetwork": PlainNetwork}
    exec(str(error.value).split(":\n", maxsplit=1)[1], names)
    make_model = lambda self, rng: names["MyActorCritic"](
        eqx.tree_at(lambda n: n.value, PlainNetwork(rng), eqx.nn.Linear(8, "scalar", key=rng))
    )
    task_of("_get_initial_model", make_model).check()


BAD_ACTOR_CRITICS = {
    "no array in memory": (1.0, lambda obs, carry: None, r"initial_carry must return a tree of arrays.*float 1\.0"),
    "no memory after it": (None, lambda obs, carry: ksim.ActorCriticOutput(GAUSSIAN, jnp.zeros(())),
        r"must map \(obs, carry\) to \(ksim.ActorCriticOutput, carry\), but returned ActorCriticOutput"),
    "no output": (None, lambda obs, carry: ((jnp.zeros(1), 0.0), carry), r"returned a tuple of 2 \(a tuple of 2"),
    "no distribution": (None, lambda obs, carry: (Output(obs["actor"], obs["actor"][0]), carry), "no ksim.Gaussian"),
    "two actions": (None, lambda obs, carry: (Output(ksim.Gaussian(jnp.zeros(2), jnp.ones(2)), jnp.zeros(())), carry),
        r"distribution over 1 numbers, but mode of its Gaussian is float32\[2\] instead of float32\[1\]"),
    "a vector of a value": (None, lambda obs, carry: (Output(GAUSSIAN, jnp.zeros(1)), carry),
        r"must return the value as a scalar, float32\[\], but returned float32\[1\]\. Index or reshape"),
    "another memory": (lambda: jnp.zeros(3), lambda obs, carry: (Output(GAUSSIAN, jnp.zeros(())), carry[:2]),
        r"memory like that of initial_carry, but carry is float32\[2\] instead of float32\[3\]"),
}  # fmt: skip


@pytest.mark.parametrize(("carry", "returns", "message"), BAD_ACTOR_CRITICS.values(), ids=BAD_ACTOR_CRITICS)
def test_actor_critic_that_returns_something_else_is_an_error(carry, returns, message):
    class Mine(Recurrent):
        def initial_carry(self):
            return self.carry() if callable(self.carry) else self.carry

    with pytest.raises(ConfigError, match=message) as error:
        task_of("_get_initial_model", lambda self, rng: Mine(carry, returns)).check()
    assert "The model of Mine._get_initial_model: Mine" in str(error.value)


@pytest.mark.long
def test_network_without_memory_is_adapted_trained_resumed_evaluated_and_exported(tmp_path, capsys):
    class Mine(PointMassTask):
        def _get_initial_model(self, rng):
            return PlainNetwork(rng)

    options = {"init_std": 0.7, "eval_num_envs": 2}
    run_dir = tmp_path / "run"
    assert make(Mine, max_iterations=1, run_dir=str(run_dir), **options).run().exit_code == 0
    assert "PlainNetwork, adapted: the observation group 'actor' to (mean, value)" in capsys.readouterr().out
    assert make(Mine, max_iterations=2, run_dir=str(run_dir), resume="auto", **options).run().exit_code == 0
    assert "iteration 2/2" in capsys.readouterr().out
    for mode in ("eval", "export"):
        assert make(Mine, run_mode=mode, checkpoint=str(run_dir), **options).run().exit_code == 0
    assert ksim.load_policy(run_dir)(np.ones(2)).shape == (1,)


def test_adapted_network_has_a_learned_std_that_starts_from_the_option():
    model = task_of("_get_initial_model", lambda self, rng: PlainNetwork(rng), init_std=0.7).initial_learner().network
    assert isinstance(model, AdaptedActorCritic)
    output, carry = model({"actor": jnp.ones(2)}, None)
    np.testing.assert_allclose(output.distribution.std, [0.7], rtol=1e-6)
    assert (output.value.shape, carry) == ((), None)
    grads = eqx.filter_grad(lambda model: model({"actor": jnp.ones(2)}, None)[0].distribution.std[0])(model)
    np.testing.assert_allclose(grads.log_std, [0.7], rtol=1e-6)


def test_network_of_all_groups_that_returns_a_distribution_keeps_its_std():
    model = task_of("_get_initial_model", lambda self, rng: OfGroups(rng)).initial_learner().network
    assert isinstance(model, AdaptedActorCritic)
    assert model.described() == "OfGroups, adapted: all groups of the observation to (distribution, value)"
    np.testing.assert_allclose(model({"actor": jnp.ones(2)}, None)[0].distribution.std, [0.3], rtol=1e-6)


def test_std_by_state_of_a_network_that_returns_a_mean_is_an_error():
    with pytest.raises(ConfigError, match=r"std \('learned'\).*let it return \(distribution, value\)"):
        task_of("_get_initial_model", lambda self, rng: PlainNetwork(rng), std="learned").check()


def rollout_with(change):
    return lambda self, *args: change(*PointMassTask._rollout(self, *args))


BAD_ROLLOUTS = {
    "nothing": (lambda t, s, c: None, r"must return \(trajectory, env_state, model_carry\), but returned None"),
    "a pair": (lambda t, s, c: (t, s), r"returned a tuple of 2 \(Trajectory, EnvState\)"),
    "no trajectory": (lambda t, s, c: (t.obs, s, c), r"first a ksim.Trajectory, but returned a tuple of 3 \(\{'actor'"),
    "time first": (
        lambda t, s, c: (jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), t), s, c),
        r"8 environments and 3 steps \(rollout_length\).*trajectory.obs\['actor'\] is float32\[3, 8, 2\] instead of "
        r"float32\[8, 3, 2\].* and \d more",
    ),
    "no group": (lambda t, s, c: (dataclasses.replace(t, obs={}), s, c),
        r"trajectory.obs\['actor'\] is missing instead of float32\[8, 3, 2\]"),
    "no value": (lambda t, s, c: (eqx.tree_at(lambda t: t.value, t, None), s, c),
        r"trajectory.value is missing instead of float32\[8, 3\]"),
    "flags as numbers": (lambda t, s, c: (eqx.tree_at(lambda t: t.done, t, t.reward), s, c),
        r"trajectory.done is float32\[8, 3\] instead of bool\[8, 3\]"),
    "a metric of the rollout": (lambda t, s, c: (eqx.tree_at(lambda t: t.metrics, t, {"mine": jnp.zeros(())}), s, c),
        r"trajectory.metrics\['mine'\] is float32\[\] instead of float32\[8, 3\]"),
    "a smaller state": (lambda t, s, c: (t, dataclasses.replace(s, inner=s.inner.position), c),
        r"like those that it was given, but env_state.inner.position is missing instead of float32\[8\]"),
    "another type": (lambda t, s, c: (t, dataclasses.replace(s, reward=s.reward.astype(jnp.bfloat16)), c),
        r"env_state.reward is bfloat16\[8\] instead of float32\[8\]"),
    "a memory": (lambda t, s, c: (t, s, jnp.zeros(8)), r"model_carry \(float32\[8\]\) should not be there"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD_ROLLOUTS.values(), ids=BAD_ROLLOUTS)
def test_rollout_that_returns_something_else_is_an_error(change, message, compiles_nothing):
    with pytest.raises(ConfigError, match=message) as error:
        task_of("_rollout", rollout_with(change)).check()
    assert str(error.value).startswith("Mine._rollout must return ")
    assert "'Hooks of the algorithm' in docs/own_algorithm.md" in str(error.value)


BAD_ENV_STATES = {
    "nothing": (lambda state: None, "but returned None"),
    "a row less": (lambda state: jax.tree.map(lambda x: x[1:], state),
        r"env_state.inner.position is float32\[7\] instead of float32\[8\]"),
    "shares of devices": (lambda state: jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), state),
        r"inner.position is float32\[2, 4\] instead of float32\[8\].*ksim gives every device its share"),
    "another type": (lambda state: eqx.tree_at(lambda s: s.terminated, state, state.reward),
        r"terminated is float32\[8\] instead of bool\[8\]"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD_ENV_STATES.values(), ids=BAD_ENV_STATES)
def test_first_states_that_are_something_else_are_an_error(change, message):
    hook = lambda self, rng: change(PointMassTask._get_initial_env_state(self, rng))
    with pytest.raises(ConfigError, match=message) as error:
        task_of("_get_initial_env_state", hook).initial_state()
    assert str(error.value).startswith("Mine._get_initial_env_state must return the global batch, 8 rows in every leaf")


@pytest.mark.long
def test_first_states_may_be_of_64_bits_on_the_host():
    wide = lambda x: np.asarray(x, {"f": np.float64, "i": np.int64}.get(x.dtype.kind, x.dtype))
    hook = lambda self, rng: jax.tree.map(wide, PointMassTask._get_initial_env_state(self, rng))
    train_iterations(task_of("_get_initial_env_state", hook), 1)


BAD_OPTIMIZERS = {
    "nothing": (lambda self: None, "must return an optax.GradientTransformation, but returned None"),
    "no rate": (lambda self: optax.adam(1e-3), r"injected learning_rate.*optax\.inject_hyperparams\(optax\.adam\)"),
    "a schedule": (
        lambda self: optax.inject_hyperparams(optax.adam)(learning_rate=optax.linear_schedule(1e-3, 0.0, 10)),
        r"must return .* but its state has 2 \(of a schedule there are two\)",
    ),
}


@pytest.mark.parametrize(("hook", "message"), BAD_OPTIMIZERS.values(), ids=BAD_OPTIMIZERS)
def test_optimizer_that_cannot_be_used_is_an_error(hook, message, compiles_nothing):
    with pytest.raises(ConfigError, match=f"Mine.get_optimizer {message}|{message}"):
        task_of("get_optimizer", hook).check()


def test_synchronisation_that_returns_something_else_is_an_error(compiles_nothing):
    sync = lambda self, grads: jax.tree.map(jnp.sum, grads)
    with pytest.raises(ConfigError, match=r"Mine.sync_gradients .* is float32\[\] instead of float32\[4, 2\]"):
        task_of("sync_gradients", sync).check()


def pmapped(self, grads):
    mean = jax.pmap(lambda x: jax.lax.pmean(x, "device"), axis_name="device", devices=jax.devices()[:2])
    return jax.tree.map(lambda x: x[0], mean(jax.tree.map(lambda x: jnp.stack([x] * 2), grads)))


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(
    ("hook", "code", "words"),
    [
        ("sync_gradients", pmapped, r"Mine\.sync_gradients maps over devices itself"),
        ("sync_gradients", lambda self, grads: jax.pmap(lambda x: x, axis_name="device")(grads),
         r"Mine\.sync_gradients failed at .*test_hooks\.py:\d+, .*ValueError"),
        ("sync_gradients", lambda self, grads: jax.lax.pmean(grads, "devices"),
         r"Mine\.sync_gradients failed at .*test_hooks\.py:\d+, .*unbound axis name: devices"),
        ("sync_gradients", jax.jit(lambda self, grads: grads), r"Mine\.sync_gradients failed.*TypeError"),
        ("_rollout", lambda self, *args: jax.lax.pmean(1.0, "batch"), r"Mine\._rollout failed at .*axis name: batch"),
        ("_rollout", lambda self, *args: jax.pmap(lambda x: x)(args[1]), r"Mine\._rollout maps over devices itself"),
    ],
)  # fmt: skip
def test_traced_hook_that_fails_is_an_error_with_its_name_the_axis_and_the_fix(
    hook, code, words, num_devices, compiles_nothing
):
    fix = r".* remove pmap, shard_map and jit, and reduce with jax\.lax\.pmean .* axis 'device' \(self"
    with pytest.raises(ConfigError, match=words + fix):
        task_of(hook, code, num_devices=num_devices).check()


class Jittered(PointMassTask):
    """A rollout as one would write it: the key is split."""

    def _rollout(self, model, env_state, model_carry, rng):
        rng, sub = jax.random.split(rng)
        num_envs = env_state.reward.shape[0]
        push_e = jax.vmap(lambda key: 0.1 * jax.random.normal(key))(self.env_keys(sub, num_envs))
        inner = dataclasses.replace(env_state.inner, velocity=env_state.inner.velocity + push_e)
        return super()._rollout(model, dataclasses.replace(env_state, inner=inner), model_carry, rng)


@pytest.mark.long
def test_key_of_a_rollout_is_one_that_can_be_split_and_gives_the_same_on_two_devices():
    tasks = [make(Jittered, num_devices=n, num_envs=16, rollout_length=8) for n in (1, 2)]
    (one, one_history), (two, two_history) = (train_iterations(task, 3) for task in tasks)
    for name in ("rollout/reward", "distance", "loss/value"):
        np.testing.assert_allclose([m[name] for m in one_history], [m[name] for m in two_history], rtol=1e-5)
    learners = (task.layout.first(state.learner) for task, state in zip(tasks, (one, two), strict=True))
    assert_same_parameters(*learners, rtol=1e-5, atol=1e-6)
    plain = train_iterations(make(PointMassTask, num_envs=16, rollout_length=8), 1)[1]
    assert plain[0]["rollout/reward"] != one_history[0]["rollout/reward"]


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (lambda rng: jax.random.split(rng, 8), r"key<fry>\[8\]"),
        (lambda rng: jax.random.key_data(rng), r"uint32\[2\]"),
        (lambda rng: 0, "int 0"),
    ],
)
def test_several_keys_in_place_of_one_are_an_error(keys, found):
    def rollout(self, model, env_state, model_carry, rng):
        return PointMassTask._rollout(self, model, env_state, model_carry, keys(rng))

    with pytest.raises(ConfigError, match=rf"rng of Mine._rollout must be one key.* is {found}\. .*rng, sub ="):
        task_of("_rollout", rollout).check()


class InGroups(PointMassTask):
    """Gradients are averaged within pairs of devices, then over all; the optimizer looks at all devices as well."""

    def sync_gradients(self, grads):
        pairs = jax.lax.pmean(grads, self.device_axis, axis_index_groups=[[0, 1], [2, 3]])
        return jax.lax.pmean(pairs, self.device_axis)

    def get_optimizer(self):
        optimizer = super().get_optimizer()

        def update(updates, state, params=None, **more):
            return optimizer.update(jax.lax.pmean(updates, self.device_axis), state, params, **more)

        return optax.GradientTransformationExtraArgs(optimizer.init, update)


@pytest.mark.long
@only_in_full("test_device_axis.py has collectives over all")
@pytest.mark.parametrize("layout", ["pmap", "shard_map"])
def test_hooks_with_collectives_within_groups_of_devices_train_as_with_those_over_all(layout):
    tasks = [make(cls, num_devices=4, num_envs=16, layout=layout) for cls in (InGroups, PointMassTask)]
    (mine, _), (plain, _) = (train_iterations(task, 1) for task in tasks)
    first = tasks[0].layout.first
    assert_same_parameters(first(mine.learner), first(plain.learner), rtol=1e-5, atol=1e-6)
