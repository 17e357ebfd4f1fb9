"""Learning beside its own bare matrix products: what PPO costs on top of the arithmetic of its networks.

python -m benchmarks.learner --like humanoid cheetah --models mlp gru --repeats 9 --profile

Two programs run in turn, again and again, in one process:

- products: for every minibatch, the matrix products of actor and critic, forward and backward, and nothing else: no
  activations, no loss. The gradient of the observations, which no one needs, is not among them. A GRU's products with
  its inputs are taken for all steps at once.
- learning: `PPO.learn`, that is advantages, all passes over a random rollout of the same shapes, and the statistics of
  the observations.

`--like humanoid` is the walking humanoid: 1024 environments, rollouts of 24 steps, 4 minibatches, 4 passes.
`--like cheetah` has 512 environments, rollouts of 32 steps, 8 minibatches, 8 passes, observations of 17 numbers,
actions of 6. Actor and critic have two layers of 128; a GRU has a memory of 128 and one such layer.

`--profile` also times parts of learning, each as a program of its own that does the part as often as learning does. In
one program they share work, so that the parts may add up to more than the whole.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import ksim  # noqa: F401 - prepares the process before JAX's backend starts
from benchmarks import PLAIN
from benchmarks.timing import Seconds, ratios, time_in_turn
from examples.walking import HumanoidWalkingConfig, HumanoidWalkingTask

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree
from ksim.learn.learner import RolloutBatch
from ksim.learn.guards import UpdateState, all_finite, optimizer_step, updated_normalizer
from ksim.learn.learner import initial_learner_state
from ksim.nn import AbstractActorCritic, ActorCriticOutput, Gaussian, GruActorCritic, MlpActorCritic
from ksim.nn.actor_critic import initial_carries
from ksim.nn.networks import elu
from ksim.nn.normalizer import ObservationNormalizer
from ksim.ppo.losses import generalized_advantages, normalize_advantages
from ksim.ppo.losses import PPOHyperparameters
from ksim.ppo.ppo import PPO
from ksim.ppo.losses import Minibatch, ppo_loss
from ksim.tools.measure import spread
from ksim.types import LearnerState, Trajectory

SIZE = 128
Program = Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Subject:
    """A learner, its state, and a rollout for it."""

    ppo: PPO
    state: LearnerState
    collected: RolloutBatch

    @property
    def num_minibatches(self) -> int:
        return self.ppo.hyper.num_batches * self.ppo.hyper.num_passes

    @property
    def shape(self) -> tuple[int, int]:
        """Environments and steps of a minibatch."""
        num_envs, num_steps = self.collected.trajectory.reward.shape
        return num_envs // self.ppo.hyper.num_batches, num_steps


def make_subject(like: str, model: str) -> Subject:
    """The learner of the walking humanoid, or one with the shapes of a cheetah."""
    num_envs, num_steps, num_batches, num_passes = (1024, 24, 4, 4) if like == "humanoid" else (512, 32, 8, 8)
    options: dict[str, Any] = PLAIN | {"num_envs": num_envs, "num_batches": num_batches, "num_passes": num_passes}
    task = HumanoidWalkingTask(HumanoidWalkingConfig(**options, model=model, engine="mujoco"))
    sizes, action_size = (task.obs_sizes, task.environment.action_size)
    if like == "cheetah":
        sizes, action_size = ({"actor": 17}, 6)
    network_class: Any = GruActorCritic if model == "gru" else MlpActorCritic
    layers = {"actor_sizes": [SIZE] * (1 + (model == "mlp")), "critic_sizes": [SIZE] * (1 + (model == "mlp"))}
    network = network_class(sizes, action_size, **layers, key=jax.random.key(0))
    parts: dict[str, Any] = task.learner_parts(network, None) | {"obs_sizes": sizes}
    ppo = PPO(**parts, optimizer=task.get_optimizer(), hyper=task.hyperparameters())
    state = initial_learner_state(network, sizes, ppo.optimizer, jax.random.key(1), {})
    return Subject(ppo, state, random_rollout(network, sizes, action_size, (num_envs, num_steps)))


def random_rollout(
    network: AbstractActorCritic, sizes: dict[str, int], action_size: int, shape: tuple[int, int]
) -> RolloutBatch:
    """A rollout in which nothing is zero: products of zeros take another time."""
    keys = iter(jax.random.split(jax.random.key(2), 10))
    normal = lambda *tail: jax.random.normal(next(keys), (*shape, *tail))
    done_et = jax.random.bernoulli(next(keys), 0.01, shape)
    action = normal(action_size)
    trajectory = Trajectory(
        obs={group: normal(size) for group, size in sizes.items()},
        action=action,
        log_prob=jnp.sum(-0.5 * action**2 - 0.92, axis=-1) + 0.1 * normal(),
        value=normal(),
        next_value=normal(),
        reward=normal(),
        terminated=done_et,
        done=done_et,
        metrics={},
    )
    return RolloutBatch(trajectory, initial_carries(network, shape[0]), jnp.zeros(shape), jnp.zeros(shape, jnp.int32))


def products(subject: Subject) -> Program:
    """The bare products, as the gradient of networks without biases and activations."""
    num_envs, num_steps = subject.shape
    num_rows, keys = num_envs * num_steps, iter(jax.random.split(jax.random.key(3), 20))
    normal = lambda *shape: jax.random.normal(next(keys), shape) / shape[0] ** 0.5
    networks, inputs = [], []
    action_size = subject.collected.trajectory.action.shape[-1]
    is_gru = isinstance(subject.ppo.network, GruActorCritic)
    sizes = subject.ppo.obs_sizes
    for group, num_out in (("actor", action_size), ("critic" if "critic" in sizes else "actor", 1)):
        cell = (normal(sizes[group], 3 * SIZE), normal(SIZE, 3 * SIZE)) if is_gru else None
        layers = [normal(SIZE if is_gru else sizes[group], SIZE), *[normal(SIZE, SIZE)] * (not is_gru)]
        networks.append((cell, [*layers, normal(SIZE, num_out)]))
        inputs.append((jax.random.normal(next(keys), (num_rows, sizes[group])), normal(num_rows, num_out)))

    def remembered(cell: tuple[Array, Array], x: Array) -> Array:
        gates = (x @ cell[0]).reshape(num_steps, num_envs, 3 * SIZE)

        def step(memory: Array, gates: Array) -> tuple[Array, Array]:
            first, second, third = jnp.split(gates + memory @ cell[1], 3, axis=1)
            memory = (first + second + third) / 3
            return memory, memory

        return jax.lax.scan(step, jnp.zeros((num_envs, SIZE)), gates)[1].reshape(num_rows, SIZE)

    def loss(networks: PyTree) -> Array:
        total = jnp.zeros(())
        for (cell, layers), (x, target) in zip(networks, inputs, strict=True):
            y = x if cell is None else remembered(cell, x)
            for layer in layers:
                y = y @ layer
            total += jnp.sum((y - target) ** 2)
        return total

    def minibatch(networks: PyTree, _: None) -> tuple[PyTree, None]:
        # A step, however small, makes the products of each minibatch depend on those before.
        return jax.tree.map(lambda w, g: w - 1e-9 * g, networks, jax.grad(loss)(networks)), None

    run = jax.jit(lambda networks: jax.lax.scan(minibatch, networks, length=subject.num_minibatches)[0])
    return lambda: run(networks)


def learning(subject: Subject) -> Program:
    """All of `PPO.learn`."""
    run = jax.jit(subject.ppo.learn)
    return lambda: run(subject.state, subject.collected, jax.random.key(4), jnp.bool_(True))


class Given(AbstractActorCritic):
    """A network whose outputs are its inputs, so that its loss is nothing but the loss."""

    log_std: Array

    def initial_carry(self) -> None:
        return None

    def __call__(self, obs: dict[str, Array], carry: None) -> tuple[ActorCriticOutput, None]:
        std = jnp.broadcast_to(jnp.exp(self.log_std), obs["mean"].shape)
        return ActorCriticOutput(Gaussian(obs["mean"], std), obs["value"]), None


def activate(pairs: list[tuple[Array, Array]], _: Array) -> list[tuple[Array, Array]]:
    """Hidden layers' activations and the gradients of their inputs, given those of their outputs."""
    outs = [jax.vjp(elu, x) for x, _ in pairs]
    return [(y, pull(d)[0]) for (y, pull), (_, d) in zip(outs, pairs, strict=True)]


