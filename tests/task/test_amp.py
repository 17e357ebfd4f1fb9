"""Adversarial motion priors, from options to training."""

import dataclasses
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import ksim
from examples.point_mass import PointMass, PointMassConfig, PointMassState
from ksim.config import field
from ksim.errors import ConfigError
from ksim.mdp import observations as obs
from ksim.mdp.noise import UniformNoise
from ksim.motion.files import load_motion
from ksim.ppo.amp import AMP, SAMPLES_PER_ENV, STYLE, AMPState, _put, _style_rewards, _transitions
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.rollout.unroll import unroll
from tests.support.scale import scale
from tests.support.tasks import BipedConfig, BipedTask, train_iterations

SPEED = 0.5
"""Of the reference, in m/s: a mass that moves to the right at a constant speed."""


class Styled(PointMass):
    """The discriminator sees the velocity alone."""

    def _state(self, inner, reward):
        state = super()._state(inner, reward)
        return dataclasses.replace(state, obs=state.obs | {STYLE: state.obs["actor"][1:]})


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class StyledConfig(PointMassConfig, ksim.AMPConfig):
    num_envs: int = 16
    rollout_length: int = 8
    num_batches: int | None = 4
    actor_sizes: list[int] = field([8], help="")
    critic_sizes: list[int] = field([8], help="")
    discriminator_sizes: list[int] = field([16], help="")
    discriminator_batch_size: int = 64
    replay_size: int = 256
    tensorboard: bool = False
    eval_at_end: bool = False
    video: bool = False
    plots: bool = False


class StyledTask(ksim.AMPTask[StyledConfig], ksim.DistributedPPOTask[StyledConfig]):
    def get_environment(self, engine, num_devices):
        return Styled()

    def get_reference(self):
        return np.full((32, 2, 1), SPEED)


def styled(**options):
    return StyledTask(StyledConfig(**options))


@pytest.mark.long
def test_policy_learns_the_style_of_the_reference():
    task = styled(
        num_devices=1,
        num_envs=64,
        rollout_length=16,
        task_weight=0.0,
        style_weight=50.0,
        gamma=0.9,
        learning_rate=1e-3,
        discriminator_learning_rate=1e-3,
        discriminator_steps=16,
        replay_size=8192,
        init_std=0.3,
        entropy_coef=0.0,
    )
    state, _ = train_iterations(task, 80)
    learner = task.layout.first(state.learner)
    # It accelerates where it is slower than the reference, and brakes where it is faster.
    policy = lambda velocity: task.policy_of(learner)({"actor": jnp.array([0.0, velocity])}, None)[
        0
    ].distribution.mode()[0]
    assert policy(SPEED - 1.0) > 0.5
    assert policy(SPEED + 1.0) < -0.5


@pytest.mark.long
def test_step_that_ends_an_episode_earns_its_style_reward_and_is_shown_to_the_discriminator():
    task, env = styled(num_devices=1, discriminator_sizes=[]), Styled()
    state, network = task.initial_learner()
    learner = task.get_learner(network, None)
    assert isinstance(state, AMPState)
    assert isinstance(learner, AMP)
    # Truncated by the next step, terminated by it, neither, and not finite.
    starts = PointMassState(
        jnp.array([0.0, 2.99, 0.0, jnp.nan]), jnp.array([0.9, 1.0, -0.2, 0.5]), jnp.array([49, 3, 3, 3])
    )
    state_e = jax.vmap(env._state)(starts, jnp.zeros(4))
    key_e = jax.random.split(jax.random.key(1), 4)
    policy = task.policy_of(state)
    trajectory, _, _ = unroll(env, policy, state_e, None, key_e, num_steps=2, reached_groups=task.reached_groups)
    np.testing.assert_array_equal(trajectory.done[:, 0], [True, True, False, True])
    np.testing.assert_array_equal(trajectory.terminated[:, 0], [False, True, False, False])
    # A score of half the velocity reached has the reward 1 - (velocity / 2 - 1)^2 / 4.
    score = lambda x: (x.discriminator.score.weight, x.discriminator.score.bias)
    style = eqx.tree_at(score, state.style, (jnp.array([[0.0, 0.5]]), jnp.zeros(1)))
    velocity_e = starts.velocity + 0.1 * jnp.clip(trajectory.action[:, 0, 0], -1, 1)
    expected_e = np.where([True, True, True, False], 1 - (velocity_e / 2 - 1) ** 2 / 4, 0)
    np.testing.assert_allclose(_style_rewards(style, trajectory)[:, 0], expected_e, rtol=1e-5)
    drawn_es2f = learner._sampled(trajectory, jax.random.key(0)).reshape(4, SAMPLES_PER_ENV, 2, 1)
    first_e2f = _transitions(trajectory)[:, 0]
    was_drawn_e = np.any(np.all(drawn_es2f == first_e2f[:, None], axis=(2, 3)), axis=1)
    np.testing.assert_array_equal(was_drawn_e, [True, True, True, False])


