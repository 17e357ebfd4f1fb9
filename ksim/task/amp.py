"""Training a task with adversarial motion priors: a style from reference motions, beside the task's rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from ksim.checks import check_divisible, check_sizes
from ksim.config import field
from ksim.errors import ConfigError
from ksim.learn.learner import AbstractLearner
from ksim.motion.formats import ANGLES, QUATERNIONS
from ksim.nn.actor_critic import AbstractActorCritic
from ksim.ppo.amp import AMP, SAMPLES_PER_ENV, STYLE, AMPHyperparameters, Discriminator
from ksim.ppo.ppo import PPO
from ksim.rollout.mdp_environment import MdpEnvironment
from ksim.rollout.reference import reference_transitions
from ksim.task.config import imported, made_once
from ksim.task.hook_checks import check_optimizer, hook_name
from ksim.task.ppo import PPOConfig, PPOTask

_KEPT = "style."
"""Prefix of the names of the reference's arrays in a checkpoint."""


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class AMPConfig(PPOConfig):
    """Options of adversarial motion priors."""

    help_group: ClassVar[str] = "PPO"

    style_clips: list[str] = field(
        [],
        details="Each is an .npz, .csv or .pkl file as for motion tracking; see docs/algorithms.md for the layouts. "
        "The checkpoint keeps what the discriminator sees of them, so that a run is resumed without the files.",
        help="files of the reference motions whose style is learned",
        fixed=True,
    )
    style_fps: float | None = field(
        None, above=0, help="frames per second of these files; null: as they say", fixed=True
    )
    style_quaternions: str | None = field(
        None, help="order of their quaternions; null: as their layout has it", choices=QUATERNIONS, fixed=True
    )
    style_angles: str | None = field(None, help="unit of their hinge joints; null: rad", choices=ANGLES, fixed=True)
    style_joints: list[str] = field(
        [], help="their joints in their order, where they name none; none: the robot's", fixed=True
    )
    style_weight: float = field(
        2.0,
        least=0,
        details="The style reward is from 0 to 1 and counts as a reward term of this scale, per second.",
        help="weight of the style reward",
    )
    task_weight: float = field(1.0, least=0, help="weight of the task's own rewards, beside the style reward")
    gradient_penalty: float = field(10.0, least=0, help="weight of the discriminator's gradient penalty")
    discriminator_sizes: list[int] = field(
        [256, 128], group="Network", help="sizes of the hidden layers of the discriminator", network=True
    )
    discriminator_learning_rate: float = field(1e-4, above=0, help="step size of the discriminator's Adam")
    discriminator_steps: int = field(4, least=1, help="optimizer steps of the discriminator per iteration")
    discriminator_batch_size: int = field(
        512, least=1, help="transitions of the reference, and as many of the policy, per step, over all devices"
    )
    replay_size: int = field(
        32768, least=1, help="transitions of the policy, new and old, that the discriminator learns from", fixed=True
    )

    def check_shares(self, num_devices: int) -> None:
        super().check_shares(num_devices)
        check_divisible("discriminator_batch_size", self.discriminator_batch_size, "number of devices", num_devices)

    def validate(self) -> None:
        super().validate()
        check_sizes("discriminator_sizes", self.discriminator_sizes)
        if self.replay_size < SAMPLES_PER_ENV * self.num_envs:
            raise ConfigError(
                f"replay_size ({self.replay_size}) must hold the {SAMPLES_PER_ENV} transitions of each of num_envs "
                f"({self.num_envs}) environments that each iteration adds. Set at least "
                f"{SAMPLES_PER_ENV * self.num_envs}."
            )


ConfigT = TypeVar("ConfigT", bound=AMPConfig)


