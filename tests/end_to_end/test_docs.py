"""The code in the docs does what the docs say."""

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
from tests.end_to_end.pages import PAGES
from tests.end_to_end.stand_in import with_last_values
from tests.support.processes import ROOT
from tests.support.tasks import WITHOUT_REPORTS, train_iterations


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def run_block(page, containing):
    (block,) = [b for b in python_blocks(page) if containing in b]
    names = {"__name__": "docs"}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
@pytest.mark.parametrize(("task", "options"), [("OneDevice", {}), ("AllDevices", {"num_devices": 2})])
def test_environment_of_the_page_on_environments_is_trained_by_both_tasks(task, options, tmp_path, capsys):
    import ksim

    names = run_block("docs/own_environment.md", "class PointMass")
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
def test_environment_in_the_style_of_gymnax_is_trained_by_the_adapter_of_the_page_on_environments():
    import ksim

    adapter = run_block("docs/own_environment.md", "class Adapted")["Adapted"](Drift(), {"noise": jnp.float32(0.1)})

    class Task(ksim.PPOTask):
        def get_environment(self, engine, num_devices):
            return adapter

    task = Task(ksim.PPOConfig(num_envs=8, rollout_length=4, **WITHOUT_REPORTS))
    _, history = train_iterations(task, 2)
    assert history[-1]["rollout/reward"] < 0


OWN_PAGES = [ROOT / "docs" / f"own_{name}.md" for name in ("robot", "task", "environment", "algorithm")]


def steps():
    """Files, (name, text), and commands, ("", command), of the pages in order.

    A program that no command of the pages runs is run as they say: with `num_envs=64 max_iterations=1`.
    """
    text = "".join(page.read_text() for page in OWN_PAGES)
    blocks = re.findall(r"<!-- (?:file: (\S+)|runs) -->\n```(?:xml|python|sh)\n(.*?)```", text, re.DOTALL)
    shown = [line for file, block in blocks if not file for line in block.splitlines()]
    for file, block in blocks:
        if not file:
            yield from (("", line) for line in block.splitlines())
        else:
            yield file, block
            if file.endswith(".py") and not any(line.split()[1] == file for line in shown):
                yield "", f"python {file} num_envs=64 max_iterations=1"


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
def test_steps_of_the_pages_run_one_after_the_other_in_an_empty_directory(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "dog", raising=False)
    monkeypatch.setattr("warnings.formatwarning", warnings.formatwarning)
    outputs = {}
    for file, text in steps():
        if file:
            (tmp_path / file).write_text(text)
        else:
            run_script(text, monkeypatch)
            outputs[text] = capsys.readouterr().out
    assert len(outputs) == 14
    assert "survived" in outputs["python dog.py run_mode=eval checkpoint=runs/first"]
    assert "250.0 ± 0.0 control steps" in outputs["python dog_evaluated.py run_mode=eval checkpoint=runs/first"]
    for file, row in {
        "dog.py": r"observation/actor +│ gyro +│ SensorReading \+ UniformNoise +│ 3 +│",
        "dog_stands.py": r"reward +│ alive +│ Alive +│ +│ 1(?:\.0)? +│",
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
    (metrics,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/calm_dog/*/metrics.jsonl"))
    assert metrics["loss/action_size"] >= 0
    (metrics,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/two_speed_dog/*/metrics.jsonl"))
    assert 0 < metrics["error/velocity/speed_m_s"] < 2
    (rewards,) = tmp_path.glob("runs/logged_dog/*/rewards.csv")
    assert re.fullmatch(r"1,\S+\n", rewards.read_text())
    (report,) = tmp_path.glob("runs/reporting_dog/*/report.txt")
    assert re.fullmatch(r"1: reward \S+\nended after 96 steps by its limit\n", report.read_text())
    assert (report.parent / "kept" / "1" / "document.json").exists()


@pytest.mark.parametrize("page", OWN_PAGES, ids=lambda page: page.name)
def test_every_block_of_the_pages_is_run_by_a_test(page):
    text = page.read_text()
    marked = re.findall(r"<!-- (?:file: \S+|runs|runs: tests/\S+) -->\n```", text)
    assert len(marked) == len(re.findall(r"^```\w", text, flags=re.MULTILINE)) > 2


def test_page_on_tasks_lists_every_field_of_the_context():
    (section,) = re.findall(r"## What a term sees\n(.*?)\n## ", (ROOT / "docs/own_task.md").read_text(), re.DOTALL)
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(Context)} | {"dt"} == set(listed)


@pytest.mark.filterwarnings("ignore:Only 1 device detected")
def test_task_of_the_readme_trains_a_robot_with_nothing_but_defaults(tmp_path, monkeypatch):
    import ksim
    from tests.support.robots import BIPED

    (tmp_path / "my_robot.xml").write_text(BIPED)
    task = run_block("README.md", "class MyTask")["MyTask"]
    options = {"num_envs": 8, "num_devices": 2, "max_iterations": 1, "run_dir": str(tmp_path / "run")}
    assert task(ksim.DistributedPPOConfig(**options, **WITHOUT_REPORTS)).run().exit_code == 0


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page):
    for link, source in re.findall(r"\]\((?!http)([^)]+)\)|src=\"([^\"]+)\"", page.read_text()):
        target, _, anchor = (link or source).partition("#")
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_files_that_a_page_names_exist(page):
    named = re.findall(r"`((?:[\w.-]+/)+[\w-]+\.py)`", page.read_text())
    assert [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "ksim"))] == []


