"""Files of a run's directory, damaged in their structure: an error that names the file, or no effect.

Where a file has digests, they are right: the damage is of somebody who has written it so.
"""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ksim
from examples.point_mass import PointMassConfig, PointMassTask
from ksim import cli
from ksim.checkpoint.format import (
    _digest_of_document,
    _digests,
    _sizes,
    load_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from ksim.checkpoint.options import make_config
from ksim.checkpoint.progress import Progress
from ksim.checkpoint.run_dir import newest_run_dir
from ksim.checkpoint.snapshot import named_arrays, restored, restored_policy, run_document
from ksim.errors import ConfigError
from ksim.evaluate.curves import read_curves
from ksim.log.jsonl import cut_lines
from ksim.policy.load import PROGRAM, START
from ksim.tools import plot
from ksim.train.start import check_start, find_start, prepare_run_dir, print_resumed, started_state
from tests.support.checkpoints import DOCUMENT, save_run
from tests.support.json_damages import DEEP, garbled, misshapen
from tests.support.processes import exit_code
from tests.support.scale import scale
from tests.support.tasks import point_mass_task

pytestmark = pytest.mark.filterwarnings("ignore:.*(damaged|left out)")
SMALL = {"num_envs": 16, "rollout_length": 8, "actor_sizes": [8], "critic_sizes": [8], "num_devices": 1}
BASE = PointMassConfig(**SMALL)
ESTIMATE = {"mean": 2.0, "low": None, "high": 3.0}


@dataclasses.dataclass
class Run:
    """A run of one iteration that never ran, and what reads it."""

    path: Path
    task: PointMassTask
    state: object

    def copied(self, to):
        shutil.copytree(self.path, to)
        return dataclasses.replace(self, path=to)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "run"
    task = point_mass_task(**SMALL)
    state = save_run(task, path)
    document = run_document(task, iteration=1, progress=DOCUMENT["progress"], last_episodes={"return": 1.5})
    write_checkpoint(path / "dumps" / "2", named_arrays(state), document)
    rows = [{"iteration": i, "env_steps": 128 * i, "episode/return": None if i == 1 else 1.5} for i in (1, 2)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluation = {"iteration": 1, "env_steps": 128, "figures": {"return": ESTIMATE, "length": ESTIMATE}}
    (path / "evaluations.jsonl").write_text(json.dumps(evaluation) + "\n")
    return Run(path, task, state)


def copies(run, tmp_path, number):
    """Copies of the run with their numbers, one at a time."""
    for seed in range(number):
        copy = run.copied(tmp_path / str(seed))
        yield seed, copy
        shutil.rmtree(copy.path)


def resume(run):
    config = make_config(BASE, [f"resume={run.path}"], "point_mass_task")
    start = find_start(config, "point_mass_task")
    if start.checkpoint is not None:
        task = PointMassTask(config)
        check_start(run.task, start)
        print_resumed(task, start)
        if start.run_dir is not None:
            prepare_run_dir(run.path, start)
        Progress(128, None, None).resume(start.checkpoint.document["progress"])
        started_state(run.task, start, run.state)


def resume_auto(run):
    config = make_config(BASE, ["resume=auto", f"run_dir={run.path}"], "point_mass_task")
    find_start(config, "point_mass_task")


def load_weights(run):
    config = make_config(BASE, [f"load_weights={run.path}", "run_dir=new"], "point_mass_task")
    restored_policy(find_start(config, "point_mass_task").checkpoint, run.state.learner)


def evaluate_best(run):
    config = make_config(BASE, ["run_mode=eval", f"checkpoint={run.path}/checkpoints/best"], "point_mass_task")
    restored_policy(load_checkpoint(config.checkpoint, "checkpoint"), run.state.learner)


def replay(run):
    config = make_config(BASE, ["run_mode=replay", f"checkpoint={run.path}/dumps/2"], "point_mass_task")
    restored(load_checkpoint(config.checkpoint, "checkpoint"), run.state)


def load_policy(run):
    ksim.load_policy(run.path)


def draw(run):
    curves = read_curves(run.path)
    json.dumps(curves.record())
    curves.evaluated("return")
    curves.evaluated("length")


OF_CHECKPOINTS = (resume, resume_auto, load_weights, evaluate_best, load_policy)
READERS = {
    "config.yaml": (resume_auto,), "metrics.jsonl": (draw,), "evaluations.jsonl": (evaluate_best, draw),
    "checkpoints/1/document.json": OF_CHECKPOINTS, "dumps/2/document.json": (replay,),
}  # fmt: skip
"""The readers of each file."""


OF_AN_OPTION = ("must be", "must have", "must equal", "needs", "need", "cannot")
"""Words about a value that is of the right type and out of its range."""


def complaint_of(reader, run):
    """The ConfigError that a reader of a run raises, or None. An error of another kind fails the test."""
    try:
        reader(run)
    except ConfigError as error:
        return str(error)
    return None


def read_all(run, name):
    """The number of readers that refuse a file. The message of each must name the run or an option."""
    complaints = [x for x in (complaint_of(reader, run) for reader in READERS[name]) if x is not None]
    for x in complaints:
        assert str(run.path) in x or any(word in x for word in OF_AN_OPTION), x
        assert len(x) < 3000
    return len(complaints)


def with_digests(directory, text):
    """Writes a document as its digest says, where it is one that can have one."""
    try:
        content = json.loads(text)
        content["digest"] = _digest_of_document(content)
        text = json.dumps(content)
    except (AttributeError, ValueError, TypeError, RecursionError):
        pass
    (directory / "document.json").write_text(text, errors="surrogatepass")


@pytest.mark.parametrize("name", ["checkpoints/1/document.json", "dumps/2/document.json"])
def test_document_of_another_shape(name, run, tmp_path):
    found = 0
    for seed, copy in copies(run, tmp_path, scale(40, 1000)):
        path = copy.path / name
        with_digests(path.parent, misshapen(path.read_text(), seed))
        found += read_all(copy, name) > 0
    assert found


@pytest.mark.parametrize("name", ["iteration", "config", "versions", "num_devices", "progress", "leaves", "files"])
def test_part_of_a_document_that_is_something_else_is_damage(name, run, tmp_path):
    path = run.copied(tmp_path / "copy").path / "checkpoints" / "1"
    document = json.loads((path / "document.json").read_text())
    for value in ("a text", None, [], 1.5, {"x": []}, True):
        if name in ("config", "leaves") and value == {"x": []}:
            continue
        with_digests(path, json.dumps({**document, name: value}))
        with pytest.raises(ConfigError, match=rf"Checkpoint {path} is damaged: document.json: .*{name}"):
            read_checkpoint(path)


@pytest.mark.parametrize("name", READERS)
def test_file_that_is_garbled(name, run, tmp_path):
    for seed, copy in copies(run, tmp_path, scale(25, 500)):
        path = copy.path / name
        path.write_bytes(garbled(path.read_bytes(), seed))
        if name == "config.yaml":  # it is read where there are no checkpoints
            shutil.rmtree(copy.path / "checkpoints")
        read_all(copy, name)
        cut_lines(copy.path, 1)


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_line_of_another_shape(name, run, tmp_path):
    for seed, copy in copies(run, tmp_path, scale(40, 1000)):
        lines = (copy.path / name).read_text().splitlines()
        (copy.path / name).write_text("\n".join([*lines, misshapen(lines[0], seed), lines[0]]) + "\n")
        read_all(copy, name)
        cut_lines(copy.path, 1)


def test_arrays_of_others_with_right_digests(run, tmp_path):
    for seed, copy in copies(run, tmp_path, scale(15, 300)):
        path = copy.path / "checkpoints" / "1"
        data = bytearray((path / "arrays.safetensors").read_bytes())
        header = 8 + int.from_bytes(data[:8], "little")
        place = np.random.default_rng(seed).integers(len(data) if seed % 4 == 0 else header)
        data[place] ^= 1 << seed % 8
        (path / "arrays.safetensors").write_bytes(data)
        document = json.loads((path / "document.json").read_text())
        document["sizes"] = {name: x for name, x in _sizes(path).items() if name != "document.json"}
        document["files"] = _digests(path, document["sizes"])
        with_digests(path, json.dumps(document))
        for reader in (resume, load_weights):
            assert str(copy.path) in (complaint_of(reader, copy) or str(copy.path))


def test_program_that_does_not_fit_its_checkpoint_is_an_error(run, tmp_path):
    found = read_checkpoint(run.path / "checkpoints" / "1")
    arrays = {name: x[..., :-1] if "actor" in name and x.ndim else x for name, x in found.arrays.items()}
    others = ({PROGRAM: found.arrays[START]}, {START: np.zeros((), np.float32)})
    for number, wrong in enumerate((arrays, *({**found.arrays, **other} for other in others))):
        path = tmp_path / str(number) / "checkpoints" / "1"
        write_checkpoint(path, wrong, {k: x for k, x in found.document.items() if k not in ("leaves", "files")})
        words = rf"program of the policy in checkpoint {path} .*load_policy\(path, task="
        with pytest.raises(ConfigError, match=words):
            ksim.load_policy(path)


def test_run_is_named_by_digits_alone(run, monkeypatch, tmp_path):
    for name in ("run_²", "run_٣", "run_", "run_x", "run_7"):
        shutil.copytree(run.path, tmp_path / "runs" / "point_mass_task" / name)
    assert newest_run_dir("point_mass_task").name == "run_7"


@pytest.mark.parametrize("text", ["x: 2001-99-99\n", "x: " + DEEP, "resume: !!int abc", "\0", "&a [*a]", "- a"])
def test_config_that_is_no_config_is_no_obstacle(text, run, tmp_path):
    copy = run.copied(tmp_path / "copy")
    shutil.rmtree(copy.path / "checkpoints")
    (copy.path / "config.yaml").write_text(text)
    resume_auto(copy)


def test_best_is_found_among_lines_that_are_no_evaluations(run, tmp_path):
    copy = run.copied(tmp_path / "copy")
    (copy.path / "evaluations.jsonl").write_text("{}\n" + (run.path / "evaluations.jsonl").read_text())
    with pytest.warns(UserWarning, match=r"evaluations.jsonl: line 1 is not what a run writes"):
        assert load_checkpoint(copy.path / "checkpoints" / "best", "checkpoint").iteration == 1


def test_curves_without_a_line_that_is_one_are_an_error_with_exit_code_2(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{}\n[]\n{"iteration": 1, "env_steps": "x"}\n')
    with pytest.warns(UserWarning, match="line 1 is not what"):
        assert plot.main([str(tmp_path), "--out", "x.png"]) == 2
    assert f"There are no metrics in {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["resume", "eval"])
def test_config_that_is_a_text_is_an_error_on_the_command_line(mode, run, tmp_path, capsys):
    path = run.copied(tmp_path / "copy").path
    document = json.loads((path / "checkpoints" / "1" / "document.json").read_text())
    with_digests(path / "checkpoints" / "1", json.dumps({**document, "config": "a text"}))
    arguments = [f"resume={path}"] if mode == "resume" else ["run_mode=eval", f"checkpoint={path}"]
    assert exit_code(cli.launch, PointMassTask, PointMassConfig(), arguments) == 2
    err = capsys.readouterr().err
    assert f"Error: Checkpoint {path}/checkpoints/1 is damaged: document.json: config ('a text')" in err
    assert "Traceback" not in err
