import dataclasses
import enum
import re
import shlex
from typing import Literal

import jax
import pytest
import yaml

import ksim
from examples.point_mass import PointMass, PointMassConfig, PointMassTask
from examples.quadruped import QuadrupedConfig
from examples.walking_distributed import HumanoidWalkingDistributedConfig
from ksim import ConfigError
from ksim.checkpoint.snapshot import plain_config
from ksim.cli import MAX_WIDTH, help_text, launch
from ksim.config import GROUPS, as_argument, field, options_metadata, seconds_of
from ksim.host.plain_yaml import read_value, read_yaml, write_yaml
from ksim.task.overrides import parse_overrides
from tests.support.processes import exit_code
from tests.support.tasks import BipedConfig, BipedTask


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("num_env=64", ["no option 'num_env'", "'num_envs'"]),
        ("--nproc_per_node", ["'--nproc_per_node' must be of the form", "ksim.launch --nproc-per-node N"]),
        ("--master_addr=node0", ["no option '--master_addr'", "Here it is coordinator_address=HOST:PORT"]),
        ("--master_port=1", ["Here it is coordinator_address=HOST:PORT"]),
        ("--gpu-ids=0,1", ["Here it is devices=all, devices=cpu, or devices=[0,1], by index."]),
        ("device_timers=off", ["Every device is timed now", "leave it out"]),
        ("num_gpus=2", ["no option 'num_gpus'", "Here it is num_devices=N"]),
        ("--distributed", ["A DistributedPPOTask needs none", "python -m ksim.launch"]),
        ("--node_rank=1", ["ksim.launch --node-rank N"]),
        ("num_envs=many", ["num_envs ('many')", "a whole number"]),
        ("learning_rate=fast", ["learning_rate ('fast')", "a number"]),
        ("tensorboard=perhaps", ["tensorboard ('perhaps')", "true or false"]),
        ("num_envs", ["must be of the form key=value. For example: num_envs=VALUE."]),
        ("max_iterations=", ["max_iterations ('')", "a whole number or null"]),
        ("actor_sizes=[1,", ["actor_sizes ('[1,')", "a list, as in [256,128]."]),
        ("run_dir=${foo}", ["run_dir ('${foo}') must be plain text"]),
        ("run_dir=a\nb", ["run_dir ('a\\nb') must be plain text: without line breaks"]),
        ("run_dir=a\u2028b", ["run_dir ('a\\u2028b') must be plain text: without line breaks"]),
        ("run_dir=a\udcffb", ["run_dir ('a\\udcffb') must be text in UTF-8"]),
        ("run_dir=", ["run_dir ('') must not be empty"]),
        ("viewer_host=a..b", ["viewer_host ('a..b') must be an address of this machine"]),
        ("devices=cpu #2", ["devices ('cpu #2') must be all, cpu or a list"]),
        ("actor_sizes=[8,\n8]", ["actor_sizes ('[8,\\n8]') must be a list"]),
        ("max_runtime=25:99", ["max_runtime ('25:99') must be seconds, or hours, minutes and seconds"]),
        ("max_runtime=1:60:00", ["max_runtime ('1:60:00') must be seconds, or hours, minutes and seconds"]),
        ("batch_size=4096", ["Batch size (4096) must be at most the number of environments (64)", "sizes: 32, 64"]),
        ("learning_rate=inf", ["learning_rate ('inf')", "a number"]),
        ("--num_envs=4", ["num_envs=VALUE", "without dashes"]),
        ("num_envs=0", ["Number of environments (0)"]),
        ("num_devices=3", ["must be divisible by number of devices (3)"]),
    ],
)
def test_bad_argument_exits_with_2_and_says_what_is_wrong_before_anything_is_written(argument, words, capsys, tmp_path):
    assert exit_code(launch, PointMassTask, PointMassConfig(), [argument]) == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("devices=[0,1]", r"no option 'devices'\. It needs a task that derives from ksim\.DistributedPPOTask\."),
        ("--gpu-ids=0", r"devices=\[0,1\], by index\. It needs a task that derives from ksim\.DistributedPPOTask\."),
    ],
)
def test_option_of_distributed_tasks_given_to_another_is_told_to_be_one(argument, words):
    with pytest.raises(ConfigError, match=words):
        parse_overrides(ksim.PPOConfig(), [argument])