def test_custom_rollout_without_the_states_reached_is_an_error():
    class Blind(StyledTask):
        def _rollout(self, *args):
            trajectory, *rest = super()._rollout(*args)
            return dataclasses.replace(trajectory, reached={}), *rest

    with pytest.raises(ConfigError, match=r"Blind\._rollout .* trajectory\.reached\['style'\] is missing instead of"):
        Blind(StyledConfig(num_devices=1)).check()


@pytest.mark.long
def test_task_reward_is_what_metrics_and_evaluations_report():
    both = [train_iterations(styled(num_devices=1, **options), 1)[1][0] for options in ({"style_weight": 0.0}, {})]
    assert both[0]["rollout/reward"] == both[1]["rollout/reward"]
    assert both[0]["loss/value"] != both[1]["loss/value"]


def test_synchronisations_of_an_iteration_are_those_of_ppo_and_of_the_discriminator():
    task = styled(num_devices=1, discriminator_steps=3)
    assert task.learner_info().syncs_per_iteration == task.hyperparameters().syncs_per_iteration + 3


def test_replay_buffer_overwrites_its_oldest_transitions():
    replay, count = jnp.zeros((4, 2, 1)), jnp.int32(0)
    for first in (1, 4, 7):
        new = jnp.arange(first, first + 3.0)[:, None, None] * jnp.ones((3, 2, 1))
        replay, count = _put(replay, count, new, jnp.bool_(True))
    np.testing.assert_array_equal(replay[:, 0, 0], [9, 6, 7, 8])
    assert count == 5  # 9, less the size once the ring is full twice
    same, count = _put(replay, count, new, jnp.bool_(False))
    np.testing.assert_array_equal(same, replay)
    assert count == 5


class StyledBiped(ksim.AMPTask, BipedTask):
    noise = None

    def get_observations(self, physics_model):
        style = {
            "joint_position": obs.JointPosition(noise=self.noise),
            "joint_velocity": obs.JointVelocity(),
            "gravity": obs.ProjectedGravity(),
            "velocity": obs.BaseLinearVelocity(),
            "foot": obs.BodyPosition(bodies=(physics_model.mj_model.body(physics_model.mj_model.nbody - 1).name,)),
        }
        return {"actor": super().get_observations(physics_model), STYLE: style}


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class StyledBipedConfig(BipedConfig, ksim.AMPConfig):
    replay_size: int = 64
    discriminator_batch_size: int = 16


def biped(task_class=StyledBiped, **options):
    return task_class(StyledBipedConfig(num_devices=1, **options))


@pytest.fixture
def recorded(tmp_path):
    """A clip of the biped falling freely in MuJoCo, at the rate of the physics, and the states at the control rate."""
    task = biped()
    assert isinstance(task.environment, MdpEnvironment)
    model = task.environment.engine.model
    mj_model, data = model.mj_model, mujoco.MjData(model.mj_model)
    data.qpos[:] = np.asarray(model.start().qpos)
    data.qpos[2] += 1.0
    data.qvel[:] = np.random.default_rng(0).normal(size=mj_model.nv) * 0.5
    poses, states = [data.qpos.copy()], []
    for step in range(1, 6 * model.decimation + 2):
        mujoco.mj_step(mj_model, data)
        poses.append(data.qpos.copy())
        if step % model.decimation == 1 % model.decimation:
            states.append((data.qpos.copy(), data.qvel.copy(), data.xpos[-1].copy()))
    path = tmp_path / "fall.npz"
    np.savez(path, qpos=np.array(poses), fps=1 / mj_model.opt.timestep)
    return path, model, states


