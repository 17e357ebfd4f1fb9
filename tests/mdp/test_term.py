import copy
import dataclasses
import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ksim
from ksim.errors import ConfigError
from ksim.mdp import curriculum, noise, observations, rewards, terminations
from ksim.mdp.noise import AbstractNoise, GaussianNoise
from ksim.mdp.rewards import AbstractReward
from ksim.mdp.term import named_terms, snake_case
from tests.support.contexts import asking, make_context


@pytest.mark.parametrize(
    ("name", "expected"), [("Alive", "alive"), ("TrackYawRate", "track_yaw_rate"), ("Imu2Reading", "imu2_reading")]
)
def test_snake_case_when_words_begin_puts_an_underscore(name, expected):
    assert snake_case(name) == expected


def test_named_terms_when_given_a_sequence_names_them_by_class_in_order():
    named = named_terms([rewards.TorqueEffort(), rewards.Alive()], AbstractReward)
    assert list(named) == ["torque_effort", "alive"]


def test_named_terms_when_given_a_mapping_keeps_its_names():
    slow, fast = rewards.Alive(scale=1.0), rewards.Alive(scale=2.0)
    assert named_terms({"slow": slow, "fast": fast}, AbstractReward) == {"slow": slow, "fast": fast}


def test_command_when_known_is_its_value():
    np.testing.assert_array_equal(make_context(commands=asking(forward=0.5)).command("velocity"), [0.5, 0, 0])


def test_sensor_when_known_is_its_readings():
    np.testing.assert_array_equal(make_context(sensors={"gyro": [1, 2, 3]}).sensor("gyro"), [1, 2, 3])


def test_term_without_memory_has_none_and_keeps_none():
    term = rewards.Alive()
    assert term.init(make_context()) is None
    assert term.update(make_context()) is None


def test_dt_is_that_of_the_control_step():
    # The biped's physics steps by 0.004 s, its control by 0.02 s.
    assert make_context().dt == 0.02


# Without the tests' type checks, as for a user: they would speak first.
NAMED = lambda terms: inspect.unwrap(named_terms)(terms, AbstractReward)
ASKED = asking() | {"height": jnp.zeros(1)}
ERRORS = {
    "term of another kind": (lambda: NAMED([rewards.Alive(), terminations.TimeLimit()]),
        r"'time_limit' must be .*AbstractReward, not TimeLimit"),
    "term of another kind under its own name": (lambda: NAMED({"end": terminations.TimeLimit()}),
        r"'end' must be .*AbstractReward, not TimeLimit"),
    "class in a sequence": (lambda: NAMED([rewards.Alive]), r"Alive must be an instance: write Alive\(\)\."),
    "class in a mapping": (lambda: NAMED({"alive": rewards.Alive}), r"Alive must be an instance: write Alive\(\)\."),
    "two of one name": (lambda: NAMED([rewards.Alive(), rewards.Alive(scale=2.0)]),
        r"Two terms are named 'alive'.*mapping"),
    "unknown command": (lambda: make_context(commands=ASKED).command("velocty"),
        r"no command 'velocty'.*Did you mean 'velocity'"),
    "no commands": (lambda: make_context().command("velocity"), r"no command 'velocity'.*none"),
    "field that is not carried": (lambda: make_context().derived("xpos"),
        r"does not carry 'xpos'\. Add needs = \('xpos',\)"),
    "unknown sensor": (lambda: make_context().sensor("gyro_"), r"no sensor 'gyro_'\. Did you mean 'gyro'"),
    "sensor like none": (lambda: make_context().sensor("barometer"),
        r"no sensor 'barometer'\. Known names: gyro, left_touch, right_touch"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), ERRORS.values(), ids=ERRORS)
def test_is_an_error_that_says_the_fix(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rewards.Alive(sclae=2.0), "Alive has no argument 'sclae'. Did you mean 'scale'?"),
        (lambda: rewards.TrackYawRate(comand="v"), "TrackYawRate has no argument 'comand'. Did you mean 'command'?"),
        (lambda: rewards.TrackYawRate(), "TrackYawRate(command, std, scale): missing"),
        (lambda: rewards.Alive(1.0, 2.0), "Alive(scale): too many positional arguments"),
        (lambda: rewards.Alive(1.0, scale=2.0), "Alive(scale): multiple values"),
        (lambda: noise.UniformNoise(magnitud=0.1), "UniformNoise has no argument 'magnitud'. Did you mean 'magn"),
        (lambda: curriculum.LinearCurriculum(end_iter=3), "LinearCurriculum has no argument 'end_iter'. Did you mean"),
        (lambda: ksim.PositionActuators(kpp=1.0), "PositionActuators has no argument 'kpp'. Did you mean 'kp'"),
    ],
)
def test_wrong_argument_of_a_term_is_an_error_with_the_near_misses(make, message):
    with pytest.raises(ConfigError) as raised:
        make()
    assert str(raised.value).startswith(message)


def test_term_with_an_init_of_its_own_takes_its_arguments():
    class Mine(rewards.AbstractReward):
        scale: float

        def __init__(self, weight, *others, **options):
            self.scale = weight + len(others) + len(options)

        def __call__(self, context):
            return jnp.zeros(())

    assert Mine(1.0, 0, 0, anything=0).scale == 4.0
    with pytest.raises(ConfigError, match="missing a required argument: 'weight'"):
        Mine()


def test_term_survives_copies_and_jax():
    term = rewards.TrackYawRate(command="velocity", std=0.5)
    assert copy.deepcopy(copy.copy(term)) == term
    assert pickle.loads(pickle.dumps(term)) == term
    assert jax.tree.map(lambda x: x, term) == term
    assert dataclasses.replace(term, std=0.1).std == 0.1


def test_observation_that_declares_noise_again_takes_its_own_arguments_by_place():
    class Mine(observations.AbstractObservation):
        site: str
        noise: AbstractNoise | None = GaussianNoise(0.1)

        def __call__(self, context):
            return jnp.zeros(1)

    assert Mine("imu").site == "imu"
    assert Mine("imu").noise == GaussianNoise(0.1)
    assert Mine("imu", noise=None).noise is None


def test_terms_within_a_term_are_walked_from_the_outside():
    scan = observations.BodyPosition(bodies=("trunk",))
    delayed = observations.Delayed(scan)
    assert list(observations.History(delayed, steps=2).with_inner_terms())[1:] == [delayed, scan]
