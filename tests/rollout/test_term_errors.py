"""The classic mistakes in the code of terms end in an error that names the term and its author's line."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from ksim import ConfigError
from ksim.mdp import observations, rewards
from ksim.mdp.curriculum import AbstractCurriculum
from ksim.mdp.noise import AbstractNoise
from ksim.train.timing import TracedStep
from tests.support.tasks import BipedConfig, BipedTask


def task_with(**hooks):
    """The biped with some hooks replaced."""
    methods = {name: lambda self, *_, value=value: value for name, value in hooks.items()}
    return type("ChangedTask", (BipedTask,), methods)(BipedConfig(num_devices=1, engine="mujoco"))


def error_of(task):
    """The error of the checks before a training."""

    def check():
        task.check()
        TracedStep(task.layout, task.make_train_step(None), task.initial_state(), donate=False)

    with pytest.raises(ConfigError) as raised:
        check()
    return raised.value


def line_of(words):
    """FILE:LINE, `SOURCE` of the first line of this file that holds the words."""
    lines, _ = inspect.getsourcelines(inspect.getmodule(line_of))
    number, line = next((i, line) for i, line in enumerate(lines, start=1) if words in line)
    return f"{__file__}:{number}, `{line.strip()}`"


class Custom(ksim.AbstractReward):
    """A reward with somebody's code."""

    code: object = None
    scale: float = 1.0

    def __call__(self, context):
        return self.code(context)


def bends_by_if(context):
    if context.physics.qpos[2] > 0.5:  # a traced if
        return 1.0
    return 0.0


