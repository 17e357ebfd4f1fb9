"""The rule of which layer may import which, kept by reading the imports."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "ksim"

# What each package may import of ksim, besides itself.
ALLOWED = {
    "types": set(),
    "machine": set(),
    "notices": set(),
    "physics": {"types", "machine"},
    "mdp": {"types", "physics"},
    "parallel": {"types", "machine", "notices"},
    "nn": {"types", "parallel"},
    "rollout": {"types", "physics", "mdp", "nn", "parallel"},
    "ppo": {"types", "nn", "parallel", "rollout"},
    "config": {"types"},
}
NEVER_BELOW_RUN = {"matplotlib", "tensorboardX", "rich", "orbax", "logging"}


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def files_of(package):
    single = ROOT / f"{package}.py"
    return [single] if single.exists() else sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", ALLOWED)
def test_package_imports_only_the_layers_below_it(package):
    for path in files_of(package):
        for name in imports_of(path):
            if name.split(".")[0] == "ksim" and name != "ksim":
                assert name.split(".")[1] in ALLOWED[package] | {package}, f"{path} imports {name}"


@pytest.mark.parametrize("package", ["mdp", "physics", "rollout", "ppo"])
def test_traced_layers_import_no_plotting_and_no_run(package):
    allowed = {ROOT / "physics" / "mujoco.py"}  # sends MuJoCo's own warnings to the log
    for path in files_of(package):
        if path not in allowed:
            assert not {name.split(".")[0] for name in imports_of(path)} & NEVER_BELOW_RUN, path


def test_pmap_is_in_one_file():
    users = [path.name for path in ROOT.rglob("*.py") if "jax.pmap" in path.read_text()]
    assert users == ["layout.py"]


def test_plots_use_no_global_state_of_matplotlib():
    for path in ROOT.rglob("*.py"):
        names = set(imports_of(path))
        assert not any("pyplot" in name for name in names), path
        assert "matplotlib.use" not in path.read_text(), path


def test_only_plots_import_matplotlib_and_nobody_imports_them_at_the_start():
    users = {path.name for path in ROOT.rglob("*.py") if any(n.startswith("matplotlib") for n in imports_of(path))}
    assert users == {"plots.py"}
    for path in ROOT.rglob("*.py"):
        at_top = ast.Module([n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ImportFrom)], [])
        assert "ksim.evaluate.plots" not in {n.module for n in at_top.body if isinstance(n, ast.ImportFrom)}, path
