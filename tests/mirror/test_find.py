"""The mirror image of what policies see, found by asking each term."""

import inspect

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from ksim.errors import ConfigError
from ksim.mdp import commands, observations
from ksim.mdp.commands import MotionCommand
from ksim.mdp.observations import AbstractObservation
from ksim.mirror import find_mirror
from ksim.physics import compile_model
from ksim.rollout.mdp_environment import Mdp
from tests.support.arguments import ARGUMENTS, FEET, MOTIONS, TOUCH
from tests.support.robots import ACTUATORS, BIPED

COMMANDS = {
    "velocity": commands.VelocityCommand(),
    "heading": commands.HeadingCommand(),
    "posture": commands.RollPitchCommand(),
    "height": commands.HeightCommand(height=(0.4, 0.5)),
    "joints": commands.JointPoseCommand(),
}
BY_DEFAULT = {name: COMMANDS[name] for name in ("velocity", "heading", "posture", "height")}
# The offsets of a GaitClock count from the first foot, which is on one side.
ALL = [
    x
    for x in vars(observations).values()
    if isinstance(x, type) and issubclass(x, AbstractObservation) and not inspect.isabstract(x)
    if x is not observations.GaitClock
    if "motion" not in ARGUMENTS.get(x, {}).values()
]


def found(terms, asked=BY_DEFAULT, text=BIPED):
    mdp = Mdp(
        observations={"actor": terms},
        rewards={},
        commands=asked,
        terminations={},
        resets={},
        events={},
        randomizers={},
        actuators=ACTUATORS,
    )
    return find_mirror(
        mdp, compile_model(mujoco.MjSpec.from_string(text), dt=0.004, ctrl_dt=0.02, edits=[mdp.edit_spec])
    )


def test_images_of_known_observations_are_those_worked_out_by_hand():
    mirror = found(
        {
            "gravity": observations.ProjectedGravity(),
            "gyro": observations.ImuGyro(site="imu"),
            "joints": observations.JointPosition(),
            "command": observations.CommandValue(command="velocity"),
            "heading": observations.CommandValue(command="heading"),
            "posture": observations.CommandValue(command="posture"),
            "clock": observations.PhaseClock(),
            "together": observations.PhaseClock(side_offset=0.0),
            "contact": observations.FootContact(sensors=TOUCH),
            "height": observations.BaseHeight(),
            "action": observations.LastAction(),
        }
    )
    seen = np.arange(1.0, 22.0)
    by_hand = [
        *(1, -2, 3),  # a vector
        *(-4, 5, -6),  # an axis
        *(8, 7),  # legs
        *(9, -10, -11),  # forward, leftward, yaw rate
        -12,
        *(-13, 14),  # roll and pitch
        *(-15, -16),  # half a period later
        *(17, 18),
        *(20, 19),
        21,
    ]
    np.testing.assert_allclose(mirror.observe({"actor": np.append(seen, [22, 23])})["actor"], [*by_hand, 23, 22])
    np.testing.assert_allclose(mirror.action(np.array([1.0, 2.0])), [2, 1])
    assert mirror.describe() == "left_hip = right_hip (mirrored motions are off by 0.0%)"


def test_history_of_many_steps_is_mirrored_step_by_step():
    mirror = found({"past": observations.History(observations.JointPosition(), steps=12)})
    index = mirror.observations["actor"].index
    np.testing.assert_array_equal(index, np.arange(24).reshape(12, 2)[:, ::-1].ravel())


def test_height_scan_is_mirrored_from_left_to_right():
    # Rows along x, in each from the right to the left.
    scan = observations.HeightScan(size=(0.2, 0.4), spacing=0.2)
    index = found({"scan": scan}).observations["actor"].index
    np.testing.assert_array_equal(index, np.arange(6).reshape(2, 3)[:, ::-1].ravel())


def test_every_observation_has_an_image_or_is_known_to_have_none():
    extra = {observations.HeadingError: {"command": "heading"}, observations.ImuGyro: {"site": "imu"}}
    terms = {term.__name__: term(**(ARGUMENTS.get(term, {}) | extra.get(term, {}))) for term in ALL}
    image = found(terms).observations["actor"]
    assert image.is_involution
    assert np.any(image.sign < 0)


def test_motion_has_no_image_which_is_an_error_that_names_it():
    with pytest.raises(
        ConfigError, match=r"Command 'motion' \(MotionCommand\) does not say what it asks of a mirrored"
    ):
        found({"phase": observations.MotionPhase(command="motion")}, asked={"motion": MotionCommand(MOTIONS)})


