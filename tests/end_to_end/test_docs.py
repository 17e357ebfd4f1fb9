"""The code in the docs does what the docs say."""

import ast
import dataclasses
import json
import re
import runpy
import sys
import warnings

import jax
import jax.numpy as jnp
import pytest

from examples.walking import HumanoidWalkingConfig
from ksim.mdp.term import Context
from tests.end_to_end.stand_in import with_last_values
from tests.processes import ROOT
from tests.tasks import WITHOUT_REPORTS, train_iterations


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run_block(page, containing):
    (block,) = [b for b in python_blocks(page) if containing in b]
    names = {"__name__": "docs"}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
@pytest.mark.parametrize(("task", "options"), [("OneDevice", {}), ("AllDevices", {"num_devices": 2})])
def test_environment_of_the_extending_page_is_trained_by_both_tasks(task, options, tmp_path, capsys):
    import ksim

    names = run_block("docs/extending.md", "class PointMass")
    config = ksim.DistributedPPOConfig if options else ksim.PPOConfig
    run_dir = tmp_path / "run"
    options = options | WITHOUT_REPORTS
    assert names[task](config(num_envs=64, max_iterations=4, run_dir=str(run_dir), **options)).run().exit_code == 0
    assert "iteration 4/4" in capsys.readouterr().out


class Drift:
    """In the style of Gymnax: a number that noise moves, and the action against it."""

    def action_space(self, params):
        return jnp.zeros(1)

    def reset(self, key, params):
        return jnp.zeros(1), jnp.zeros(1)

    def step_env(self, key, state, action, params):
        state = state + action + params["noise"] * jax.random.normal(key, (1,))
        return state, state, -jnp.abs(state[0]), jnp.abs(state[0]) > 3, {}


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_environment_in_the_style_of_gymnax_is_trained_by_the_adapter_of_the_extending_page():
    import ksim

    adapter = run_block("docs/extending.md", "class Adapted")["Adapted"](Drift(), {"noise": jnp.float32(0.1)})

    class Task(ksim.PPOTask):
        def get_environment(self, engine, num_devices):
            return adapter

    task = Task(ksim.PPOConfig(num_envs=8, rollout_length=4, **WITHOUT_REPORTS))
    _, history = train_iterations(task, 2)
    assert history[-1]["rollout/reward"] < 0


STEPS = re.findall(
    r"<!-- (?:file: (\S+)|runs) -->\n```(?:xml|python|sh)\n(.*?)```",
    (ROOT / "docs/extending.md").read_text(),
    re.DOTALL,
)
"""The extending page's files, (name, text), and its commands, ("", command), in order."""


def run_script(command, monkeypatch):
    """Runs `python FILE [KEY=VALUE ...]` in this process, as small as can be."""
    python, file, *arguments = command.split()
    assert python == "python"
    evaluates = "run_mode=eval" in arguments
    small = ["eval_num_envs=2"] if evaluates else ["num_envs=4", "max_iterations=1", "eval_at_end=false"]
    small += ["video=false", "plots=false"]
    monkeypatch.setattr("sys.argv", [file, *with_last_values([*arguments, *small])])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(file, run_name="__main__")
    assert stopped.value.code == 0


