"""A second algorithm: REINFORCE with a baseline, on the point mass of the examples."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

import ksim
from examples.point_mass import PointMass
from ksim.config import field
from ksim.learn import (
    AbstractLearner,
    LearnerInfo,
    UpdateState,
    all_finite,
    evaluate_sequences,
    initial_learner_state,
    optimizer_step,
)
from ksim.parallel.collectives import all_across_devices, mean_across_devices


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Reinforce(AbstractLearner):
    """One step per rollout along the gradient of the log-density, Williams 1992, less a learned value as baseline."""

    optimizer: optax.GradientTransformation
    gamma: float = 0.95

    def init(self, key):
        return initial_learner_state(self.network, self.obs_sizes, self.optimizer, key, self.env.initial_levels())

    def info(self):
        return LearnerInfo(hyper={"gamma": self.gamma}, line={"baseline off by": "loss/value"})

    def learn(self, learner, collected, key, is_usable):
        x = collected.trajectory

        def add(later_e, step):
            reward_e, next_value_e, terminated_e, done_e = step
            later_e = jnp.where(terminated_e, 0.0, jnp.where(done_e, next_value_e, later_e))
            return (reward_e + self.gamma * later_e,) * 2

        steps_te = jax.tree.map(jnp.transpose, (x.reward, x.next_value, x.terminated, x.done))
        to_go_et = jax.lax.scan(add, x.next_value[:, -1], steps_te, reverse=True)[1].T

        def loss(params):
            model = self.policy(dataclasses.replace(learner, params=params))
            output = evaluate_sequences(model, x.obs, collected.model_carry, x.done)
            policy = -jnp.mean(output.distribution.log_prob(x.action) * (to_go_et - x.value))
            value = jnp.mean(jnp.square(output.value - to_go_et))
            return policy + value, {"loss/policy": policy, "loss/value": value}

        local_grads, metrics = jax.grad(loss, has_aux=True)(learner.params)
        grads = self.sync_gradients(local_grads)
        is_finite = all_across_devices(all_finite(grads) & is_usable, self.axis_name)
        stepped = optimizer_step(self.optimizer, UpdateState.of(learner), grads, is_finite).into(learner)
        return stepped, mean_across_devices(metrics, self.axis_name) | {"policy/bad_updates": 1.0 - is_finite}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(kw_only=True)
class ReinforceConfig(ksim.DistributedRLConfig):
    learning_rate: float = field(0.01, help="step size of Adam")


class ReinforceTask(ksim.DistributedRLTask[ReinforceConfig]):
    def get_environment(self, engine, num_devices):
        return PointMass()

    def _get_initial_model(self, rng):
        return ksim.MlpActorCritic(self.obs_sizes, 1, actor_sizes=(16,), critic_sizes=(16,), key=rng)

    def get_learner(self, network, axis_name):
        return Reinforce(**self.learner_parts(network, axis_name), optimizer=optax.adam(self.config.learning_rate))