def test_overrides_are_converted_to_the_options_types():
    config = parse_overrides(
        PointMassConfig(), ["num_envs=8", "learning_rate=1", "actor_sizes=[4,2]", "max_iterations=null"]
    )
    assert (config.num_envs, config.learning_rate, config.actor_sizes) == (8, 1.0, [4, 2])
    assert type(config.learning_rate) is float
    assert config.max_iterations is None


def test_options_of_a_program_are_converted_as_those_of_the_command_line():
    task = PointMassTask(PointMassConfig(num_envs=8, num_devices=1, gamma=1, learning_rate=1, actor_sizes=(4, 2)))
    assert type(task.config.learning_rate) is type(task.hyperparameters().gamma) is float
    assert task.config.actor_sizes == [4, 2]


class Gait(enum.Enum):
    WALK = 1
    TROT = 2


@jax.tree_util.register_dataclass
@dataclasses.dataclass(kw_only=True)
class OwnOptions(PointMassConfig):
    gait: Gait = field(Gait.WALK, help="gait")
    side: Literal["left", "right"] = field("left", help="side")
    gains: tuple[float, ...] | None = field((1, 2), help="gains")
    masses: dict[str, float] = field(lambda: {"arm": 2}, help="masses in kg")


def test_options_of_other_types_are_converted_saved_and_read_back():
    config = parse_overrides(OwnOptions(), ["gait=TROT", "side=right", "masses={leg: 3}"])
    assert (config.gait, config.side, config.gains, config.masses) == (Gait.TROT, "right", [1.0, 2.0], {"leg": 3.0})
    saved = read_yaml(write_yaml(plain_config(config)))
    assert saved["gait"] == "TROT"
    assert parse_overrides(dataclasses.replace(OwnOptions(), **saved), []) == config
    for argument in ("gait=RUN", "side=up", "gains=[a]", "masses={leg: x}"):
        with pytest.raises(ConfigError, match=f"Option {argument.partition('=')[0]} "):
            parse_overrides(OwnOptions(), [argument])


def test_overrides_leave_the_lists_of_the_config_that_they_begin_with():
    base = PointMassConfig(actor_sizes=[4])
    parse_overrides(base, []).actor_sizes.append(5)
    assert base.actor_sizes == [4]


TEXTS = [
    *("0100", "1:30", "1_000", "0x10", "1e3", ".5", "1.", "+1", "on", "true", "~", "null", ".inf", "2001-01-01", "#x"),
    *("[x]", "{a:1}", "%d", "'", '"', "-", "|", "???", "٣", "日本", "🤖", "", " a ", "a  b", "a: b", "a #b"),
    "x " * 200,
]


def test_texts_that_look_like_other_values_are_written_so_that_they_are_read_as_texts():
    values = {"texts": TEXTS, "numbers": [1, 1.0, 1e-5, 1e300, -0.0]}
    values |= {"others": [None, True, False, [], {}]}
    assert read_yaml(write_yaml(values)) == values
    assert yaml.safe_load(write_yaml(values)) == values


