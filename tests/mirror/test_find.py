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
    none = {kind: {} for kind in ("rewards", "terminations", "resets", "events", "randomizers")}
    mdp = Mdp(observations={"actor": terms}, commands=asked, actuators=ACTUATORS, **none)
    spec = mujoco.MjSpec.from_string(text)
    return find_mirror(mdp, compile_model(spec, dt=0.004, ctrl_dt=0.02, edits=[mdp.edit_spec]))


def test_images_of_known_observations_are_those_worked_out_by_hand():
    mirror = found(
        {
            "gravity": observations.ProjectedGravity(), "gyro": observations.ImuGyro(site="imu"),
            "joints": observations.JointPosition(), "command": observations.CommandValue(command="velocity"),
            "heading": observations.CommandValue(command="heading"),
            "posture": observations.CommandValue(command="posture"), "clock": observations.PhaseClock(),
            "together": observations.PhaseClock(side_offset=0.0), "contact": observations.FootContact(sensors=TOUCH),
            "height": observations.BaseHeight(), "action": observations.LastAction(),
        }
    )  # fmt: skip
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


@pytest.mark.long
def test_every_observation_has_an_image_or_is_known_to_have_none():
    extra = {observations.HeadingError: {"command": "heading"}, observations.ImuGyro: {"site": "imu"}}
    terms = {term.__name__: term(**(ARGUMENTS.get(term, {}) | extra.get(term, {}))) for term in ALL}
    image = found(terms).observations["actor"]
    assert image.is_involution
    assert np.any(image.sign < 0)


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


def test_constants_of_a_robot_that_moves_in_a_plane_are_named():
    mirror = found({"feet": observations.BodyOrientationInBase(bodies=("left_leg", "right_leg"))})
    assert "nothing moves, so taken as constants: actor/feet[" in mirror.describe()


def seen(name, function):
    """Finds the image of an observation of this name and value."""

    class Seen(AbstractObservation):
        def __call__(self, context):
            return function(context.physics.qpos)

    return lambda: found({name: Seen()})


HANDED = jnp.array([1.0, 2.0])
GRAVITY = {"gravity": observations.ProjectedGravity()}
HEAVY = BIPED.replace('size=".03" mass="1"', 'size=".03" mass="9"', 1)
CROOKED = with_knees(BIPED, left="0 0 -.1", right=".1 0 -.1")
ERRORS = {
    "motion": (lambda: found({"phase": observations.MotionPhase(command="motion")}, {"motion": MotionCommand(MOTIONS)}),
        r"Command 'motion' \(MotionCommand\) does not say what it asks of a mirrored"),
    "command that does not say what it asks of a mirrored robot": (lambda: found(GRAVITY, COMMANDS),
        r"Command 'joints' \(JointPoseCommand\) does not say what it asks"),
    "observation of one side": (lambda: found({"left": observations.JointPosition(joints=("left_hip",))}),
        r"Component 0 of observation 'actor/left' has no mirror image"),
    "observation that is wrong in the mirror": (seen("handed", lambda qpos: qpos[7:9] * HANDED),
        r"Component 0 of observation 'actor/handed' has no mirror image"),
    "observation that is wrong in the mirror by little of its mean": (
        seen("far", lambda qpos: 10.0 + qpos[7:9] * HANDED),
        r"Component 0 of observation 'actor/far' has no mirror image"),
    "observation that is not finite": (seen("divided", lambda qpos: qpos[:1] / 0.0),
        r"Component 0 of observation 'actor/divided' is not finite"),
    "robot whose left is heavier than its right": (lambda: found(GRAVITY, text=HEAVY),
        r"does not move as its mirror image does: in 0.05 s, .* off by \d+%"),
    "what never happens and has no place in the mirror": (
        lambda: found({"knees": observations.FootForce(sensors=("left_knee", "right_knee"))}, text=CROOKED),
        r"component 0 of observation 'actor/knees' is not known: it depends on cont"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS.values(), ids=ERRORS)
def test_without_an_image_is_an_error_that_names_it(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