def move_outputs(given: PyTree, batch: Minibatch, hyper: PPOHyperparameters) -> PyTree:
    """A step on the outputs of a network by the gradient of their loss, in which its metrics have a part."""

    def loss(given: PyTree) -> tuple[Array, Any]:
        return ppo_loss(given[0], eqx.tree_at(lambda x: (x.obs, x.carry), batch, (given[1], None)), hyper)

    grads, metrics = jax.grad(loss, has_aux=True)(given)
    return jax.tree.map(lambda x, g: x - 1e-3 * g * (1 + 1e-6 * sum(metrics.values())), given, grads)


def optimize(before: UpdateState, optimizer: optax.GradientTransformation) -> UpdateState:
    """An optimizer step with gradients that cost nothing."""
    grads = jax.tree.map(lambda x: 0.1 * x + 1e-3, before.params)
    return optimizer_step(optimizer, before, grads, all_finite(grads))


def advantages(x: Trajectory, hyper: PPOHyperparameters) -> Array:
    """Advantages, not normalised."""
    numbers = {"gamma": hyper.gamma, "gae_lambda": hyper.gae_lambda}
    return generalized_advantages(x.reward, x.value, x.next_value, x.terminated, x.done, **numbers)


def normalize(normalizer: ObservationNormalizer, obs: dict[str, Array]) -> PyTree:
    """Normalised observations, and the statistics after them."""
    return normalizer(obs), updated_normalizer(normalizer, obs, jnp.bool_(True), None)


