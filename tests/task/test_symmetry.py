"""symmetry=augment and symmetry=loss, from options to training."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from ksim.errors import ConfigError
from ksim.mirror import Mirror, SignedPermutation
from ksim.ppo.losses import Minibatch, ppo_loss
from ksim.ppo.symmetry import SymmetricLoss
from tests.support.hyperparameters import make_hyper
from tests.support.scale import only_in_full
from tests.support.still import Memoryless
from tests.support.tasks import WITHOUT_REPORTS, BipedConfig, BipedTask, point_mass_task, train_iterations

# Two observations and two actions that are each other's images.
SWAP = SignedPermutation.of([1, 0], [1, 1])
MIRROR = Mirror({"actor": SWAP}, SWAP)


class Linear(Memoryless):
    """The action is `gain` times the observation, component by component."""

    gain: jax.Array

    def __call__(self, obs, carry):
        mean = self.gain * obs["actor"]
        return ksim.ActorCriticOutput(ksim.Gaussian(mean, jnp.ones(2)), jnp.sum(mean)), None


def minibatch(loss_inputs):
    obs_et2 = jnp.array([[[1.0, 3.0]]])
    one_et = jnp.ones((1, 1))
    return Minibatch(
        obs={"actor": obs_et2},
        carry=None,
        done=jnp.zeros((1, 1), bool),
        action=obs_et2 + 0.5,
        log_prob=-2 * one_et,
        value=one_et,
        advantage=one_et,
        value_target=2 * one_et,
        loss_inputs=loss_inputs,
    )


IMAGES = {"actor": jnp.array([[[3.0, 1.0]]])}


def test_loss_adds_the_squared_gap_between_the_action_for_the_image_and_the_image_of_the_action():
    network, hyper = Linear(jnp.array([1.0, 2.0])), make_hyper()
    # Here (1, 6), whose image is (6, 1); for the image (3, 1) the action is (3, 2): gaps of 3 and 1, mean square 5.
    loss, metrics = SymmetricLoss(lambda: MIRROR, "loss", coef=0.1)(network, minibatch(IMAGES), hyper)
    plain, _ = ppo_loss(network, minibatch(None), hyper)
    np.testing.assert_allclose(metrics["loss/symmetry"], 5.0)
    np.testing.assert_allclose(loss, plain + 0.5, rtol=1e-6)


def test_loss_of_a_symmetric_policy_is_that_of_ppo():
    network, hyper = Linear(jnp.array([2.0, 2.0])), make_hyper()
    loss, metrics = SymmetricLoss(lambda: MIRROR, "loss")(network, minibatch(IMAGES), hyper)
    np.testing.assert_allclose(metrics["loss/symmetry"], 0.0)
    np.testing.assert_allclose(loss, ppo_loss(network, minibatch(None), hyper)[0])


def test_augmented_loss_is_the_mean_of_that_of_the_steps_and_of_their_images():
    network, hyper = Linear(jnp.array([1.0, 2.0])), make_hyper()
    steps = minibatch(None)
    images = dataclasses.replace(steps, obs=IMAGES, action=steps.action[..., ::-1])
    expected = (ppo_loss(network, steps, hyper)[0] + ppo_loss(network, images, hyper)[0]) / 2
    loss, metrics = SymmetricLoss(lambda: MIRROR, "augment")(network, minibatch(IMAGES), hyper)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    # The learning rate follows the steps' own KL, whatever the policy's asymmetry.
    for name, part in (("policy/kl", steps), ("policy/kl_of_images", images)):
        np.testing.assert_allclose(metrics[name], ppo_loss(network, part, hyper)[1]["policy/kl"])
    assert metrics["policy/kl"] != metrics["policy/kl_of_images"]


def biped(**options):
    return BipedTask(BipedConfig(**(WITHOUT_REPORTS | options)))


@pytest.mark.long
@only_in_full("as mirrored batches, which CI tries")
def test_loss_makes_the_policy_its_own_mirror_image():
    gaps = {}
    for coef in (0.0, 10.0):
        task = biped(symmetry="loss", symmetry_coef=coef, num_devices=1, num_passes=8)
        _, history = train_iterations(task, 8)
        gaps[coef] = history[-1]["loss/symmetry"]
    assert gaps[10.0] < 0.2 * gaps[0.0]


def test_start_table_shows_the_mirror():
    start = biped(symmetry="augment", num_devices=1).learner_info().start
    assert start == {"mirror": "left_hip = right_hip (mirrored motions are off by 0.0%)"}
    assert biped(num_devices=1).learner_info().start == {}


def mirrored(change):
    """A task with its own mirror, made from the one that is found."""

    class Mirrored(BipedTask):
        def get_mirror(self):
            return change(super().get_mirror())

    return Mirrored(BipedConfig(symmetry="augment", num_devices=1))


ERRORS = {
    "network with memory": (
        lambda: biped(symmetry="augment", model="gru", num_devices=1),
        r"symmetry needs a network without memory.*model=mlp"),
    "environment that is not made of terms": (
        lambda: point_mass_task(symmetry="augment", num_devices=1),
        r"The mirror image of PointMass is not known.*Override get_mirror"),
    "mirror without a group": (
        lambda: mirrored(lambda _: Mirror({}, SWAP)),
        r"must have an image of observation group 'actor', of \d+ numbers, but has none"),
    "mirror of another size": (
        lambda: mirrored(lambda _: Mirror({"actor": SWAP, "critic": SWAP}, SWAP)),
        r"image of observation group 'actor', of \d+ numbers, but has one of 2"),
    "mirror that is no involution": (
        lambda: mirrored(lambda found: dataclasses.replace(found, action=SignedPermutation.of([1, 0], [1, -1]))),
        r"The mirror image of the mirror image of actions must be actions again"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS.values(), ids=ERRORS)
def test_task_without_a_mirror_that_fits_is_an_error(make, message):
    with pytest.raises(ConfigError, match=message):
        make().learner_info()
