"""The axis of devices, for collectives of a user's own, on a single device."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from ksim.mdp import curriculum, rewards
from ksim.parallel.collectives import bind_axis
from ksim.parallel.layout import make_layout
from ksim.preflight.start import print_terms, term_rows
from ksim.rollout.starts import env_keys
from tests.support.programs import operations
from tests.support.scale import only_in_full, scale
from tests.support.tasks import WITHOUT_REPORTS, BipedConfig, BipedTask, assert_same_parameters, train_iterations

QUIET = {"num_envs": 8, "rollout_length": 4, "actor_sizes": [4], "critic_sizes": [4], "tensorboard": False}
AXIS = "replica"


def make(cls, **options):
    return cls(PointMassConfig(**(QUIET | WITHOUT_REPORTS | {"num_devices": 1, "pmap_axis_name": AXIS} | options)))


class Averaging(PointMassTask):
    """Means over devices wherever code of a user's own can be: the environment, the rollout, the synchronisation."""

    def get_environment(self, engine, num_devices):
        axis = self.config.pmap_axis_name

        class Shared(PointMass):
            def _state(self, inner, reward):
                state = super()._state(inner, reward)
                everywhere = jax.lax.pmean(jnp.square(inner.position), axis)
                return dataclasses.replace(state, metrics=state.metrics | {"everywhere": everywhere})

        return Shared()

    def _rollout(self, model, env_state, model_carry, rng):
        trajectory, env_state, model_carry = super()._rollout(model, env_state, model_carry, rng)
        level = jax.lax.pmean(jnp.mean(trajectory.reward), self.config.pmap_axis_name)
        return dataclasses.replace(trajectory, reward=trajectory.reward - level), env_state, model_carry

    def sync_gradients(self, grads):
        return jax.lax.pmean(grads, self.config.pmap_axis_name)


@pytest.mark.long
@pytest.mark.parametrize("layout", scale(["shard_map"], ["pmap", "shard_map"]))
def test_collectives_of_a_users_own_run_on_one_device_as_on_two(layout):
    tasks = [make(Averaging, num_devices=n, layout=layout) for n in (1, 2)]
    (one, one_history), (two, two_history) = (train_iterations(task, 2) for task in tasks)
    for name in ("rollout/reward", "loss/value"):
        np.testing.assert_allclose([m[name] for m in one_history], [m[name] for m in two_history], rtol=1e-4, atol=1e-6)
    learners = (task.layout.first(state.learner) for task, state in zip(tasks, (one, two), strict=True))
    assert_same_parameters(*learners, rtol=1e-4, atol=1e-5)


class Ageing(ksim.Environment):
    """An env ends at its own age. It reports its age, in steps, as a mean over devices, also at a start."""

    action_size = 1

    def reset(self, key):
        return self._state(jnp.int32(0), jnp.int32(1000))

    def step(self, state, action):
        age, end = state.inner
        return self._state(age + 1, end)

    def _state(self, age, end):
        mean_age = jax.lax.pmean(age.astype(jnp.float32), AXIS)
        return ksim.EnvState(
            inner=(age, end),
            obs={"actor": mean_age[None]},
            reward=mean_age,
            terminated=age >= end,
            truncated=jnp.bool_(False),
            metrics={"age": mean_age},
        )


@pytest.mark.parametrize("layout", ["pmap", "shard_map"])
def test_collectives_of_an_environment_are_reached_by_all_devices_when_an_episode_ends_on_one(layout):
    env = Ageing()
    model = ksim.MlpActorCritic({"actor": 1}, 1, actor_sizes=[2], critic_sizes=[2], key=jax.random.key(0))
    mapped = make_layout(jax.devices()[:2], AXIS, layout)

    def ages(end_e):
        key_e = env_keys(jax.random.key(1), jnp.arange(2))
        state_e = jax.vmap(env.reset)(key_e)
        state_e = dataclasses.replace(state_e, inner=(state_e.inner[0], end_e))
        return ksim.unroll(env, model, state_e, None, key_e, num_steps=4)[0].metrics["age"]

    age_et = mapped.join_envs(mapped.map(ages)(mapped.shard(jnp.array([2, 1000, 1000, 1000]))))
    # The first env of the first device starts again after two steps.
    np.testing.assert_array_equal(age_et, 2 * [[1, 2, 2, 3], [1, 2, 3, 4]])


