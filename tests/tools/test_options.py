import dataclasses
import re

import ksim
from ksim.config import describe_values
from ksim.launch.options import OPTIONS as LAUNCHER_OPTIONS, parse_options
from ksim.tools import options
from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "options.md"


def test_page_of_options_is_what_the_fields_say():
    assert PAGE.read_text() == options.page(), f"docs/options.md is out of date. Write it anew: {options.COMMAND}"


def test_page_has_every_option_of_every_config_once_with_its_type_and_default():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| `?(.*?)`? \| ", PAGE.read_text(), re.MULTILINE)
    expected = {}
    for config in (ksim.AMPConfig(), ksim.DistillConfig(), ksim.REPPOConfig(), ksim.DistributedPPOConfig()):
        for option in dataclasses.fields(config):
            value = getattr(config, option.name)
            default = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            expected[option.name] = (describe_values(type(config), option.name), default)
    assert {name: (kind, default) for name, kind, default in rows} == expected
    assert len(rows) == len(expected)


def test_options_with_a_scope_exist_and_have_only_one():
    named = [name for names in options.SCOPES.values() for name in names]
    assert len(named) == len({*named})
    assert {*named} <= {option.name for option in dataclasses.fields(ksim.DistributedPPOConfig)}


def test_meanings_of_the_launchers_options_name_their_defaults():
    defaults = parse_options(["-m", "module"])
    for name, (_, default, meaning) in LAUNCHER_OPTIONS.items():
        assert f"`{name} " in PAGE.read_text()
        assert default is None or f"(default {default}" in meaning
        assert default is None or float(default) == getattr(defaults, name.lstrip("-").replace("-", "_"))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", defaults.coordinator_address)
    assert (defaults.node_rank, defaults.log_dir, defaults.min_nproc) == (0, None, None)
