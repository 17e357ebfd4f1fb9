"""The rule of which layer may import which, kept by reading the imports."""

import ast
import functools
import graphlib
import re
from pathlib import Path

import pytest

from tests.support.processes import run

ROOT = Path(__file__).parents[1] / "ksim"

# What each package of the traced layers may import of ksim, besides itself.
ALLOWED = {
    "errors": set(),
    "host": {"errors"},
    "checks": {"errors"},
    "types": set(),
    "keys": set(),
    "config": {"errors", "host", "checks"},
    "physics": {"errors", "checks", "types", "host"},
    "motion": {"errors", "checks", "host", "physics"},
    "mdp": {"errors", "checks", "types", "keys", "physics", "motion"},
    "robot": {"errors", "physics"},
    "parallel": {"errors", "checks", "types", "host"},
    "nn": {"errors", "checks", "types", "parallel"},
    "rollout": {"errors", "checks", "types", "keys", "physics", "mdp", "nn", "parallel"},
    "mirror": {"errors", "types", "physics", "mdp", "rollout"},
    "learn": {"errors", "checks", "types", "nn", "parallel", "rollout"},
    "ppo": {"errors", "checks", "types", "keys", "nn", "parallel", "rollout", "learn", "mirror"},
    "log": {"errors", "checks", "types", "host", "parallel"},
}
# The house from the bottom up: a package may import those before it.
ORDER = [
    "_version", "errors", "host", "_process", "checks", "types", "keys", "config", "physics", "motion",
    "mdp", "robot", "parallel", "nn", "rollout", "mirror", "learn", "ppo", "log", "task", "tasks", "envs", "checkpoint",
    "policy", "evaluate", "preflight", "viewer", "train", "launch", "cli", "tools", "doctor", "__init__",
]  # fmt: skip
HOST = ("log", "checkpoint", "policy", "evaluate", "preflight", "train", "viewer", "launch", "cli", "tools")
HIDDEN = {"_process", "_version", "__init__"}
"""Not packages that a reader looks for."""
NEVER_BELOW_RUN = {"matplotlib", "tensorboardX", "rich", "safetensors", "logging"}


