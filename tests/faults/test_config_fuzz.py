"""Options of any name, type and value: an error that names the option, or a task that works."""

import dataclasses
import decimal
import math
import pathlib
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from ksim import ConfigError
from ksim.checkpoint.options import make_config
from ksim.config import options_metadata
from ksim.errors import quoted
from ksim.learn.learner import initial_memories
from ksim.types import EnvBatch, TrainState
from tests.support.scale import IS_FULL, scale
from tests.support.tasks import CartPoleConfig, CartPoleTask, train_iterations

BASE = CartPoleConfig(num_devices=1, num_envs=8, rollout_length=4)
OPTIONS = {f.name: typing.get_type_hints(CartPoleConfig)[f.name] for f in dataclasses.fields(CartPoleConfig)}
METADATA = options_metadata(CartPoleConfig)
IN_WORDS = {
    **{name: known["label"] for name, known in METADATA.items() if "label" in known},
    **{"batch_size": "Batch size", "num_batches": "Number of batches"},
    **{"num_devices": "Number of devices", "devices": "Device"},
}
"""The words of messages for options, besides their names."""

SMALL = st.integers(1, 16)
HUGE = st.sampled_from([0, -1, -(10**12), 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**12, 2**63, 10**30, 10**400])
"""Nothing in between: a valid case is small, and whatever is large must be refused before it is made."""
NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 0.5, 0.02, 1e-3, 1e-300, 5e-324, 1e300, -1.0, np.nan, np.inf, -np.inf])
CHOICES = {choice for known in METADATA.values() for choice in known.get("choices", ())}
WORDS = st.sampled_from(sorted(CHOICES | {"on", "all", "cpu", "cores", "true", "null", "0,1", "0", ",", "0.0.0.0"}))
YAML = st.sampled_from(
    [
        *("", " ", "#", "# c", "1 #c", "~", "-", "--", "-x", "---", "...", "--- 1", "%YAML 1.1", "@", "`", "|", ">"),
        *("!", "[", "]", "{", "}", "'", '"', "[1,", "{a", "'a", "[]", "[[]]", "[[1]]", "[1,[2]]", "[1,2.5]", "[a]"),
        *("[null]", "{}", "{a: 1}", "{1: 2}", "a: b", "? a", "- a", "[true]", "[0]", "[0,0]", "[8,8]", "[-1]"),
        *("???", "[???]", "${", "${}", "${a", "${nothing}", "${oc.env:HOME}", "${oc.env:NOT_SET}", "[${seed}]"),
        *("${num_envs}", "${batch_size}", "${seed}", "${oc.create:[1]}", "${oc.decode:x}", "${run_dir}", "*"),
        *("!!python/object/apply:os.system [ls]", "!!python/name:os", "!!int abc", "!!float x", "!!bool x", "!!str 5"),
        *("!!timestamp 2001-99-99", "!!binary aGk=", "!!set {a}", "!!omap [a: 1]", "!<x> 1", "&a [*a]", "{<<: 1}"),
        *("a\nb", "\n", "\t", "\x00", "\x07", "\x1b[31m", "\ud800", "\u2028", "\ufeff1", "é", "日本", "²", "٣", "🤖"),
        *("1_000", "0x10", "1:30", "2001-01-01", "1e3", "1e400", "9" * 400, "9" * 5000, "[" * 2000, "x" * 10_000),
        *("1.0", "08", "+1", "1.", "=", "a=b", "/dev/null", "../..", "~/runs", "a b", "$HOME", "`id`", "$(id)", "\\"),
    ]
)
TEXTS = st.one_of(YAML, WORDS, st.text(max_size=8))


