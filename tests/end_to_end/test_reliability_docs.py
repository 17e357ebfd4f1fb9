"""The claims of docs/reliability.md: its options and exit codes are those of the code, and its programs run."""

import dataclasses
import re

import jax.numpy as jnp
import pytest

import ksim
from examples.point_mass import PointMass
from ksim.host.signals import OUT_OF_TIME_EXIT_CODE, STOPPING
from ksim.train.watchdog import HANG_EXIT_CODE
from tests.support.processes import ROOT
from tests.support.tasks import MESSAGE, point_mass_task

PAGE = (ROOT / "docs" / "reliability.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)

pytestmark = pytest.mark.filterwarnings(MESSAGE)


def test_options_have_the_defaults_that_the_page_gives():
    config = ksim.DistributedPPOConfig()
    rows = re.findall(r"^\| `(\w+)` \| ([\w.]+) \|", PAGE, flags=re.MULTILINE)
    assert len(rows) == 6
    for name, default in rows:
        value = getattr(config, name)
        assert default == ("null" if value is None else f"{value:g}")
    for name in set(re.findall(r"`(\w+_\w+)=", PAGE)):
        assert name in {field.name for field in dataclasses.fields(config)}


def test_exit_codes_are_those_of_the_page():
    for number in STOPPING:
        assert number.name in PAGE
        assert str(128 + number) in PAGE
    stopping = PAGE.split("## Stopping")[1].split("##")[0]
    codes = re.findall(r"\| (\d+) \|$", stopping, flags=re.MULTILINE)
    assert {str(HANG_EXIT_CODE), str(OUT_OF_TIME_EXIT_CODE), "0", "1", "2"} == set(codes)


def test_srun_is_given_its_option_in_the_one_form_that_slurm_takes():
    # Its argument is optional to Slurm, which reads one after the equals sign alone.
    assert re.findall(r"^srun (\S+)", PAGE, flags=re.MULTILINE) == ["--kill-on-bad-exit=0"]


def test_programs_of_the_page_run(tmp_path, monkeypatch, capsys):
    step = PointMass.step

    def sometimes_nan(self, state, action):
        stepped = step(self, state, action)
        reward = jnp.where(stepped.inner.position > 0.9, jnp.nan, stepped.reward)
        return dataclasses.replace(stepped, reward=reward)

    monkeypatch.setattr(PointMass, "step", sometimes_nan)
    point_mass_task(num_devices=2, max_iterations=2, run_dir="runs/mine", actor_sizes=[32], critic_sizes=[32]).run()
    assert len(BLOCKS) == 3
    for block in BLOCKS:
        exec(compile(block, "docs/reliability.md", "exec"), {})
    (line,) = capsys.readouterr().out.splitlines()[-1:]
    assert line.startswith("['rollout/not_finite'") or line.startswith("[] ")