def test_observation_of_one_side_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"Component 0 of observation 'actor/left' has no mirror image"):
        found({"left": observations.JointPosition(joints=("left_hip",))})


def test_observation_that_is_wrong_in_the_mirror_is_found():
    class Handed(AbstractObservation):
        def __call__(self, context):
            return context.physics.qpos[7:9] * jnp.array([1.0, 2.0])

    with pytest.raises(ConfigError, match=r"Component 0 of observation 'actor/handed' has no mirror image"):
        found({"handed": Handed()})


def test_robot_whose_left_is_heavier_than_its_right_is_an_error():
    heavy = BIPED.replace('size=".03" mass="1"', 'size=".03" mass="9"', 1)
    with pytest.raises(ConfigError, match=r"does not move as its mirror image does: in 0.05 s, .* off by \d+%"):
        found({"gravity": observations.ProjectedGravity()}, text=heavy)


def test_command_that_does_not_say_what_it_asks_of_a_mirrored_robot_is_an_error():
    with pytest.raises(ConfigError, match=r"Command 'joints' \(JointPoseCommand\) does not say what it asks"):
        found({"gravity": observations.ProjectedGravity()}, COMMANDS)


def test_feet_in_another_order_are_still_each_others_images():
    # Legs that also move sideways.
    rolling = BIPED.replace('axis="0 1 0"', 'axis="1 1 0"', 1).replace('axis="0 1 0"', 'axis="-1 1 0"')
    mirror = found({"feet": observations.SitePosition(sites=FEET[::-1])}, text=rolling)
    np.testing.assert_allclose(mirror.observe({"actor": np.arange(1.0, 7.0)})["actor"], [4, -5, 6, 1, -2, 3])


KNEES = "".join(f'<touch name="{side}_knee" site="{side}_knee"/>' for side in ("left", "right"))
"""Touch sensors on legs that cannot touch anything."""


def with_knees(text, left="0 0 -.1", right="0 0 -.1"):
    for side, place in (("left", left), ("right", right)):
        site = f'<site name="{side}_knee" pos="{place}" size=".05"/>'
        text = text.replace(f'<site name="{side}_foot"', f'{site}<site name="{side}_foot"')
    return text.replace("<sensor>", f"<sensor>{KNEES}")


class BeyondLimit(AbstractObservation):
    def __call__(self, context):
        return 1.0 * (context.physics.qpos[7:9] > jnp.pi / 3)


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (observations.FootContact(sensors=TOUCH), BIPED.replace('pos="0 0 .5"', 'pos="0 0 .9"')),
        (observations.FootForce(sensors=("left_knee", "right_knee")), with_knees(BIPED)),
        (observations.FootAirTime(sensors=("left_knee", "right_knee")), with_knees(BIPED)),
        (BeyondLimit(), BIPED),
    ],
    ids=["feet above the ground", "knees that cannot touch", "time since they touched", "joints beyond their limits"],
)
def test_what_seldom_happens_is_mirrored_from_left_to_right(term, text):
    mirror = found({"seldom": term}, text=text)
    np.testing.assert_array_equal(mirror.observations["actor"].index, [1, 0])
    np.testing.assert_array_equal(mirror.observations["actor"].sign, [1, 1])
    assert "constants" not in mirror.describe()


def test_what_never_happens_and_has_no_place_in_the_mirror_is_an_error():
    crooked = with_knees(BIPED, left="0 0 -.1", right=".1 0 -.1")
    with pytest.raises(ConfigError, match=r"component 0 of observation 'actor/knees' is not known: it depends on cont"):
        found({"knees": observations.FootForce(sensors=("left_knee", "right_knee"))}, text=crooked)


def test_constants_of_a_robot_that_moves_in_a_plane_are_named():
    mirror = found({"feet": observations.BodyOrientationInBase(bodies=("left_leg", "right_leg"))})
    assert "nothing moves, so taken as constants: actor/feet[" in mirror.describe()


def test_large_mean_does_not_hide_that_a_component_has_no_image():
    class FarAway(AbstractObservation):
        def __call__(self, context):
            return 10.0 + context.physics.qpos[7:9] * jnp.array([1.0, 2.0])

    with pytest.raises(ConfigError, match=r"Component 0 of observation 'actor/far' has no mirror image"):
        found({"far": FarAway()})


def test_observation_that_is_not_finite_is_an_error_that_names_it():
    class Divided(AbstractObservation):
        def __call__(self, context):
            return context.physics.qpos[:1] / 0.0

    with pytest.raises(ConfigError, match=r"Component 0 of observation 'actor/divided' is not finite"):
        found({"divided": Divided()})