def test_settings_that_the_pages_name_are_options():
    options = set(HumanoidWalkingConfig.__dataclass_fields__)
    import examples.walking_distributed as distributed

    options |= set(distributed.HumanoidWalkingDistributedConfig.__dataclass_fields__)
    for page in ("README.md", "DISTRIBUTED_TRAINING.md", "docs/running.md"):
        text = re.sub(r"XLA_FLAGS=\S+", "", (ROOT / page).read_text())
        # Not those of other programs, as srun's --kill-on-bad-exit=0.
        for name in re.findall(r"(?<![\w-])([a-z_]+)=(?:\d+|eval|local|accumulate)\b", text):
            assert name in options | {"scale", "max_tilt", "seconds"}, name


HARDWARE = re.compile(r"\b(GPUs?|TPUs?|NVIDIA|CUDA|ROCm|NCCL|Kubernetes|accelerators?)\b")
"""Hardware and clusters that CI does not have."""
STATUSES = ["CI", "by hand", "compiled only", "not yet"]
IN_TABLE = (
    *("Python 3.11", "Python 3.12", "JAX 0.11", "macOS", "Docker", "native MuJoCo", "MJX", "Playground", "Brax"),
    *("8 devices of one CPU", "one GPU", "several GPUs", "ROCm", "TPU", "several processes", "several machines"),
    *("torchrun", "Slurm", "Open MPI", "Kubernetes", "TensorBoard", "Weights & Biases", "MLflow", "browser"),
    *("native window", "ONNX", "real robots"),
)


def running_text(page):
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_that_names_hardware_that_ci_lacks_links_to_the_table_of_what_was_tested(page):
    text = running_text(page)
    assert not re.search(r"\buntried\b", text, re.IGNORECASE), "docs/tested.md says it for all pages"
    assert page.name == "tested.md" or not HARDWARE.search(text) or re.search(r"\]\((?:docs/)?tested\.md", text)


def test_code_leaves_what_was_tested_to_the_table():
    paths = [path for folder in ("ksim", "examples", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in paths if re.search(r"\buntried\b", path.read_text(), re.IGNORECASE)] == []


def test_table_of_what_was_tested_has_a_row_for_each_thing():
    lines = [line for line in (ROOT / "docs/tested.md").read_text().splitlines() if line.startswith("|")]
    (what, *statuses), _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert (what, statuses) == ("what", STATUSES)
    rows = {name: cells for name, *cells in rows if not name.startswith("**")}
    assert all(len(cells) == len(STATUSES) and any(cells) for cells in rows.values())
    assert [name for name in IN_TABLE if not any(name in row for row in rows)] == []


def test_citation_has_the_version_of_the_package():
    import ksim

    assert f"\nversion: {ksim.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {ksim.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_installs_the_other_project_that_is_called_ksim_on_package_indexes():
    suffixes = {".py", ".md", ".toml", ".txt", ""}
    files = [*ROOT.glob("*.md"), ROOT / "Makefile"]
    for folder in ("ksim", "docs", "examples", "benchmarks", "tests"):
        files += [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in suffixes]
    for path in files:
        assert not re.findall(r"pip install (?:-\S+ )*['\"]?ksim\b(?!-rl)", path.read_text(errors="ignore")), path