@pytest.mark.long
def test_steps_of_the_extending_page_run_one_after_the_other_in_an_empty_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dog", raising=False)
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)
    outputs = {}
    for file, text in STEPS:
        if file:
            (tmp_path / file).write_text(text)
        else:
            run_script(text, monkeypatch)
            outputs[text.strip()] = capsys.readouterr().out
    assert len(outputs) == 12
    assert "survived" in outputs["python dog.py run_mode=eval checkpoint=runs/first"]
    assert "250.0 ± 0.0 control steps" in outputs["python dog_evaluated.py run_mode=eval checkpoint=runs/first"]
    for file, row in {
        "dog.py": r"observation/actor +│ gyro +│ SensorReading \+ UniformNoise +│ 3 +│",
        "dog_built.py": r"observation/actor +│ gyro +│ SensorReading \+ UniformNoise +│ 3 +│",
        "dog_reward.py": r"reward +│ diagonal_pairs +│ DiagonalPairs +│ +│ 0.5 +│",
        "dog_observation.py": r"observation/actor +│ joint_velocity +│ SmoothJointVelocity \+ UniformNoise +│ 8 +│",
        "dog_command.py": r"command +│ velocity +│ SlowOrFast +│ 3 +│",
        "dog_curriculum.py": r"curriculum +│ speed +│ BySurvival from 0, each environment +│",
        "dog_network.py": r"network +│ SharedNetwork, adapted",
    }.items():
        assert re.search(row, outputs[f"python {file} num_envs=64 max_iterations=1"]), file
    (metrics,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/trotting_dog/*/metrics.jsonl"))
    assert 0 < metrics["reward/diagonal_pairs"] <= 0.5
    (metrics,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/two_speed_dog/*/metrics.jsonl"))
    assert 0 < metrics["error/velocity/speed_m_s"] < 2
    (rewards,) = tmp_path.glob("runs/logged_dog/*/rewards.csv")
    assert re.fullmatch(r"1,\S+\n", rewards.read_text())
    (report,) = tmp_path.glob("runs/reporting_dog/*/report.txt")
    assert re.fullmatch(r"1: reward \S+\nended after 96 steps by its limit\n", report.read_text())
    assert (report.parent / "kept" / "1" / "document.json").exists()


def test_every_block_of_the_extending_page_is_run_by_a_test():
    text = (ROOT / "docs/extending.md").read_text()
    marked = re.findall(r"<!-- (?:file: \S+|runs|runs: tests/\S+) -->\n```", text)
    assert len(marked) == len(re.findall(r"^```\w", text, flags=re.MULTILINE)) > 10


def test_extending_page_lists_every_field_of_the_context():
    (section,) = re.findall(r"## What a term sees\n(.*?)\n## ", (ROOT / "docs/extending.md").read_text(), re.DOTALL)
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(Context)} | {"dt"} == set(listed)


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_task_of_the_readme_trains_a_robot_with_nothing_but_defaults(tmp_path, monkeypatch):
    import ksim
    from tests.robots import BIPED

    (tmp_path / "my_robot.xml").write_text(BIPED)
    task = run_block("README.md", "class MyRobot")["MyRobot"]
    options = {"num_envs": 8, "num_devices": 2, "max_iterations": 1, "run_dir": str(tmp_path / "run")}
    assert task(ksim.DistributedPPOConfig(**options, **WITHOUT_REPORTS)).run().exit_code == 0


def test_links_of_the_pages_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "DISTRIBUTED_TRAINING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)|src=\"([^\"]+)\"", page.read_text()):
            path = page.parent / (target[0] or target[1])
            assert path.exists(), f"{page.name} links to {path}"


def test_settings_that_the_pages_name_are_options():
    options = set(HumanoidWalkingConfig.__dataclass_fields__)
    import examples.walking_distributed as distributed

    options |= set(distributed.HumanoidWalkingDistributedConfig.__dataclass_fields__)
    for page in ("README.md", "DISTRIBUTED_TRAINING.md"):
        text = re.sub(r"XLA_FLAGS=\S+", "", (ROOT / page).read_text())
        # Not those of other programs, as srun's --kill-on-bad-exit=0.
        for name in re.findall(r"(?<![\w-])([a-z_]+)=(?:\d+|eval|local|accumulate)\b", text):
            assert name in options | {"scale", "max_tilt", "seconds"}, name


PAGES = (ROOT / "README.md", ROOT / "DISTRIBUTED_TRAINING.md", *sorted((ROOT / "docs").glob("*.md")))
NEVER_TRIED = re.compile(r"\b(GPUs?|TPUs?|NVIDIA|CUDA|ROCm|NCCL|Kubernetes|accelerators?)\b")
MARK = re.compile(r"untried|no GPU|without a GPU|without GPUs", re.IGNORECASE)


def named_without_mark(texts):
    """The beginnings of those texts that name what was never tried and do not say so."""
    return [text.strip()[:80] for text in texts if NEVER_TRIED.search(text) and not MARK.search(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_what_was_never_tried_is_marked_wherever_a_page_names_it(page):
    # By section on the page that is all about it, elsewhere by paragraph.
    without_code = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    pattern = r"^(?=##+ )" if page.name == "DISTRIBUTED_TRAINING.md" else r"\n\n"
    assert not named_without_mark(re.split(pattern, without_code, flags=re.MULTILINE))


def test_what_was_never_tried_is_marked_wherever_a_docstring_or_help_names_it():
    from ksim.launch.options import _OPTIONS
    from ksim.task import DistributedPPOConfig

    texts = [option.metadata["help"] for option in dataclasses.fields(DistributedPPOConfig)]
    texts += [meaning for _, _, meaning in _OPTIONS.values()]
    texts += re.findall(r'^description = "(.*)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    for path in (ROOT / "ksim").rglob("*.py"):
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, documented)]
        # A module's own docstring speaks for all in it.
        texts.append("\n".join(filter(None, map(ast.get_docstring, nodes))))
    assert not named_without_mark(texts)


def test_nothing_installs_the_other_project_that_is_called_ksim_on_package_indexes():
    suffixes = {".py", ".md", ".toml", ".txt", ""}
    files = [ROOT / name for name in ("README.md", "DISTRIBUTED_TRAINING.md", "Makefile")]
    for folder in ("ksim", "docs", "examples", "benchmarks", "tests"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in suffixes]
    for path in files:
        assert not re.findall(r"pip install (?:-\S+ )*['\"]?ksim\b(?!-rl)", path.read_text(errors="ignore")), path