def test_reference_is_what_the_robot_would_have_shown_of_itself(recorded):
    path, model, states = recorded
    pair_n2f = biped(style_clips=[str(path)]).reference
    joints = model.names.joint_qpos()
    for (qpos, qvel, foot), (before_f, _), (_, after_f) in zip(states[1:-1], pair_n2f[1:], pair_n2f[:-1], strict=True):
        np.testing.assert_array_equal(before_f, after_f)
        expected = [*qpos[joints], *qvel[model.names.joint_qvel()]]
        np.testing.assert_allclose(before_f[: len(expected)], expected, atol=2e-3)
        distance = np.linalg.norm(foot - qpos[:3])
        np.testing.assert_allclose(np.linalg.norm(before_f[-3:]), distance, atol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("engine", scale(["mujoco"], ["mujoco", "mjx"]))
def test_robot_trains_on_a_clip(recorded, engine):
    _, history = train_iterations(biped(style_clips=[str(recorded[0])], engine=engine), 2)
    assert all(np.isfinite(metrics["loss/discriminator"]) for metrics in history)
    assert history[-1]["policy/bad_updates"] == 0


def test_noise_in_the_group_is_an_error(recorded):
    class Noisy(StyledBiped):
        noise = UniformNoise(0.1)

    with pytest.raises(ConfigError, match=r"'joint_position' of group 'style' must have no noise"):
        _ = biped(Noisy, style_clips=[str(recorded[0])]).reference


@pytest.mark.parametrize(
    "term",
    [obs.LastAction(), obs.PhaseClock(period_s=0.7), obs.History(obs.JointPosition(), steps=2), obs.JointTorque()],
    ids=lambda term: type(term).__name__,
)
def test_term_that_a_clip_cannot_show_is_an_error(recorded, term):
    class Showing(StyledBiped):
        def get_observations(self, physics_model):
            groups = super().get_observations(physics_model)
            return {**groups, STYLE: {**groups[STYLE], "other": term}}

    with pytest.raises(ConfigError, match=r"'other' of group 'style' must follow from positions and velocities"):
        _ = biped(Showing, style_clips=[str(recorded[0])]).reference


def test_clips_have_the_rate_that_is_given_and_may_be_motions(recorded):
    path, model, _ = recorded
    half = round(0.5 / model.mj_model.opt.timestep)
    slow = biped(style_clips=[str(path)], style_fps=half).reference

    class Loaded(StyledBiped):
        def get_style_clips(self):
            return [load_motion(path, model, fps=half)]

    np.testing.assert_array_equal(slow, biped(Loaded).reference)
    assert len(slow) > 1.5 * len(biped(style_clips=[str(path)]).reference)


def test_clip_of_another_robot_is_an_error(tmp_path):
    np.savez(tmp_path / "clip.npz", qpos=np.zeros((3, 4)), fps=30)
    with pytest.raises(ConfigError, match=r"qpos of shape \(3, 4\) must be of shape \(frames"):
        _ = biped(style_clips=[str(tmp_path / "clip.npz")]).reference


class Plain(StyledTask):
    def get_environment(self, engine, num_devices):
        return PointMass()


class Unknown(StyledTask):
    get_reference = ksim.AMPTask.get_reference


class Forgot(StyledTask):
    def get_discriminator_optimizer(self):
        pass


ERRORS = [
    (biped, {"style_clips": ["nothing.npz"]}, r"Motion file nothing.npz does not exist"),
    (biped, {"style_clips": []}, r"style_clips \(\[\]\) must name at least one file"),
    (biped, {"style_fps": 0.0}, r"style_fps .* must be positive"),
    (biped, {"replay_size": 8},
     r"replay_size \(8\) must hold the 4 transitions of each of num_envs \(8\).*at least 32"),
    (biped, {"discriminator_sizes": [0]}, r"discriminator_sizes .* must be positive widths"),
    (styled, {"num_devices": 2, "discriminator_batch_size": 63},
     r"discriminator_batch_size \(63\) must be divisible.*\(2\).*62, 64"),
    (Plain, {}, r"must have a group 'style'"),
    (Unknown, {}, r"Styled would show of a clip is not known.*get_reference"),
    (Forgot, {}, r"get_discriminator_optimizer must return an optax.GradientTransformation"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "options", "message"), ERRORS)
def test_task_that_cannot_work_is_an_error_before_anything_compiles(make, options, message):
    with pytest.raises(ConfigError, match=message):
        (make(StyledConfig(num_devices=1)) if isinstance(make, type) else make(**options)).check()
