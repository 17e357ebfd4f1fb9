"""Damage to a checkpoint's files, one at a time: found, or without effect; never a silent wrong load."""

import builtins
import os
import pickle
import random
import shutil
import socket
import subprocess

import chex
import numpy as np
import pytest

from ksim.checkpoint.format import (
    DamagedError,
    list_checkpoints,
    load_checkpoint,
    read_checkpoint,
    remove_all_but,
    write_checkpoint,
)
from ksim.checkpoint.snapshot import named_arrays
from ksim.errors import ConfigError
from tests.checkpoints import DOCUMENT
from tests.faults.scale import scale
from tests.tasks import MESSAGE, point_mass_task

pytestmark = pytest.mark.filterwarnings(MESSAGE)
DAMAGES = ["truncate", "flip a bit", "empty", "remove", "zeros", "swap halves", "append"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    arrays = named_arrays(point_mass_task(num_devices=1).initial_state())
    arrays["incompressible"] = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    document = {**DOCUMENT, "iteration": 7, "progress": {**DOCUMENT["progress"], "env_steps": 2**40}}
    path = tmp_path_factory.mktemp("run") / "checkpoints" / "7"
    write_checkpoint(path, arrays, document)
    return path


def damage(path, kind, rng):
    data = bytearray(path.read_bytes())
    if kind == "remove":
        path.unlink()
        return
    if kind == "truncate":
        del data[rng.randrange(len(data)) if data else 0 :]
    elif kind == "flip a bit" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "empty":
        data.clear()
    elif kind == "zeros":
        data[:] = bytes(len(data))
    elif kind == "swap halves":
        half = len(data) // 2
        data[:] = data[half:] + data[:half]
    elif kind == "append":
        data += rng.randbytes(10)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_or_has_no_effect(kind, checkpoint, tmp_path):
    original = read_checkpoint(checkpoint)
    files = sorted(path.relative_to(checkpoint) for path in checkpoint.rglob("*") if path.is_file())
    rng, found, refused = random.Random(kind), 0, 0
    for i in range(scale(6, 100)):
        copy = shutil.copytree(checkpoint, tmp_path / str(i))
        damage(copy / rng.choice(files), kind, rng)
        try:
            read = read_checkpoint(copy)
        except DamagedError as error:
            refused += 1
            found += str(copy) in str(error)
            continue
        assert read.document == original.document
        assert read.arrays.keys() == original.arrays.keys()
        for name, x in read.arrays.items():
            assert x.dtype == original.arrays[name].dtype
            np.testing.assert_array_equal(x, original.arrays[name], err_msg=name)
        shutil.rmtree(copy)
    # Every refusal names the checkpoint; added bytes alone may be without effect.
    assert found == refused
    assert found or kind == "append"


def test_checkpoint_has_its_name_once_all_of_it_is_on_the_disk_and_then_its_name_is(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def note_and_sync(file):
        fsync(file)
        synced.append((os.fstat(file).st_ino, path.exists()))

    path = tmp_path / "checkpoints" / "1"
    monkeypatch.setattr(os, "fsync", note_and_sync)
    write_checkpoint(path, {"x": np.ones(3, np.float32)}, DOCUMENT)
    assert synced[-1] == (path.parent.stat().st_ino, True)
    before = {number for number, was_there in synced[:-1] if not was_there}
    assert {file.stat().st_ino for file in (path, *path.rglob("*"))} <= before
    assert len(before) >= 5


def test_arrays_of_another_checkpoint_in_their_place_are_found(checkpoint, tmp_path):
    other = read_checkpoint(checkpoint)
    arrays = {name: x + 1 if name == "incompressible" else x for name, x in other.arrays.items()}
    write_checkpoint(tmp_path / "8", arrays, other.document)
    shutil.copy(checkpoint / "document.json", tmp_path / "8" / "document.json")
    with pytest.raises(DamagedError, match=r"state/.* is not what was written"):
        read_checkpoint(tmp_path / "8")


def test_only_what_was_never_finished_is_removed_with_old_checkpoints(checkpoint, tmp_path):
    for name in ("6", "7", "8.unfinished", "5.removed", "8.copy"):
        shutil.copytree(checkpoint, tmp_path / name)
    (tmp_path / "6" / "document.json").unlink()
    remove_all_but(tmp_path, max_to_keep=2, also=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["6", "7", "8.copy"]


def test_unfinished_checkpoint_is_none(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "7.unfinished")
    (tmp_path / "checkpoints" / "8").mkdir()
    assert list_checkpoints(tmp_path / "checkpoints") == []
    with pytest.raises(ConfigError, match=r"^resume \(.*\) must be a run's directory"):
        load_checkpoint(tmp_path, "resume")


def test_reading_runs_nothing_that_a_checkpoint_holds(checkpoint, monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a checkpoint is data")

    for holder, name in (
        (pickle, "loads"),
        (pickle, "load"),
        (pickle, "Unpickler"),
        (builtins, "eval"),
        (subprocess, "Popen"),
        (socket.socket, "connect"),
    ):
        monkeypatch.setattr(holder, name, forbidden, raising=True)
    assert read_checkpoint(checkpoint).iteration == 7


def test_paths_in_a_checkpoint_lead_nowhere(checkpoint, tmp_path):
    # A name is a name, whatever it looks like.
    arrays = {"../../outside": np.ones(3, np.float32), "/etc/absolute": np.ones(2, np.float32)}
    write_checkpoint(tmp_path / "run" / "checkpoints" / "1", arrays, DOCUMENT)
    outside = {path for path in tmp_path.rglob("*") if "run/checkpoints/1" not in str(path)}
    assert {path.name for path in outside} == {"run", "checkpoints"}
    read = read_checkpoint(tmp_path / "run" / "checkpoints" / "1")
    chex.assert_trees_all_equal(dict(read.arrays), arrays)
