"""Damage to a checkpoint's files, one at a time: found, or without effect; never a silent wrong load."""

import builtins
import contextlib
import errno
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import socket
import subprocess

import chex
import numpy as np
import pytest
import tensorstore as ts

import ksim
from ksim.checkpoint import format as checkpoint_format
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
from tests.support.checkpoints import DOCUMENT
from tests.support.scale import scale
from tests.support.tasks import MESSAGE, point_mass_task

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
    write_checkpoint(tmp_path / "7", arrays, other.document)
    shutil.copy(checkpoint / "document.json", tmp_path / "7" / "document.json")
    with pytest.raises(DamagedError, match=r"state/.* is (not what was written|missing|no part of the checkpoint)"):
        read_checkpoint(tmp_path / "7")


def signed(path, **changes):
    """Writes a checkpoint's document anew, with digests of the files that are there, as somebody of ill will would."""
    document = json.loads((path / "document.json").read_text())
    files = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file() and p.name != "document.json"}
    document["sizes"] = {name: file.stat().st_size for name, file in files.items()}
    document["files"] = {
        name: hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for name, file in files.items()
    }
    document |= changes
    text = json.dumps({name: x for name, x in document.items() if name != "digest"}, sort_keys=True)
    document["digest"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    (path / "document.json").write_text(json.dumps(document))


def arrays_of(path, count, chunk, dtype="<f4"):
    """Replaces the arrays of a checkpoint by one that is of a size by its header alone."""
    shutil.rmtree(path / "state")
    header = {"chunks": [chunk], "shape": [count], "dtype": dtype, "compressor": {"id": "zstd", "level": 1}}
    header |= {"fill_value": None, "filters": None, "order": "C", "dimension_separator": ".", "zarr_format": 2}
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{path}/state/"}).result()
    store.write("float32/.zarray", json.dumps(header).encode()).result()


def numbers(count, chunk, *shape, dtype="float32"):
    """A checkpoint whose arrays are of a size by their header, and of a shape by the document."""

    def change(path):
        arrays_of(path, count, chunk)
        signed(path, leaves={"x": {"shape": list(shape), "dtype": dtype}})

    return change


def told(*shape, dtype="float32"):
    return lambda path: signed(path, leaves={"x": {"shape": list(shape), "dtype": dtype}})


def linked(name, target, **changes):
    """A checkpoint with a link in place of a file, whose document knows of no other, or only of `changes`."""

    def change(path):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(target)
        if changes:
            signed(path, **changes)

    return change


def fifo(name):
    def change(path):
        (path / name).unlink()
        os.mkfifo(path / name)

    return change


def bound(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(os.path.relpath(path / "state" / "socket"))


def moved(path):
    shutil.move(path / "document.json", path.parent / "x")
    (path / "document.json").symlink_to("../x")


METADATA = "state/_METADATA"
HOSTILE = {
    "2^40 numbers": (numbers(2**40, 2**40, 3), "and not 3"),
    "2^40 numbers that it tells of": (numbers(2**40, 2**40, 2**40), "too small for arrays of 4398046511104 bytes"),
    "parts of 2^40 numbers": (numbers(3, 2**40, 3), "in parts of"),
    "shapes that overflow": (told(*[2**40] * 40), "too small for arrays"),
    "a negative shape": (told(-1, -3), "an array has an invalid shape"),
    "a shape of texts": (told("3"), "an array has an invalid shape"),
    "objects": (told(3, dtype="object"), "an array has an invalid type"),
    "a type by another name": (told(3, dtype="f4"), "an array has an invalid type"),
    "a type that leads out": (told(3, dtype="../x"), "data type '../x' not understood"),
    "a FIFO as document": (fifo("document.json"), "document.json: it is no regular file"),
    "a FIFO in the state": (fifo(METADATA), f"{METADATA} is no regular file"),
    "a link as document": (moved, "document.json: it is no regular file"),
    "a link out": (linked(METADATA, "/etc/hostname"), f"{METADATA} is no regular file"),
    "a link out, listed": (linked(METADATA, "/etc/hostname", iteration=7), f"{METADATA} is no regular file"),
    "a link out, of no files": (
        linked(METADATA, "/etc/hostname", files={}, sizes={}),
        f"{METADATA} is no regular file",
    ),
    "a link to what never ends": (linked(METADATA, "/dev/zero"), f"{METADATA} is no regular file"),
    "a linked directory": (linked("state/more", "/etc"), "state/more is no regular file"),
    "a link into itself": (linked("state/more", "."), "state/more is no regular file"),
    "a socket": (bound, "state/socket is no regular file"),
    "no files": (lambda path: signed(path, files={}, sizes={}), "is no part of the checkpoint; remove it"),
    "a file more": (lambda path: (path / "state/more").touch(), "state/more is no part of the checkpoint; remove it"),
    "a file that has grown": (lambda path: os.truncate(path / METADATA, 2**40), "it has another size"),
    "a very large document": (lambda path: os.truncate(path / "document.json", 2**40), "a very large one"),
    "another number": (lambda path: signed(path, iteration=8), "it is that of iteration 8, under another number"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_checkpoint_is_damage_before_it_takes_time_or_memory(kind, checkpoint, tmp_path):
    path = tmp_path / "checkpoints" / "7"
    shutil.copytree(checkpoint, path)
    change, words = HOSTILE[kind]
    change(path)
    with pytest.raises(DamagedError, match=f"^Checkpoint {path} is damaged: .*{re.escape(words)}"):
        read_checkpoint(path)
    with pytest.raises(ConfigError, match=re.escape(words)):
        ksim.load_policy(tmp_path)


def test_checkpoint_without_sizes_is_read_as_before_there_were_any(checkpoint, tmp_path):
    path = shutil.copytree(checkpoint, tmp_path / "7")
    document = {
        x: y for x, y in json.loads((path / "document.json").read_text()).items() if x not in ("sizes", "digest")
    }
    text = json.dumps(document, sort_keys=True)
    document["digest"] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    (path / "document.json").write_text(json.dumps(document))
    chex.assert_trees_all_equal(dict(read_checkpoint(path).arrays), dict(read_checkpoint(checkpoint).arrays))
    os.truncate(path / "state" / "_METADATA", 5)
    with pytest.raises(DamagedError, match="_METADATA is not what was written"):
        read_checkpoint(path)


def test_checkpoint_renamed_to_a_higher_number_is_not_the_newest(checkpoint, tmp_path):
    for name in ("7", "900"):
        shutil.copytree(checkpoint, tmp_path / "checkpoints" / name)
    with pytest.warns(UserWarning, match=r"900 is damaged: it is that of iteration 7, under another number\. The one"):
        assert load_checkpoint(tmp_path, "resume").path.name == "7"


def test_copy_of_a_dump_may_have_its_number(checkpoint, tmp_path):
    # Dumps have the number of the iteration that follows.
    for directory in ("dumps", "copies"):
        assert read_checkpoint(shutil.copytree(checkpoint, tmp_path / directory / "8")).iteration == 7


ROOMLESS = {
    "no place for a link": ("_plain_path", OSError(errno.ENOSPC, "No space left on device"), "No space left.*TMPDIR"),
    "no memory": ("_read_arrays", MemoryError(), "its arrays do not fit into memory"),
}


@pytest.mark.parametrize("kind", ROOMLESS)
def test_machine_without_room_is_no_damage_and_no_older_checkpoint_is_used(kind, checkpoint, tmp_path, monkeypatch):
    name, error, words = ROOMLESS[kind]

    def fail(*_):
        raise error

    for number in (6, 7):
        shutil.copytree(checkpoint, tmp_path / "checkpoints" / str(number))
    monkeypatch.setattr(checkpoint_format, name, fail)
    with pytest.raises(ConfigError, match=f"7 cannot be read here: .*{words}"):
        load_checkpoint(tmp_path, "resume")


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
