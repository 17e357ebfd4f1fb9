"""The contract of other packages' environments; KSIM_TESTS=full tries all of Playground's dm_control and of Brax."""

import functools

import jax
import numpy as np
import pytest

from ksim.envs.brax import BraxConfig, BraxTask
from ksim.envs.playground import PlaygroundConfig, PlaygroundTask
from tests.envs.test_playground import SMALL
from tests.support.engines import WARP
from tests.support.scale import scale
from tests.support.tasks import train_iterations

# The packages emit many warnings of their own.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]

PLAYGROUND = (
    *("AcrobotSwingup", "AcrobotSwingupSparse", "BallInCup", "CartpoleBalance", "CartpoleBalanceSparse"),
    *("CartpoleSwingup", "CartpoleSwingupSparse", "CheetahRun", "FingerSpin", "FingerTurnEasy", "FingerTurnHard"),
    *("FishSwim", "HopperHop", "HopperStand", "HumanoidRun", "HumanoidStand", "HumanoidWalk", "PendulumSwingup"),
    *("PointMass", "ReacherEasy", "ReacherHard", "SwimmerSwimmer6", "WalkerRun", "WalkerStand", "WalkerWalk"),
)
BRAX = (
    *("ant", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_double_pendulum", "inverted_pendulum"),
    *("pusher", "reacher", "walker2d"),
)
BROKEN = {
    "fast": "a fake that Brax's own tests step, without physics",
    "swimmer": "takes the back end `generalized` alone, which calls `clip(a_min=...)`: JAX has removed this argument",
}
"""Environments of Brax 0.14 that cannot be trained, for a reason of its own."""
ONE_ITERATION = ("ant", "humanoid")
"""Environments whose solver stops after one iteration: Warp's is as far from the solution as MJX's, but elsewhere."""
BACKENDS = ("mjx", "generalized", "positional", "spring")
STEPS, COMPARED = 10, 5
"""Control steps that are played, and over which two engines are compared: a contact parts them after a while."""


def playground_task(name, engine):
    pytest.importorskip("mujoco_playground", reason="needs playground: pip install -e '.[playground]'")
    return PlaygroundTask(name, PlaygroundConfig(**SMALL, engine=engine))


def brax_task(name, backend, engine):
    pytest.importorskip("brax.envs", reason="needs brax: pip install -e '.[brax]'")
    return BraxTask(name, BraxConfig(**SMALL, env_options=[f"backend={backend}"], engine=engine))


def player(env):
    """A function that plays an episode of two envs under random actions: observations, rewards and ends."""
    rng = np.random.default_rng(0)
    action_te = rng.uniform(-1, 1, (STEPS, 2, env.action_size)).astype(np.float32)
    traces = []

    def traced(state, action):
        traces.append(state)
        return env.step(state, action)

    reset, step = jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(traced))

    def play():
        state = start = reset(jax.random.split(jax.random.key(7), 2))
        steps = []
        for action_e in action_te:
            state = step(state, action_e)
            steps.append((state.obs, state.reward, state.terminated))
        assert len(traces) == 1
        return jax.tree.map(np.asarray, start.obs), jax.tree.map(lambda *x: np.stack(x), *steps)

    return play


@functools.cache
def played_by_mjx(make, *name):
    """The trajectory of an environment in MJX, compiled once for all engines that are compared with it."""
    return player(make(*name, "mjx").environment)()


def check_training(task):
    play = player(task.environment)
    played, again = play(), play()
    for first, second in zip(jax.tree.leaves(played), jax.tree.leaves(again), strict=True):
        assert np.isfinite(first).all()
        np.testing.assert_array_equal(first, second)
    _, history = train_iterations(task, 5)
    assert all(np.isfinite(metrics["loss/total"]) for metrics in history)
    return played


def check_in_place_of_mjx(task, engine):
    assert task.environment.engine_name == engine
    assert task.environment.fields_missed() == []
    return check_training(task)


def check_same(played, other):
    (start, (obs, reward, _)), (other_start, (other_obs, other_reward, _)) = played, other
    for group in obs:
        np.testing.assert_allclose(start[group], other_start[group], rtol=1e-3, atol=1e-3)
        here, there = obs[group][:COMPARED], other_obs[group][:COMPARED]
        np.testing.assert_allclose(here, there, rtol=1e-2, atol=1e-2 * np.abs(there).max())
    np.testing.assert_allclose(reward[:COMPARED], other_reward[:COMPARED], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("engine", scale(["mujoco"], ["mujoco", WARP]))
@pytest.mark.parametrize("name", scale(("CartpoleBalance",), PLAYGROUND))
def test_environment_of_playground_trains_in_another_engine_on_the_trajectories_of_mjx(name, engine):
    played = check_in_place_of_mjx(playground_task(name, engine), engine)
    check_same(played, played_by_mjx(playground_task, name))


@pytest.mark.parametrize("engine", scale(["mujoco"], ["mujoco", WARP]))
@pytest.mark.parametrize("name", scale(("inverted_pendulum",), BRAX))
def test_environment_of_brax_trains_in_another_engine_on_the_trajectories_of_mjx(name, engine):
    played = check_in_place_of_mjx(brax_task(name, "mjx", engine), engine)
    if engine != "warp" or name not in ONE_ITERATION:
        check_same(played, played_by_mjx(brax_task, name, "mjx"))


@pytest.mark.parametrize(("name", "backend"), scale([], [(x, y) for x in BRAX for y in BACKENDS[1:]]))
def test_environment_of_brax_trains_on_a_back_end_of_its_own(name, backend):
    check_training(brax_task(name, backend, "auto"))


def test_every_environment_of_the_packages_is_tried_or_its_failure_is_known():
    brax = pytest.importorskip("brax.envs", reason="needs brax: pip install -e '.[brax]'")
    playground = pytest.importorskip("mujoco_playground", reason="needs playground: pip install -e '.[playground]'")
    assert {*BRAX, *BROKEN} == {*brax._envs}
    assert {*PLAYGROUND} == {*playground.registry.dm_control_suite.ALL_ENVS}