def written(value):
    """A value as a user would type it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def at_bounds(name):
    """The bounds of an option, and the numbers next to them."""
    is_whole = int in (OPTIONS[name], *typing.get_args(OPTIONS[name]))
    below = lambda bound: bound - 1 if is_whole else math.nextafter(bound, -math.inf)
    above = lambda bound: bound + 1 if is_whole else math.nextafter(bound, math.inf)
    bounds = METADATA[name].get("bounds", {}).values()
    return [number for bound in bounds for number in (below(bound), bound, above(bound))]


def of_its_type(name):
    """Values of an option's type, most of which work."""
    hint, choices = OPTIONS[name], METADATA[name].get("choices")
    kinds = [hint, *typing.get_args(hint)]
    values = [st.none()] if type(None) in kinds else []
    values += [st.one_of(SMALL, HUGE)] if int in kinds and typing.get_origin(hint) is not list else []
    values += [NUMBERS, st.floats()] if float in kinds else []
    values += [st.sampled_from(at_bounds(name))] if "bounds" in METADATA[name] else []
    values += [st.booleans()] if bool in kinds else []
    values += [st.sampled_from(choices)] if choices else []
    values += [st.one_of(WORDS, TEXTS)] if str in kinds or hint is typing.Any else []
    values += [st.lists(st.one_of(SMALL, HUGE), max_size=3)] if typing.get_origin(hint) is list else []
    return st.one_of(values)


VALUES = [
    *(None, True, False, b"x", b"", object(), int, len, 1j, {1, 2}, {"a": 1}, {1: 2}, range(3), (8, 8)),
    *(np.int64(3), np.float64(0.5), np.float32(0.5), np.bool_(True), np.arange(3), np.array("x"), np.array(8)),
    *(jnp.ones(2), decimal.Decimal(1), pathlib.Path("x"), "???", "${a}", "${num_envs}", "a\nb", "", "\0", "\ud800"),
    *([], [[1]], [None], ["8"], [8.0], [True], [-1], [10**12], [10**5000], [np.nan], [1] * 200, "x" * 10_000),
]
LISTS = st.lists(st.one_of(SMALL, st.text(max_size=2)), max_size=3)
PYTHON = st.one_of(st.sampled_from(VALUES), SMALL, HUGE, NUMBERS, TEXTS, LISTS)


def is_address(text):
    """Such a job would be joined, and the process wait for the others."""
    return re.search(r":\d+$", text) is not None


