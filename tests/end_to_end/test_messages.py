"""The messages on the pages are those of the code: constraints are broken, other messages compared with the source."""

import json
import re

import jax
import pytest

import ksim
from ksim.checks import check_batch, check_divisible
from ksim.errors import ConfigError
from ksim.launch.devices import divide_devices
from ksim.parallel.devices import check_same_kind, select_devices
from ksim.preflight.devices import check_same_options
from tests.end_to_end.pages import read, rows
from tests.parallel.test_devices import FakeDevice
from tests.support.processes import ROOT

SPEAKING = [path for room in ("parallel", "launch") for path in (ROOT / "ksim" / room).glob("*.py")] + [
    ROOT / "ksim" / f"{name}.py"
    for name in (
        *("config", "checkpoint/run_dir", "host/machine", "log/run_log", "preflight/devices", "task/distributed"),
        *("tools/measure", "tools/prediction", "tools/scaling", "train/loop"),
    )
]
"""Files whose messages are all on the page."""
ALSO_SPEAKING = [
    ROOT / "ksim" / f"{name}.py" for name in ("checks", "envs/playground", "physics/warp", "task/rl", "task/config")
]
"""Files of which the page quotes some messages."""
PUT_IN = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}")
"""A value within an f-string."""
HEADINGS = ("Options and devices", "Several processes", "Starting by ksim.launch", "The scaling report")
QUOTED = [re.findall(r"`([^`]+)`", row[0])[0].rstrip() for heading in HEADINGS for row in rows("messages.md", heading)]
RULES = [re.findall(r"`([^`]+)`", row[1])[0] for row in rows("DISTRIBUTED_TRAINING.md", "Constraints")]
MESSAGES = [message.removesuffix(" ...") for message in (*RULES, *QUOTED)]

PROVOKED = (
    lambda: check_divisible("Number of environments", 10, "number of devices", 3),
    lambda: check_batch(10, 8, 2, 1),
    lambda: check_batch(10, None, None, 1),
    lambda: check_batch(12, 3, 4, 2),
    lambda: select_devices([0, 1, 2, 3], 99),
    lambda: select_devices([0, 1], None),
    lambda: check_same_kind([FakeDevice(0), FakeDevice(1, platform="cpu")]),
    lambda: check_same_options(ksim.DistributedPPOConfig(num_envs=64)),
    lambda: divide_devices(3, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}),
)
"""What breaks the constraints, in the order of the page."""


@pytest.mark.parametrize(
    ("message", "provoke"), [*zip(RULES, PROVOKED, strict=True)], ids=[rule[:40] for rule in RULES]
)
def test_broken_constraint_has_the_message_of_the_page(message, provoke, monkeypatch):
    if message.startswith("Process 1 has"):
        job = [FakeDevice(0), FakeDevice(1), FakeDevice(2, process_index=1)]
        monkeypatch.setattr(jax, "local_devices", lambda backend=None: job[:2])
        monkeypatch.setattr(jax, "devices", lambda backend=None: job)
    other = lambda text: [text, json.dumps(json.loads(text) | {"num_envs": 32})]
    monkeypatch.setattr("ksim.preflight.devices.gather_texts", other)
    with pytest.raises(ConfigError) as raised:
        provoke()
    assert str(raised.value).startswith(message.removesuffix("..."))


def test_most_common_messages_are_among_all():
    common = [re.findall(r"`([^`]+)`", row[0])[0] for row in rows("DISTRIBUTED_TRAINING.md", "Troubleshooting")]
    assert len(common) == 8
    assert all(f"| `{message}` |" in read("messages.md") for message in common)


STRING = r'f?"((?:[^"\\\n]|\\.)+)"'


def source(path):
    """The code of a file, with each string of several lines on one."""
    return re.sub(r'"\s*\n\s*f?"', "", path.read_text())


def first_sentence(text):
    return re.split(r"\.(?=[ {]|$)", text)[0]


def quotes(text):
    """The messages of the page that are a string of the code with values put in, or begin with its first sentence.

    A quarter of a message at least must be the code's, and not put in.
    """
    found = set()
    for whole, form in ((text, str), (first_sentence(text), first_sentence)):
        literal = PUT_IN.split(whole.replace('\\"', '"').rstrip())
        pattern = re.compile(".*".join(map(re.escape, literal)))
        size = sum(map(len, literal))
        found |= {x for x in MESSAGES if size >= max(10, 0.25 * len(form(x))) and pattern.fullmatch(form(x))}
    return found


def said_by(path):
    """The errors and warnings of a file, and the rules of its checks, as messages."""
    code = source(path)
    rules = re.findall(r"check_rule\(.*, " + STRING, code)
    rules += [rule for line in re.findall(r"\brule = (.*)", code) for rule in re.findall(STRING, line)]
    return re.findall(r"(?:Error|warn_user|say)\(\s*" + STRING, code) + [f"{{what}} must be {rule}." for rule in rules]


def test_every_message_that_the_page_quotes_is_one_of_the_code():
    known = {text for path in (*SPEAKING, *ALSO_SPEAKING) for text in re.findall(STRING, source(path)) + said_by(path)}
    assert len(MESSAGES) > 100
    stale = set(MESSAGES).difference(*map(quotes, known))
    assert not stale, "\n".join(stale)


def test_every_message_of_the_code_concerned_is_on_the_page():
    said = [(path.name, text) for path in SPEAKING for text in said_by(path)]
    needed = [x for x in said if len(PUT_IN.sub("", x[1])) >= 12 and "must equal number of leaves" not in x[1]]
    missing = [x for x in needed if not quotes(x[1])]
    assert not missing, "\n".join(map(str, missing))
