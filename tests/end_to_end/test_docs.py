"""The code in the docs does what the docs say."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from examples.walking import HumanoidWalkingConfig
from ksim.mdp.term import Context
from tests.end_to_end.pages import PAGES, code, running_text
from tests.support.processes import ROOT
from tests.support.tasks import WITHOUT_REPORTS, train_iterations


def run_block(page, containing):
    (block,) = [text for language, text in code(page) if language == "python" and containing in text]
    names = {"__name__": "docs"}
    exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.long
@pytest.mark.parametrize(("task", "options"), [("OneDevice", {}), ("AllDevices", {"num_devices": 2})])
def test_environment_of_the_page_on_environments_is_trained_by_both_tasks(task, options, tmp_path, capsys):
    import ksim

    names = run_block("own_environment.md", "class PointMass")
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


@pytest.mark.long
def test_environment_in_the_style_of_gymnax_is_trained_by_the_adapter_of_the_page_on_environments():
    import ksim

    adapter = run_block("own_environment.md", "class Adapted")["Adapted"](Drift(), {"noise": jnp.float32(0.1)})

    class Task(ksim.PPOTask):
        def get_environment(self, engine, num_devices):
            return adapter

    task = Task(ksim.PPOConfig(num_envs=8, rollout_length=4, **WITHOUT_REPORTS))
    _, history = train_iterations(task, 2)
    assert history[-1]["rollout/reward"] < 0


def test_page_on_tasks_lists_every_field_of_the_context():
    (section,) = re.findall(r"## What a term sees\n(.*?)\n## ", (ROOT / "docs/own_task.md").read_text(), re.DOTALL)
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert {field.name for field in dataclasses.fields(Context)} | {"dt"} == set(listed)


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", running_text(page.name), re.MULTILINE)
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
    for page in ("README.md", "DISTRIBUTED_TRAINING.md", "docs/running.md", "docs/clusters.md"):
        text = re.sub(r"XLA_FLAGS=\S+", "", (ROOT / page).read_text())
        # Not those of other programs, as srun's --kill-on-bad-exit=0.
        for name in re.findall(r"(?<![\w=-])([a-z_]+)=(?:\d+|eval|local|accumulate)\b", text):
            assert name in options | {"scale", "max_tilt", "seconds"}, name


HARDWARE = re.compile(r"\b(GPUs?|TPUs?|NVIDIA|CUDA|ROCm|NCCL|Kubernetes|accelerators?)\b")
"""Hardware and clusters that CI does not have."""
STATUSES = ["CI", "by hand", "compiled for", "not yet"]
IN_TABLE = (
    *("Python 3.11", "Python 3.12", "JAX 0.11", "macOS", "Docker", "native MuJoCo", "MJX", "Playground", "Brax"),
    *("8 devices of one CPU", "one GPU", "several GPUs", "ROCm", "TPU", "several processes", "several machines"),
    *("torchrun", "Slurm", "Open MPI", "Kubernetes", "TensorBoard", "Weights & Biases", "MLflow", "browser"),
    *("native window", "ONNX", "real robots"),
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_that_names_hardware_that_ci_lacks_links_to_the_table_of_what_was_tested(page):
    text = running_text(page.name)
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