REFUSED = [
    *("num_envs=0100", "num_envs=1:4", "num_envs=0x10", "num_envs=0b11", "num_envs=1_000", "num_envs=٣"),
    *("num_envs='64'", "num_envs=1e3", "num_envs=64.0", "num_envs=true", "max_iterations=0100", "max_iterations=~"),
    *("learning_rate=1:30", "learning_rate=01.5", "learning_rate=1_0.5", "learning_rate=.inf", "learning_rate=nan"),
    *("learning_rate=2001-01-01", "tensorboard=on", "tensorboard=yes", "tensorboard=1", "actor_sizes=[0100,2]"),
    *("actor_sizes=[1:4]", "actor_sizes=['8']", "max_runtime=1:2:3:4", "max_runtime=0100", "max_runtime=1_0:00"),
    *("max_runtime=1:222", "devices=[0x1]", "devices=²"),
]
DECIMAL = [
    *((argument, None) for argument in REFUSED),
    ("num_envs=+64", 64), ("learning_rate=1e-3", 1e-3), ("learning_rate=1E3", 1000.0), ("learning_rate=.5", 0.5),
    ("learning_rate=5.", 5.0), ("learning_rate=5", 5.0), ("tensorboard=false", False), ("tensorboard=True", True),
    ("actor_sizes=[100,2]", [100, 2]), ("max_runtime=11:55:00", "11:55:00"), ("max_runtime=1:30", "1:30"),
    ("max_runtime=90", 90), ("devices=0,1", "0,1"), ("run_dir=0100", "0100"), ("run_dir=1:30", "1:30"),
    *((f"run_dir={text}", text) for text in [
        *("exp #2", "#x", "[x]", "{a: 1}", "%d", " a ", "'a'", '"a"', "a: b", "- a", "!!str 5", "&a", "*", "---", "on"),
        *("~", "Null", "back\\slash", "gs:", "a,b", "@x", "|", ">", "? a", "a  b", "0x10", "1e3", "true", "日本"),
    ]),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "value"), DECIMAL)
def test_numbers_are_decimal_and_anything_else_is_an_error_that_shows_it(argument, value):
    name, _, text = argument.partition("=")
    if value is None and text != "~":
        shown = re.escape(text.strip("[]'"))
        with pytest.raises(ConfigError, match=rf"^(Option )?{name} \(.*{shown}.*\) must be"):
            PointMassTask(parse_overrides(PointMassConfig(), [argument]))
        return
    found = getattr(PointMassTask(parse_overrides(PointMassConfig(), [argument])).config, name)
    assert (found, type(found)) == (value, type(value))


def test_option_that_is_given_twice_with_two_values_is_an_error():
    with pytest.raises(ConfigError, match=r"Option num_envs is given twice: '16' and '32'\. Leave one of them out"):
        parse_overrides(PointMassConfig(), ["num_envs=16", "seed=1", "num_envs=32"])
    assert parse_overrides(PointMassConfig(), ["num_envs=16", "num_envs=16"]).num_envs == 16


def test_null_is_none_where_a_text_may_be_left_out_and_a_text_where_not():
    config = parse_overrides(PointMassConfig(run_dir="run"), ["run_dir=null", "viewer_host=null"])
    assert (config.run_dir, config.viewer_host) == (None, "null")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            (text, text)
            for text in ("run #2", "#x", "%d", " a", "a ", "[x", "|", ">", "8 #x", "@a", "a\\b", "", "1_000", "a  b")
        ),
        *(("8", 8), ("false", False), ("null", None), ("'8'", "8"), ("[1,2]", [1, 2]), ("{a: 1.5}", {"a": 1.5})),
    ],
)
def test_value_of_an_option_of_unknown_type_is_what_it_says_or_the_text_itself(text, value):
    assert (read_value(text), type(read_value(text))) == (value, type(value))


def test_argument_that_is_shown_is_read_as_the_same_by_a_shell_and_the_command_line():
    config = PointMassConfig(run_dir="it's #1: [a] \\ %d", actor_sizes=[8, 4], max_iterations=None)
    shown = " ".join(as_argument(name, getattr(config, name)) for name in ("run_dir", "actor_sizes", "max_iterations"))
    assert parse_overrides(PointMassConfig(), shlex.split(shown)) == config


def test_time_is_hours_minutes_and_seconds():
    times = {"11:55:00": 42_900.0, "1:30": 90.0, "90": 90.0, "1:00:00.5": 3600.5, 1e3: 1000.0}
    assert {text: seconds_of("max_runtime", text) for text in times} == times