@functools.cache
def nodes_of(path):
    """All nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports_of(path):
    """The modules that a file imports, wherever in it."""
    names = {alias.name for node in nodes_of(path) if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes_of(path) if isinstance(node, ast.ImportFrom) and node.module}


def files_of(package):
    single = ROOT / f"{package}.py"
    return [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))


def rooms_of(path):
    """The packages and modules of ksim that a file imports, wherever in it, also where only type checkers look."""
    return {name.split(".")[1] for name in imports_of(path) if name.startswith("ksim.")}


def test_every_package_has_its_place():
    found = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found | ALLOWED.keys() <= set(ORDER)


@pytest.mark.parametrize("package", ORDER)
def test_package_imports_only_those_before_it_and_a_traced_one_only_its_own(package):
    for path in files_of(package):
        above = {room for room in rooms_of(path) if ORDER.index(room) > ORDER.index(package)}
        assert not above, f"{path} imports {above}"
        others = rooms_of(path) - ALLOWED.get(package, set(ORDER)) - {package}
        assert not others, f"{path} imports {others}"


def test_architecture_page_draws_the_packages_as_they_import_each_other():
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    drawn = page.split("<!-- packages")[1].split("```")[1]
    rows = {int(row.split()[0]): set(row.split()[1:]) for row in drawn.strip().splitlines()}
    below = {package: set().union(*(rooms_of(path) for path in files_of(package))) for package in ORDER}

    def row_of(package):
        return 1 + max((row_of(other) for other in below[package] - {package}), default=-1)

    found = {}
    for package in set(ORDER) - HIDDEN:
        found.setdefault(row_of(package), set()).add(package)
    assert rows == found


def test_reading_order_of_the_architecture_page_names_functions_of_its_eight_files():
    page = (ROOT.parent / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| \d \| `(\S+)` \| (.*) \|$", page.split("## How to read ksim")[1], re.MULTILINE)
    assert len(rows) == 8
    for path, text in rows:
        nodes = nodes_of(ROOT.parent / path)
        defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert {name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", text)} <= defined, path


def test_functions_have_at_most_60_lines():
    for path in ROOT.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                first = node.body[1:] if ast.get_docstring(node) else node.body
                assert not first or node.end_lineno - first[0].lineno < 60, f"{path}: {node.name}"


def test_files_import_each_other_in_no_circle():
    edges = {}
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        edges[module] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ksim."):
                edges[module] |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    # A name that is imported may be a module of its own.
    edges = {module: {other for other in others if other in edges} - {module} for module, others in edges.items()}
    sorter = graphlib.TopologicalSorter(edges)
    sorter.prepare()  # raises CycleError with the circle


def test_functions_that_tasks_import_by_name_are_where_they_say():
    named = [name for path in ROOT.rglob("*.py") for name in re.findall(r'"(ksim[.\w]+:\w+)"', path.read_text())]
    assert "ksim.train.run:train" in named
    for name in named:
        module, function = name.split(":")
        file = ROOT.parent / f"{module.replace('.', '/')}.py"
        assert f"\ndef {function}(" in file.read_text(), name


def test_nothing_is_imported_for_type_checkers_alone():
    for path in ROOT.rglob("*.py"):
        for node in nodes_of(path):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                assert not any(isinstance(inner, ast.ImportFrom | ast.Import) for inner in ast.walk(node)), path


def test_only_the_tasks_of_an_algorithm_know_it_by_name():
    users = {path for path in ROOT.rglob("*.py") if "ppo" in rooms_of(path)} - set(files_of("ppo"))
    assert users == {ROOT / "task" / name for name in ("ppo.py", "distillation.py", "amp.py", "reppo.py")}
    for package in HOST:
        for path in {*files_of(package)} - {ROOT / "tools" / "options.py"}:  # lists the options of all algorithms
            assert "PPO" not in path.read_text(), path
            assert not {"ksim.task.ppo"} & set(imports_of(path)), path


@pytest.mark.parametrize("package", ["mdp", "physics", "rollout", "learn", "ppo"])
def test_traced_layers_import_no_plotting_and_no_run(package):
    allowed = {ROOT / "physics" / "mujoco.py"}  # sends MuJoCo's own warnings to the log
    for path in files_of(package):
        if path not in allowed:
            assert not {name.split(".")[0] for name in imports_of(path)} & NEVER_BELOW_RUN, path


@pytest.mark.parametrize("library", ["omegaconf", "orbax", "tensorstore"])
def test_library_that_ksim_does_without_is_imported_nowhere(library):
    for path in ROOT.rglob("*.py"):
        assert library not in {name.split(".")[0] for name in imports_of(path)}, path


@pytest.mark.parametrize("name", ["jax.pmap", "jax.shard_map"])
def test_what_maps_over_devices_is_in_one_file(name):
    users = [path.name for path in ROOT.rglob("*.py") if name in path.read_text()]
    assert users == ["layout.py"]


COLLECTIVE = {"gather_rows", "gather_texts", "wait_for_all", "meet_peers", "fail_together", "verify_distributed_setup"}


def test_nothing_that_prints_runs_a_collective():
    for path in ROOT.rglob("*.py"):
        for function in nodes_of(path):
            if isinstance(function, ast.FunctionDef) and "print" in function.name:
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                called = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                assert not called & COLLECTIVE, f"{path}: {function.name}"


def test_plots_use_no_global_state_of_matplotlib():
    for path in ROOT.rglob("*.py"):
        names = set(imports_of(path))
        assert not any("pyplot" in name for name in names), path
        assert "matplotlib.use" not in path.read_text(), path


def test_only_plots_import_matplotlib_and_nobody_imports_them_at_the_start():
    users = {path.name for path in ROOT.rglob("*.py") if any(n.startswith("matplotlib") for n in imports_of(path))}
    assert users == {"plots.py"}
    for path in ROOT.rglob("*.py"):
        module = nodes_of(path)[0]
        assert isinstance(module, ast.Module)
        assert "ksim.evaluate.plots" not in {n.module for n in module.body if isinstance(n, ast.ImportFrom)}, path


def test_help_of_an_example_and_so_import_of_ksim_loads_no_library_that_few_programs_need():
    slow = {"orbax", "tensorstore", "matplotlib", "tensorboardX", "onnx", "viser", "wandb", "mlflow"}
    slow |= {"mujoco.mjx", "trimesh", "scipy", "imageio", "PIL", "sklearn", "torch", "pandas"}
    done = run("-X", "importtime", "-m", "examples.walking_distributed", "--help")
    assert "num_envs" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert {"ksim", "jax"} <= loaded
    assert not slow & loaded


@pytest.mark.long
def test_run_modes_import_none_of_the_optional_packages():
    blocked = ("viser", "msgspec", "onnx", "onnxruntime", "wandb", "mlflow", "brax", "mujoco_playground", "warp")
    program = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({blocked}))\n"
        "from ksim.task.config import RUN_MODES\n"
        "for name in RUN_MODES.values():\n"
        "    importlib.import_module(name.partition(':')[0])\n"
    )
    run("-c", program)