class AMPTask(PPOTask[ConfigT], Generic[ConfigT]):
    """A task that learns to move like reference motions while it earns its rewards.

    `get_observations` returns the discriminator's observations as group `style`: terms without noise that read the
    physics only. The policy's networks and statistics do not use this group.
    """

    reached_groups: ClassVar[tuple[str, ...]] = (STYLE,)

    def get_reference(self) -> Float[np.ndarray, "n 2 f"]:
        """Transitions of the reference motions: features of consecutive states, one control step apart.

        By default the terms of the group `style` along `get_style_clips`. Override it for an environment that is not
        made of terms.
        """
        env = self.environment
        if not isinstance(env, MdpEnvironment):
            raise ConfigError(
                f"What {type(env).__name__} would show of a clip is not known: it is not made of terms. Override "
                f"{type(self).__name__}.get_reference."
            )
        clips = self.get_style_clips()
        if not clips:
            raise ConfigError("style_clips ([]) must name at least one file of a reference motion.")
        from ksim.motion.files import load_motion, physics_steps  # noqa: PLC0415 - SciPy is slow to import

        model, config = env.engine.model, self.config
        said = {name: getattr(config, f"style_{name}") for name in ("fps", "quaternions", "angles")}
        said["joints"] = config.style_joints or None
        motions = [load_motion(clip, model, **said) if isinstance(clip, str | Path) else clip for clip in clips]
        return reference_transitions(env, STYLE, [physics_steps(motion, model) for motion in motions])

    def get_style_clips(self) -> Sequence[Any]:
        """Reference motions, as paths or loaded motions: by default the option `style_clips`.

        If a file names its joints differently than the robot does, load it by `ksim.motion.files.load_motion` with
        `joint_names` and return the motion.
        """
        return self.config.style_clips

    def get_discriminator_optimizer(self) -> optax.GradientTransformation:
        """Adam after clipping by the global norm."""
        config = self.config
        return optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm), optax.adam(config.discriminator_learning_rate)
        )

    def get_learner(self, network: AbstractActorCritic, axis_name: str | None) -> AbstractLearner:
        ppo = super().get_learner(network, axis_name)
        assert isinstance(ppo, PPO)
        if STYLE not in self.obs_sizes:
            raise ConfigError(
                f"get_observations must have a group {STYLE!r} with what the discriminator sees of a state, but has "
                f"{', '.join(self.obs_sizes)}. Add it, for example with JointPosition and JointVelocity."
            )
        optimizer = self.get_discriminator_optimizer()
        check_optimizer(hook_name(self, "get_discriminator_optimizer"), optimizer)
        parts = self.learner_parts(network, axis_name)
        parts["obs_sizes"] = self.obs_sizes
        return AMP(
            **parts,
            ppo=ppo,
            hyper=self.amp_hyperparameters(),
            make_discriminator=lambda key: Discriminator(
                self.obs_sizes[STYLE], self.config.discriminator_sizes, key=key
            ),
            optimizer=optimizer,
            # Loaded when training is traced: evaluating or exporting a policy needs no clips.
            reference=lambda: jnp.asarray(self.reference),
        )

    def learner_parts(
        self, network: AbstractActorCritic, axis_name: str | None, *, without: Sequence[str] = ()
    ) -> dict[str, Any]:
        return super().learner_parts(network, axis_name, without=(*without, STYLE))

    def amp_hyperparameters(self) -> AMPHyperparameters:
        """Hyperparameters of AMP, without those of PPO."""
        config = self.config
        return AMPHyperparameters(
            style_weight=config.style_weight * config.ctrl_dt,
            task_weight=config.task_weight,
            gradient_penalty=config.gradient_penalty,
            num_steps=config.discriminator_steps,
            batch_size=config.discriminator_batch_size,
            replay_size=config.replay_size,
        )

    def network_sizes(self) -> tuple[str, ...]:
        return (*super().network_sizes(), "discriminator_sizes")

    @made_once
    def reference(self) -> Float[np.ndarray, "n 2 f"]:
        """The checked result of `get_reference`, computed once; for a resumed run, the reference in the checkpoint.

        Raises:
            ConfigError: It cannot be computed, or has the wrong shape.
        """
        kept = imported("ksim.checkpoint.options:kept_in_run")(self, _KEPT)
        found = np.asarray(self.get_reference() if kept is None else kept.arrays["reference"], np.float32)
        size = self.obs_sizes[STYLE]
        if found.ndim != 3 or found.shape[1:] != (2, size) or not len(found):
            raise ConfigError(
                f"The reference must be transitions of shape (n, 2, {size}), as observation group {STYLE!r} has {size} "
                f"numbers, but has shape {found.shape}."
            )
        return found

    def kept_arrays(self) -> Mapping[str, np.ndarray]:
        return {f"{_KEPT}reference": self.reference}