@pytest.mark.parametrize("width", [80, 200])
def test_help_lists_every_option_with_its_default_and_meaning_in_80_columns(width):
    base = HumanoidWalkingDistributedConfig()
    text = help_text("python my.py [KEY=VALUE ...]", PointMassTask, base, width)
    assert max(map(len, text.splitlines())) <= min(width, MAX_WIDTH)
    words = " ".join(text.split())
    metadata = options_metadata(type(base))
    for option in dataclasses.fields(base):
        assert f"  {option.name}=" in text
        assert " ".join(option.metadata["help"].split()) in words
        assert all(choice in words for choice in metadata[option.name].get("choices", ()))
    for default in ("num_envs=256", "engine=auto", "actor_sizes=[128,128]", "eval_at_end=true", "resume=null"):
        assert f"  {default} " in text


def test_help_has_the_groups_in_their_order_and_own_options_last():
    text = help_text("python my.py", PointMassTask, QuadrupedConfig(), 80)
    headings = [line for line in text.splitlines() if line in GROUPS]
    assert headings == list(GROUPS)
    task = text.split("\nTask\n")[1]
    assert re.findall(r"^  (\w+)=", task, re.MULTILINE) == ["episode_s", "crossing_ends", "ground"]
    # Declared again with another default, it stays where it was.
    assert "  learning_rate=0.001 " in text.split("\nPPO\n")[1].split("\nNetwork\n")[0]


def test_help_of_an_option_explains_it_at_length(capsys):
    assert exit_code(launch, PointMassTask, PointMassConfig(), ["--help", "num_devices", "seed"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "num_devices: devices per process" in words
    assert "value a whole number, cores or null, at least 1 group Devices" in words
    assert "This makes several host devices" in words.replace("On a CPU this", "This")
    assert "seed: random seed" in words
    assert "cannot change when a run is resumed" in words


def test_help_of_an_unknown_option_is_an_error_with_near_misses(capsys):
    assert exit_code(launch, PointMassTask, PointMassConfig(), ["--help", "num_env"]) == 2
    assert "There is no option 'num_env'. Did you mean 'num_envs'" in capsys.readouterr().err
    assert exit_code(launch, PointMassTask, PointMassConfig(), ["--help", "num_dev"]) == 2
    assert "Did you mean 'num_devices'?" in capsys.readouterr().err


def test_error_of_the_tasks_own_code_is_not_swallowed():
    class Broken(PointMassTask):
        def get_environment(self, engine: str, num_devices: int) -> PointMass:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        launch(Broken, PointMassConfig(num_devices=2), [])


@pytest.mark.parametrize(("level", "has_traceback"), [("info", False), ("debug", True)])
def test_traceback_of_a_bug_in_a_term_is_printed_at_debug(level, has_traceback, capsys, tmp_path):
    class Mine(ksim.AbstractReward):
        scale: float = 1.0

        def __call__(self, context):
            return {}["nowhere"]

    class Broken(BipedTask):
        def get_rewards(self, physics_model):
            return [Mine()]

    with pytest.raises(SystemExit) as stopped:
        launch(Broken, BipedConfig(num_devices=2, run_dir=str(tmp_path / "run")), [f"log_level={level}"])
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "(Mine) failed at" in printed
    assert ("Traceback (most recent call last)" in printed) == has_traceback


def test_public_names_are_there():
    from examples.walking import HumanoidWalkingTask
    from examples.walking_distributed import HumanoidWalkingDistributedConfig, HumanoidWalkingDistributedTask
    from ksim.task import distributed, ppo

    assert distributed.replicate_state is ksim.replicate_state
    assert distributed.shard_environments is ksim.shard_environments
    assert ppo.DistributedPPOTask is ksim.DistributedPPOTask
    assert issubclass(HumanoidWalkingDistributedTask, HumanoidWalkingTask)
    assert issubclass(HumanoidWalkingDistributedTask, ksim.DistributedPPOTask)
    assert HumanoidWalkingDistributedTask.get_config_class() is HumanoidWalkingDistributedConfig
