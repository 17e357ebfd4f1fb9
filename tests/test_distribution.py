"""The wheel and the source distribution, as somebody gets them who has no clone."""

import email
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ksim
from tests.end_to_end.stand_in import view
from tests.support.processes import ROOT, environment, free_port
from tests.support.scale import only_in_full

pytestmark = pytest.mark.long
EXTRAS = only_in_full("an environment for each extra")
TRAIN = ("num_envs=16", "max_iterations=2", "eval_at_end=false", "video=false", "plots=false")
NOT_OURS = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "runs")


def run(*command, cwd, check=True, **changes):
    env = environment(PYTHONPATH=None, **changes)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=500, check=False)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def files_of(folder):
    """The files of ksim and of the examples that belong into a wheel, by their path in it."""
    found = {}
    for package, place in (("ksim", "ksim"), ("examples", "ksim/examples")):
        paths = [path for path in (folder / package).rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
        found |= {f"{place}/{path.relative_to(folder / package).as_posix()}": path.read_bytes() for path in paths}
    return found


def content_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The directory of the distributions, which are built from a copy of the repository."""
    clone = tmp_path_factory.mktemp("build") / "clone"
    shutil.copytree(ROOT, clone, ignore=NOT_OURS)
    run(sys.executable, "-m", "build", cwd=clone)
    return clone / "dist"


@pytest.fixture(scope="module")
def wheel(dist):
    (wheel,) = dist.glob(f"ksim_rl-{ksim.__version__}-*.whl")
    return wheel


def required_by(wheel, *extras):
    """The distributions that a wheel requires, and those that these require, of those installed here."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    left, found, seen = [(line, extras) for line in lines], {}, set()
    while left:
        line, wanted = left.pop()
        required = Requirement(line)
        if required.marker is not None and not any(required.marker.evaluate({"extra": x}) for x in ("", *wanted)):
            continue
        key = (canonicalize_name(required.name), frozenset(required.extras))
        if key not in seen:
            seen.add(key)
            found[key[0]] = metadata.distribution(required.name)
            assert found[key[0]].version in required.specifier
            left += [(more, tuple(required.extras)) for more in found[key[0]].requires or ()]
    return found


def environment_of(wheel, path, *extras):
    """The programs of a fresh environment that has a wheel and what it requires, by links to each file, and no more."""
    run(sys.executable, "-m", "venv", "--without-pip", path, cwd=path.parent)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(path), "platbase": str(path)}))
    for distribution in required_by(wheel, *extras).values():
        for file in distribution.files:
            if ".." not in file.parts and (source := Path(distribution.locate_file(file))).is_file():
                link = packages / file
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():  # some packages of a family bring the same file
                    link.symlink_to(source)
    pip = (sys.executable, "-m", "pip", "--python", path / "bin/python")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=path.parent)
    return path / "bin"


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The programs of an environment that has the wheel and nothing but what it requires."""
    return environment_of(wheel, tmp_path_factory.mktemp("base") / "env")


@pytest.fixture(scope="module")
def run_dir(programs, tmp_path_factory):
    """A run of the humanoid that `ksim-train` has made in an empty folder."""
    folder = tmp_path_factory.mktemp("trained")
    done = run(programs / "ksim-train", *TRAIN, cwd=folder)
    assert "iteration 2/2" in done.stdout
    assert "will hold no program" not in done.stdout + done.stderr
    return folder / "runs/humanoid_walking_distributed_task/run_000"


def test_wheel_has_every_file_of_ksim_and_the_examples_and_no_other(wheel):
    assert content_of(wheel) == files_of(ROOT)


def test_name_licence_and_readme_are_in_the_wheel(wheel):
    info = f"ksim_rl-{ksim.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        message = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        assert archive.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    readme = str(message.get_payload())
    assert (message["Name"], message["Description-Content-Type"]) == ("ksim-rl", "text/markdown")
    assert readme.startswith("# ksim\n")
    # On the page of an index they would lead nowhere.
    assert not re.findall(r"\]\((?!https?:)|<img", readme)
    assert "docs/own_robot.md" in readme


def test_source_distribution_has_what_its_tests_need(dist):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(member.name).parts[1:]).as_posix() for member in archive if member.isfile()}
    folders = ("benchmarks", "docs", "examples", "ksim", "tests", "typings")
    wanted = {path.relative_to(ROOT) for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()}
    wanted = {path.as_posix() for path in wanted if "__pycache__" not in path.parts}
    assert wanted <= names
    assert {"Makefile", "constraints.txt", "pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names
    assert {"DISTRIBUTED_TRAINING.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff"} <= names


def test_installed_ksim_needs_no_clone_and_takes_no_other_name(programs, tmp_path):
    done = run(programs / "python", "-c", "import ksim.examples; print(ksim.__file__)", cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(programs.parent)
    done = run(programs / "python", "-c", "import examples", cwd=tmp_path, check=False)
    assert "No module named 'examples'" in done.stderr


def test_environment_has_nothing_but_the_requirements(programs, tmp_path):
    for name in ("pytest", "viser", "onnx", "hypothesis"):
        done = run(programs / "python", "-c", f"import {name}", cwd=tmp_path, check=False)
        assert f"No module named '{name}'" in done.stderr


def test_ksim_train_trains_the_humanoid_in_an_empty_folder(run_dir):
    assert (run_dir / "checkpoints/2").is_dir()


LOAD = """
import sys, jax, ksim, numpy as np
policy = ksim.load_policy(sys.argv[1])
assert policy(np.zeros(policy.obs_sizes["actor"])).shape == (policy.action_size,)
"""


def test_policy_of_a_run_is_loaded_without_its_task(programs, run_dir, tmp_path):
    run(programs / "python", "-c", LOAD, run_dir, cwd=tmp_path)  # by the program in the checkpoint


@pytest.mark.parametrize(
    ("options", "extra"), [(("run_mode=export",), "export"), (("run_mode=view", "viewer=browser"), "viewer")]
)
def test_what_needs_an_extra_says_which(programs, run_dir, options, extra, tmp_path):
    done = run(programs / "ksim-train", *options, f"checkpoint={run_dir}", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert f"pip install 'ksim-rl[{extra}]'" in done.stdout + done.stderr


@EXTRAS
def test_policy_of_a_run_is_exported_with_the_extra(wheel, run_dir, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install -e '.[export]'")
    programs = environment_of(wheel, tmp_path / "env", "export")
    run(programs / "ksim-train", "run_mode=export", f"checkpoint={run_dir}", cwd=tmp_path)
    assert (run_dir / "export/policy.onnx").is_file()


def test_policy_in_the_wheel_walks(programs, tmp_path):
    options = ("run_mode=eval", "checkpoint=pretrained", "eval_num_envs=2", "video=false", "plots=false")
    run(programs / "ksim-train", "walking", *options, cwd=tmp_path)
    (written,) = tmp_path.rglob("evaluation.json")
    assert json.loads(written.read_text())["figures"]["survival"]["mean"] == 1.0


@EXTRAS
def test_policy_in_the_wheel_is_shown_in_the_browser_with_the_extra(wheel, tmp_path):
    pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")
    programs = environment_of(wheel, tmp_path / "env", "viewer")
    options = ("run_mode=view", "viewer=browser", "checkpoint=pretrained", f"viewer_port={free_port()}")
    env = environment(PYTHONPATH=None)
    assert view([programs / "ksim-train", "walking", *options], cwd=tmp_path, env=env) == 0


def test_container_copies_all_that_it_installs(wheel, tmp_path):
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", "").splitlines()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    source = tmp_path / "src"
    source.mkdir()
    for line in lines:
        if line.startswith("COPY "):
            *names, target = line.split()[1:]
            assert target.startswith("/src/")
            assert set(names) <= allowed
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, source / name, ignore=NOT_OURS)
                else:
                    shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, source, cwd=tmp_path)
    (built,) = tmp_path.glob("*.whl")
    assert content_of(built) == content_of(wheel)
    (extras,) = [line.removeprefix("ARG EXTRAS=").split(",") for line in lines if line.startswith("ARG EXTRAS=")]
    assert set(extras) <= set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert 'ENTRYPOINT ["ksim-train"]' in lines