@pytest.mark.long
def test_collectives_of_a_users_own_run_wherever_a_run_traces_them(tmp_path):
    run_dir = str(tmp_path / "run")
    options = {"eval_num_envs": 2, "eval_at_end": True, "plots": True}
    assert make(Averaging, run_dir=run_dir, max_iterations=2, **options).run().exit_code == 0
    for mode in ("eval", "export", "replay"):
        assert make(Averaging, run_mode=mode, checkpoint=run_dir, **options).run().exit_code == 0


@pytest.mark.long
def test_task_of_one_device_has_the_axis_under_its_default_name():
    class Mine(ksim.PPOTask[ksim.PPOConfig]):
        def get_environment(self, engine, num_devices):
            return PointMass()

        def _rollout(self, model, env_state, model_carry, rng):
            # What shall differ from device to device; here there is one.
            rng = jax.random.fold_in(rng, jax.lax.axis_index("device"))
            return super()._rollout(model, env_state, model_carry, rng)

    assert Mine(ksim.PPOConfig()).device_axis == "device"
    _, history = train_iterations(Mine(ksim.PPOConfig(**QUIET)), 1)
    assert np.isfinite(history[0]["loss/total"])


class Crowd(rewards.AbstractReward):
    """The height of a robot less its mean over devices, in m."""

    scale: float = 1.0

    def __call__(self, context):
        height = context.physics.qpos[2]
        return height - jax.lax.pmean(height, AXIS) + 0.0 * jax.lax.axis_index(AXIS)


class CrowdTask(BipedTask):
    def get_rewards(self, physics_model):
        return [rewards.Alive(), Crowd()]

    def get_commands(self, physics_model):
        return {}

    def get_curricula(self, physics_model):
        return {"up": curriculum.LinearCurriculum(end_iteration=5)}


@pytest.mark.long
@only_in_full("terms with MJX and a user's own rollout have it")
@pytest.mark.parametrize(
    ("num_devices", "layout"),
    [(1, "pmap"), (2, "pmap"), (2, "shard_map")],
)
def test_terms_have_the_axis_in_native_mujoco_also_where_shapes_are_looked_at(num_devices, layout):
    task = CrowdTask(BipedConfig(num_devices=num_devices, pmap_axis_name=AXIS, engine="mujoco", layout=layout))
    task.verify_distributed_setup()
    print_terms(term_rows(task.environment, task.device_axis))
    _, history = train_iterations(task, 1)
    np.testing.assert_allclose(history[0]["reward/crowd"], 0.0, atol=1e-6)


@pytest.mark.long
def test_bound_axis_adds_nothing_to_the_compiled_step_and_leaves_donation_as_it_is():
    task = make(PointMassTask)
    state = task.layout.place(task.initial_state())
    step = task.make_train_step(None)
    bound = task.layout.map(step, donate=True).lower(state).compile()
    plain = jax.jit(step, donate_argnums=0).lower(state).compile()
    assert operations(bound) == operations(plain)
    assert sum(operations(bound).values()) > 1000
    sizes = [(m.temp_size_in_bytes, m.alias_size_in_bytes) for m in (bound.memory_analysis(), plain.memory_analysis())]
    assert sizes[0] == sizes[1]
    assert sizes[0][1] > 0


def test_means_over_a_bound_axis_of_one_are_the_identity():
    tree = {"x": jnp.arange(3.0), "key": jax.random.key(1)}

    def function(tree):
        x = jax.lax.pmean(tree["x"], AXIS) * jax.lax.axis_size(AXIS) + jax.lax.axis_index(AXIS)
        return {"x": jax.lax.pmax(x, AXIS), "all": jax.lax.all_gather(x, AXIS), "key": tree["key"], "none": None}

    out = jax.jit(bind_axis(function, AXIS))(tree)
    np.testing.assert_array_equal(out["x"], tree["x"])
    np.testing.assert_array_equal(out["all"], tree["x"][None])
    assert out["key"] == tree["key"]
    assert out["none"] is None


@pytest.mark.long
def test_custom_synchronisation_is_called_on_a_single_device_as_well():
    class Stopped(PointMassTask):
        def sync_gradients(self, grads):
            return jax.tree.map(lambda g: jax.lax.pmean(0.0 * g, self.config.pmap_axis_name), grads)

    task = make(Stopped)
    state, _ = train_iterations(task, 1)
    params = task.layout.first(state.learner).params, task.initial_learner().state.params
    jax.tree.map(np.testing.assert_array_equal, *params)