def parts_of_learning(subject: Subject) -> dict[str, Program]:
    """Parts of `PPO.learn`, each done as often as it does them."""
    ppo, state, trajectory = subject.ppo, subject.state, subject.collected.trajectory
    network: Any = ppo.network
    rollout = ppo._prepare(state.normalizer, state.normalizer, subject.collected, advantages(trajectory, ppo.hyper))
    num_envs, num_steps = subject.shape
    first = jax.tree.map(lambda x: x[:num_envs], rollout)
    order = jax.random.permutation(jax.random.key(5), trajectory.reward.shape[0])
    index_mb = jnp.tile(order.reshape(-1, num_envs), (ppo.hyper.num_passes, 1))

    def repeated(step: Callable[[PyTree, Array], PyTree], start: PyTree) -> Program:
        # What is carried is written in every turn, and nothing can be done once for all.
        run = jax.jit(lambda start: jax.lax.scan(lambda x, index_b: (step(x, index_b), None), start, index_mb)[0])
        return lambda: run(start)

    def once(function: Callable[..., Any], *arguments: Any) -> Program:
        run = jax.jit(function)
        return lambda: run(*arguments)

    key = jax.random.key(6)
    widths = [layer.out_features for stack in (network.actor, network.critic) for layer in stack.layers]
    hidden = [tuple(jax.random.normal(key, (2, num_envs * num_steps, width))) for width in widths]
    outputs = Given(jnp.zeros(trajectory.action.shape[-1])), {"mean": first.action, "value": first.value}
    return {
        "gather": repeated(lambda _, index_b: jax.tree.map(lambda x: x[index_b], rollout), first),
        "activations": repeated(activate, hidden),
        "loss and metrics": repeated(lambda given, _: move_outputs(given, first, ppo.hyper), outputs),
        "optimizer": repeated(lambda before, _: optimize(before, ppo.optimizer), UpdateState.of(state)),
        "advantages": once(lambda x: normalize_advantages(advantages(x, ppo.hyper), None)[0], trajectory),
        "normalization": once(normalize, state.normalizer, trajectory.obs),
    }


def main() -> None:
    """Prints the tables, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", nargs="+", choices=["humanoid", "cheetah"], default=["humanoid", "cheetah"])
    parser.add_argument("--models", nargs="+", choices=["mlp", "gru"], default=["mlp", "gru"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--profile", action="store_true", help="also time parts of learning")
    parser.add_argument("--processor-time", action="store_true", help="parts by processor time, on a busy machine")
    args = parser.parse_args()
    print("| like | model | products, ms | learning, ms | learning / products | the same, processor time |")
    print("|---|---|---|---|---|---|", flush=True)
    profiles: dict[str, dict[str, list[float]]] = {}
    for like, model in itertools.product(args.like, args.models):
        subject = make_subject(like, model)
        programs = {"learning": learning(subject), "products": products(subject)}
        if args.profile:
            programs |= parts_of_learning(subject)
        found = time_in_turn(programs, args.repeats, warm_up=2)
        ms = [spread([1e3 * x.wall for x in found[name]], ".0f") for name in ("products", "learning")]
        of_products = [spread(ratios(found["learning"], found["products"], clock)) for clock in Seconds._fields]
        print("| " + " | ".join([like, model, *ms, *of_products]) + " |", flush=True)
        clock = "processor" if args.processor_time else "wall"
        parts = list(found)[1:]
        profiles[f"{like}, {model}"] = {name: ratios(found[name], found["learning"], clock) for name in parts}
    if args.profile:
        print("\n| part, of learning | " + " | ".join(profiles) + " |")
        print("|---|" + "---|" * len(profiles))
        for name in next(iter(profiles.values())):
            print(f"| {name} | " + " | ".join(spread(found[name], ".3f") for found in profiles.values()) + " |")


if __name__ == "__main__":
    main()