# What is written, and what the error says of it.
MISTAKES = {
    "if": (bends_by_if, "if context.physics.qpos[2] > 0.5:  # a traced if", "Use jnp.where(condition, a, b)"),
    "and": (lambda context: 1.0 * (context.terminated and True), "1.0 * (context.terminated and", "jnp.logical_and"),
    "numpy": (lambda context: np.square(context.action).sum(), "np.square(context.action)", "Use jnp in place of np"),
    "index": (lambda context: [0.0, 1.0][context.episode_step], "[0.0, 1.0][context", "Use jnp.asarray(values)[index]"),
    "float": (lambda context: float(context.physics.qpos[0]), "float(context.physics.qpos[0])", "Keep it an array"),
    "mask": (lambda context: jnp.sum(context.action[context.action > 0]), "context.action[context.action > 0]",
        "jnp.where(mask, values, 0.0)"),
    "field of MjData": (lambda context: context.physics.xpos[1, 2], "context.physics.xpos[1, 2]",
        "has no attribute 'xpos'. Declare needs = ('xpos',) in the term's class, and read context.derived('xpos')."),
    "field of the physics": (lambda context: context.qvel[0], "context.qvel[0]", "Read context.physics.qvel."),
    "field of the context": (lambda context: context.acton[0], "context.acton[0]", "Did you mean 'action'"),
    "field of the state": (lambda context: context.physics.qpso[0], "physics.qpso[0]", "Did you mean 'qpos'?"),
    "field of the model": (lambda context: context.model.nmes, "context.model.nmes", "Did you mean 'names'"),
    "shapes": (lambda context: context.action + jnp.ones(9), "context.action + jnp.ones(9)", "Error: "),
    "bug": (lambda context: {}["nowhere"], '{}["nowhere"]', "KeyError: 'nowhere'."),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_in_a_term_is_an_error_with_its_name_its_line_and_the_fix(mistake):
    code, source, advice = MISTAKES[mistake]
    error = error_of(task_with(get_rewards={"mine": Custom(code=code)}))
    assert str(error).startswith(f"Reward 'mine' (Custom) failed at {line_of(source)}: ")
    assert advice in str(error)
    assert error.__cause__ is not None
    assert not isinstance(error.__cause__, ConfigError)


def fail(*_):
    raise ZeroDivisionError("as I wish")


def failing(base, method="__call__", **attributes):
    """A term that fails in one of its methods."""
    members = {name: lambda self, *_: jnp.zeros(1) for name in base.__abstractmethods__}
    fields = {"__annotations__": dict.fromkeys(attributes, object), **attributes}
    return type("Mine", (base,), {**members, **fields, method: lambda self, *_: fail()})()


@pytest.mark.parametrize(
    ("hook", "terms", "named"),
    [
        ("get_observations", {"seen": failing(ksim.AbstractObservation, noise=None)}, "Observation 'seen' (Mine)"),
        ("get_observations", {"seen": failing(ksim.AbstractObservation, "init", noise=None)}, "Observation 'seen'"),
        ("get_observations", {"seen": failing(ksim.AbstractObservation, "update", noise=None)}, "Observation 'seen'"),
        ("get_observations", {"seen": observations.JointPosition(noise=failing(AbstractNoise))}, "'seen' (Mine)"),
        ("get_rewards", {"paid": failing(ksim.AbstractReward, scale=1.0)}, "Reward 'paid' (Mine)"),
        ("get_rewards", {"paid": failing(ksim.AbstractReward, "edit_spec", scale=1.0)}, "Reward 'paid' (Mine)"),
        ("get_commands", {"velocity": failing(ksim.AbstractCommand)}, "Command 'velocity' (Mine)"),
        ("get_terminations", {"ends": failing(ksim.AbstractTermination)}, "Termination 'ends' (Mine)"),
        ("get_resets", {"begins": failing(ksim.AbstractReset)}, "Reset 'begins' (Mine)"),
        ("get_events", {"pushes": failing(ksim.AbstractEvent)}, "Event 'pushes' (Mine)"),
        ("get_events", {"pushes": failing(ksim.AbstractEvent, "overrides")}, "Event 'pushes' (Mine)"),
        ("get_randomizers", {"varies": failing(ksim.AbstractRandomizer)}, "Randomizer 'varies' (Mine)"),
        ("get_action_filters", {"late": failing(ksim.AbstractActionFilter)}, "Action filter 'late' (Mine)"),
        ("get_curricula", {"level": failing(AbstractCurriculum, start=0.0)}, "Curriculum 'level' (Mine)"),
    ],
)
def test_error_in_a_term_of_any_kind_names_the_term(hook, terms, named):
    message = str(error_of(task_with(**{hook: terms})))
    place = line_of('raise ZeroDivisionError("as I wish")')
    assert named in message.partition(" failed at ")[0]
    assert message.endswith(f" failed at {place}: ZeroDivisionError: as I wish.")


def test_error_of_a_command_about_errors_names_it():
    class Mine(ksim.AbstractCommand):
        def __call__(self, context):
            return jnp.zeros(3)

        def errors(self, context, command):
            return fail()

    assert "Command 'velocity' (Mine) failed at " in str(error_of(task_with(get_commands={"velocity": Mine()})))


def test_error_in_actuators_names_them():
    class Mine(ksim.ModelActuators):
        def __call__(self, action, model):
            return fail()

    assert str(error_of(task_with(get_actuators=Mine()))).startswith(f"Actuators (Mine) failed at {__file__}:")


def test_error_in_a_wrapped_term_is_at_its_authors_line():
    wrapped = observations.Delayed(failing(ksim.AbstractObservation, noise=None))
    message = str(error_of(task_with(get_observations={"late": wrapped})))
    assert message.startswith("Observation 'late' (Delayed) failed at " + line_of('ZeroDivisionError("as I wish")'))


@pytest.mark.parametrize("file", ["<ipython-input-3-0123456789ab>", "<stdin>"])
def test_error_in_a_term_that_was_typed_is_at_its_line(file):
    source = "def code(context):\n    return {}['nowhere']\n"
    names = {}
    exec(compile(source, file, "exec"), names)
    message = str(error_of(task_with(get_rewards={"mine": Custom(code=names["code"])})))
    assert message == f"Reward 'mine' (Custom) failed at {file}:2: KeyError: 'nowhere'."


def test_error_in_a_term_of_ksims_own_is_at_its_line():
    message = str(error_of(task_with(get_rewards={"mine": rewards.FeetAirTime(sensors=(), command="velocity")})))
    assert "Reward 'mine' (FeetAirTime) failed at " in message
    assert "ksim/mdp/" in message