@st.composite
def overrides(draw):
    """One to four arguments of the command line, of options that exist."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=4))
    texts = [draw(st.one_of(of_its_type(name).map(written), TEXTS)) for name in names]
    return [f"{name}={text}" for name, text in zip(names, texts, strict=True) if not is_address(text)]


@st.composite
def misspelt(draw):
    """An argument whose name is none of an option."""
    name = draw(st.sampled_from(sorted(OPTIONS)))
    place = draw(st.integers(0, len(name) - 1))
    more = draw(st.sampled_from(["", "x", "_", ".", "-", " ", "ü", "\n", "[0]", "."]))
    changed = name[:place] + more + name[place + 1 :]
    wrong = draw(st.sampled_from([changed, "--" + name, "+" + name, name.upper(), f"{name}.{name}", more]))
    return (wrong if wrong not in OPTIONS else "x" + wrong) + draw(st.sampled_from(["=1", "=", "", "=a=b"]))


@st.composite
def replacements(draw):
    """One to three options by name, with values of any type."""
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), min_size=1, max_size=3, unique=True))
    values = {name: draw(st.one_of(of_its_type(name), PYTHON)) for name in names}
    # A whole number is a number, but the types that tests check for would have it written as one.
    floats = {name for name, hint in OPTIONS.items() if float in (hint, *typing.get_args(hint))}
    return {
        name: float(value) if name in floats and type(value) is int and abs(value) < 10**300 else value
        for name, value in values.items()
        if not (isinstance(value, str) and is_address(value))
    }


def cases(number):
    checks = {"suppress_health_check": list(HealthCheck), "derandomize": not IS_FULL, "print_blob": True}
    return settings(max_examples=number, deadline=None, database=None, **checks)


def checked_task(make, names):
    """The task, once its checks have passed; None where it was refused, in a message that names one of the options."""
    try:
        task = CartPoleTask(make())
        task.check()
    except ConfigError as error:
        message = str(error)
        called = [word for name in names for word in (name, IN_WORDS.get(name, name))]
        assert any(re.search(rf"\b{re.escape(word)}\b", message, re.IGNORECASE) for word in called), (message, called)
        assert len(message.splitlines()) == 1
        assert len(message) < 1500
        assert not any(ord(character) < 32 for character in message)
        return None
    return task


def trace_step(task):
    """Traces the training step of a task that is small."""
    num_envs = task.config.num_envs
    learner, model = task.learner_shapes()
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), num_envs))
    env_state = jax.eval_shape(jax.vmap(task.environment.first_episode), keys)
    step, memories = task.make_train_step(None), jax.eval_shape(lambda: initial_memories(model, num_envs))
    start = lambda learner, env_state, memories: TrainState(learner, EnvBatch(env_state, *memories))
    jax.eval_shape(lambda *parts: step(start(*parts)), learner, env_state, memories)


def is_small(config):
    sizes = [config.num_envs, config.rollout_length, config.memory_size, *config.actor_sizes, *config.critic_sizes]
    return max(*sizes, config.num_passes, config.eval_num_envs) <= 64


@pytest.mark.long
@cases(scale(20, 600))
@given(overrides(), st.integers(0, 19))
def test_option_of_any_value_is_refused_by_its_name_or_works(argv, lot):
    names = [argument.partition("=")[0] for argument in argv]
    task = checked_task(lambda: make_config(BASE, argv, "fuzzed_task"), names)
    if task is not None and lot == 0 and is_small(task.config):
        trace_step(task)


@cases(scale(30, 100))
@given(misspelt())
def test_unknown_option_is_refused_by_its_name(argument):
    with pytest.raises(ConfigError) as refused:
        make_config(BASE, [argument], "fuzzed_task")
    wrong = argument.partition("=")[0]
    message = str(refused.value)
    # Where there is no equals sign it is the whole argument that is shown; and dashes are what is wrong with a flag.
    assert any(text in message for text in (quoted(wrong), quoted(argument), f"{wrong.lstrip('-')}=VALUE"))
    assert len(message.splitlines()) == 1


@pytest.mark.long
@cases(scale(15, 400))
@given(replacements(), st.integers(0, 19))
def test_option_of_any_type_in_python_is_refused_by_its_name_or_works(values, lot):
    task = checked_task(lambda: dataclasses.replace(BASE, **values), list(values))
    if task is not None and lot == 0 and is_small(task.config):
        trace_step(task)


FEW = st.sampled_from([1, 2, 3, 4, 8])
VALID = {
    "num_envs": st.sampled_from([1, 2, 4, 6, 8]),
    "num_devices": st.sampled_from([None, 1, 2, "cores"]),
    "devices": st.sampled_from(["all", "cpu", [1], [2, 0], "0,1"]),
    "ctrl_dt": st.sampled_from([0.01, 0.02, 0.05]),
    "run_dir": st.sampled_from([None, "run"]),
    "init_std": st.sampled_from([0.02, 1.0, 5.0]),
    "min_std": st.sampled_from([1e-30, 0.02]),
    **dict.fromkeys(("squash", "normalize_observations"), st.booleans()),
    **{name: st.sampled_from([*METADATA[name]["bounds"].values(), 0.9]) for name in ("gamma", "gae_lambda")},
    **{name: st.sampled_from(METADATA[name]["choices"]) for name in ("model", "std", "grad_sync_mode")},
    "actor_sizes": st.sampled_from([[], [1], [4, 4], (4,)]),
    "critic_sizes": st.sampled_from([[], [1], [4, 4], (4,)]),
    "seed": st.sampled_from([1, 2**31, *METADATA["seed"]["bounds"].values()]),
    **dict.fromkeys(("rollout_length", "num_passes", "memory_size", "grad_sync_period"), FEW),
    **{name: st.one_of(st.none(), FEW) for name in ("batch_size", "num_batches", "max_iterations")},
    **{name: st.sampled_from([1e-30, 1e-3, 1.0, 1e30]) for name in ("learning_rate", "max_grad_norm")},
    **{name: st.sampled_from([None, 1e-30, 1e-3, 1e30]) for name in ("desired_kl", "value_clip")},
    **{name: st.sampled_from([0.0, 1.0, 1e30]) for name in ("entropy_coef", "value_loss_coef")},
}
"""Values that work, at least alone."""


@pytest.mark.long
@cases(scale(1, 15))
@given(st.lists(st.sampled_from(sorted(VALID)), min_size=5, max_size=12, unique=True), st.data())
def test_options_that_pass_the_checks_train(names, data):
    values = {name: data.draw(VALID[name], label=name) for name in names}
    task = checked_task(lambda: dataclasses.replace(BASE, **values), names)
    if task is not None:
        task.verify_distributed_setup()
        state, history = train_iterations(task, 1)
        assert int(task.layout.first(state.learner.iteration)) == len(history) == 1


LARGE = [
    ("num_envs=1000000000000", r"Number of environments \(1000000000000\) must be at most 2147483647"),
    ("num_envs=2147483640",
     r"num_envs \(2147483640\) of rollout_length \(4\) need at least .* Set num_envs to at most \d+"),
    ("rollout_length=2147483647", r"rollout_length \(2147483647\) need .* rollout_length to at most \d+"),
    ("actor_sizes=[1000000000]", r"networks of actor_sizes \(\[1000000000\]\), .* Choose smaller ones"),
    ("critic_sizes=[4000000000]", r"critic_sizes \(\[4000000000\]\) must be positive widths"),
    ("num_passes=2147483647 num_envs=4096", r"num_passes \(2147483647\) over 4096 environments .* Choose at most \d+"),
    ("eval_num_envs=2147483647", r"eval_num_envs \(2147483647\) need at least .* Set it to at most \d+"),
    ("num_devices=1000000", r"num_devices \(1000000\) must be at most 1024"),
    ("num_envs=2147483647 batch_size=7", r"Batch size \(7\) .* Nearest valid batch sizes: 1, 2147483647"),
    ("seed=4294967296", r"seed \(4294967296\) must be from 0 to 4294967295"),
    ("seed=-1", r"seed \(-1\) must be from 0"),
    ("max_iterations=99999999999999999999",
     r"max_iterations \(99999999999999999999\) must be a number of at most 64 bits"),
    ("dt=1e-7 ctrl_dt=1e-5", r"dt=1e-07 s\) must be positive, at least 1e-06"),
    ("dt=1e-6 ctrl_dt=1", r"ctrl_dt=1.0 s\) must be at most 10000 physics steps .* Set ctrl_dt to at most 0.01"),
    ("ctrl_dt=0.025",
     r"ctrl_dt=0.025 s\) must be a multiple of the physics step \(dt=0.01 s\). Nearest valid value: 0.0"),
    ("learning_rate=1e-300", r"learning_rate \(1e-300\) must be at least 1.2e-38, the least that 32 bits"),
    ("viewer_port=65536", r"viewer_port \(65536\) must be from 1 to 65535"),
]  # fmt: skip
REFERENCES = [
    ("run_dir=???", "run_dir ('???') must be plain text"),
    ("seed=${num_envs}", "Option seed ('${num_envs}') must be a whole number."),
    ("gamma=${oc.env:HOME}", "Option gamma ('${oc.env:HOME}') must be a number."),
    ("actor_sizes=[${seed}]", "Option actor_sizes ('[${seed}]') must be a list, as in [256,128]."),
    ("max_runtime=${num_envs}", "max_runtime ('${num_envs}') must be plain text"),
    ("devices=[${seed}]", "Option devices ('[${seed}]') must be all, cpu or a list, as in [0,1]."),
    ("run_dir=${oc.env:HOME}", "run_dir ('${oc.env:HOME}') must be plain text"),
]
"""Options do not refer to each other, nor to the environment."""


@pytest.mark.parametrize(
    ("arguments", "words"), [*LARGE, *((argument, re.escape(words)) for argument, words in REFERENCES)]
)
def test_what_cannot_be_is_refused_with_what_would_do(arguments, words):
    with pytest.raises(ConfigError, match=words):
        CartPoleTask(make_config(BASE, arguments.split(), "fuzzed_task")).check()


def test_values_mean_what_they_say():
    argv = ["run_dir=2024_11", "coordinator_address=1e3", "checkpoint=null", "viewer_host=a #b"]
    argv += ["eval_output='a'", "export_dir=[x] %d"]
    config = make_config(BASE, argv, "fuzzed_task")
    assert (config.run_dir, config.coordinator_address) == ("2024_11", "1e3")
    assert (config.checkpoint, config.viewer_host) == (None, "a #b")
    assert (config.eval_output, config.export_dir) == ("'a'", "[x] %d")


def test_config_of_another_task_is_refused():
    with pytest.raises(ConfigError, match=r"config \(None\) must be a CartPoleConfig"):
        CartPoleTask(None)
