"""Damage to a checkpoint's files, one at a time: found, or without effect; never a silent wrong load."""

import builtins
import contextlib
import hashlib
import json
import os
import pickle
import random
import re
import shutil
import socket
import stat
import struct
import subprocess

import chex
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

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
from tests.support.tasks import point_mass_task

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
    assert len(before) == 3


def test_arrays_of_another_checkpoint_in_their_place_are_found(checkpoint, tmp_path):
    other = read_checkpoint(checkpoint)
    arrays = {name: x + 1 if name == "incompressible" else x for name, x in other.arrays.items()}
    write_checkpoint(tmp_path / "7", arrays, other.document)
    shutil.copy(checkpoint / "document.json", tmp_path / "7" / "document.json")
    with pytest.raises(DamagedError, match=r"arrays\.safetensors is not what was written\."):
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


def claimed(*shape, end=12, dtype="F32"):
    """A header's entry for an array: its shape and type, and the bytes of the file's data that it takes."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [0, end]}


def headed(header, *shape, size=12, length=None):
    """A checkpoint whose file of arrays has a header and `size` bytes, and whose document has an array of a shape.

    The header is JSON, or bytes that are none; the file gives its length, or another.
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()

    def change(path):
        (path / ARRAYS).write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)
        os.truncate(path / ARRAYS, 8 + len(text) + size)
        signed(path, leaves={"x": {"shape": list(shape), "dtype": "float32"}})

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
        server.bind(os.path.relpath(path / "socket"))


def device(path):
    (path / ARRAYS).unlink()
    try:
        os.mknod(path / ARRAYS, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except OSError:
        pytest.skip("only some users may make a device")


def grown(path):
    os.truncate(path / ARRAYS, 80 << 20)
    told(3)(path)


def moved(path):
    shutil.move(path / "document.json", path.parent / "x")
    (path / "document.json").symlink_to("../x")


ARRAYS = "arrays.safetensors"
HOSTILE = {
    "2^40 numbers": (headed({"x": claimed(2**40, end=2**42)}, 3), "file not fully covered"),
    "2^40 numbers that it tells of": (headed({"x": claimed(2**40, end=2**42)}, 2**40),
        "too small for arrays of 4398046511104 bytes"),
    "2^40 numbers in 12 bytes": (headed({"x": claimed(2**40)}, 3), "invalid shape, data type, or offset"),
    "a header whose shapes overflow": (headed({"x": claimed(*[2**40] * 40)}, 3), "overflow"),
    "more numbers than it tells of": (headed({"x": claimed(4, end=16)}, 3, size=16), "x is F32[4], and not float32[3]"),
    "another shape than it tells of": (headed({"x": claimed(3, 1)}, 1, 3), "x is F32[3, 1], and not float32[1, 3]"),
    "another type than it tells of": (headed({"x": claimed(3, dtype="I32")}, 3), "x is I32[3], and not float32[3]"),
    "a type that is none": (headed({"x": claimed(3, dtype="../x")}, 3), "unknown variant"),
    "arrays that overlap": (headed({"x": claimed(3), "y": claimed(3)}, 3), "invalid offset"),
    "an array before the file": (headed({"x": {**claimed(3), "data_offsets": [12, 0]}}, 3), "invalid offset"),
    "an array that it does not tell of": (headed({"y": claimed(3)}, 3), f"{ARRAYS} has other arrays than"),
    "a header of 2^60 bytes": (headed(b"{}", 0, length=2**60), "header too large"),
    "a header longer than the file": (headed(b"{}", 0, length=1000), "invalid header length"),
    "a header that is no JSON": (headed(b"\xff{", 3), "invalid UTF-8 in header"),
    "a header of lists in lists": (headed(b'{"x":' + b"[" * 10**6, 3), "recursion limit exceeded"),
    "a file of 2^40 bytes for 3 numbers": (lambda path: os.truncate(path / ARRAYS, 2**40),
        f"{ARRAYS} is not what was written: it has another size"),
    "an empty file": (lambda path: ((path / ARRAYS).write_bytes(b""), told(0)(path)), "header too small"),
    "shapes that overflow": (told(*[2**40] * 40), "too small for arrays"),
    "a negative shape": (told(-1, -3), "an array has an invalid shape"),
    "a shape of texts": (told("3"), "an array has an invalid shape"),
    "objects": (told(3, dtype="object"), "an array has an invalid type"),
    "a type by another name": (told(3, dtype="f4"), "an array has an invalid type"),
    "a type that leads out": (told(3, dtype="../x"), "data type '../x' not understood"),
    "a FIFO as document": (fifo("document.json"), "document.json: it is no regular file"),
    "a FIFO as arrays": (fifo(ARRAYS), f"{ARRAYS} is no regular file"),
    "a link as document": (moved, "document.json: it is no regular file"),
    "a link out": (linked(ARRAYS, "/etc/hostname"), f"{ARRAYS} is no regular file"),
    "a link out, listed": (linked(ARRAYS, "/etc/hostname", iteration=7), f"{ARRAYS} is no regular file"),
    "a link out, of no files": (linked(ARRAYS, "/etc/hostname", files={}, sizes={}), f"{ARRAYS} is no regular file"),
    "a link to what never ends": (linked(ARRAYS, "/dev/zero"), f"{ARRAYS} is no regular file"),
    "a device": (device, f"{ARRAYS} is no regular file"),
    "a linked directory": (linked("more", "/etc"), "more is no regular file"),
    "a link into itself": (linked("more", "."), "more is no regular file"),
    "a socket": (bound, "socket is no regular file"),
    "no files": (lambda path: signed(path, files={}, sizes={}), "is no part of the checkpoint; remove it"),
    "no file": (lambda path: ((path / ARRAYS).unlink(), signed(path)), "No such file or directory"),
    "a file less": (lambda path: (path / ARRAYS).unlink(), f"{ARRAYS} is missing"),
    "a file more": (lambda path: (path / "more").touch(), "more is no part of the checkpoint; remove it"),
    "a directory": (lambda path: (path / "more").mkdir(), "more is no regular file"),
    "a file that has grown": (lambda path: os.truncate(path / ARRAYS, 2**40), "it has another size"),
    "a file that has grown, with its new digest": (grown, "its files are too large for arrays of 12 bytes"),
    "no sizes": (lambda path: signed(path, sizes=None), "document.json: sizes (None) is not what a run saves"),
    "a very large document": (lambda path: os.truncate(path / "document.json", 2**40), "a very large one"),
    "another number": (lambda path: signed(path, iteration=8), "it is that of iteration 8, under another number"),
}  # fmt: skip


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


def test_changed_byte_of_a_file_of_the_right_size_is_found(checkpoint, tmp_path):
    path = shutil.copytree(checkpoint, tmp_path / "7")
    data = bytearray((path / ARRAYS).read_bytes())
    data[-1] ^= 1
    (path / ARRAYS).write_bytes(data)
    with pytest.raises(DamagedError, match=rf"{ARRAYS} is not what was written\."):
        read_checkpoint(path)


@pytest.mark.parametrize(("version", "hint"), [(1, " It stored arrays with Orbax: export the policy there"), (3, "")])
def test_checkpoint_of_another_format_names_the_version_that_reads_it(version, hint, checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "6")
    path = shutil.copytree(checkpoint, tmp_path / "checkpoints" / "7")
    signed(path, format=version, versions={"ksim": "0.0.9"})
    words = f"7 is of format {version}, and this ksim reads format 2. Use the version that wrote it (0.0.9).{hint}"
    with pytest.raises(ConfigError, match=re.escape(words)) as refused:
        load_checkpoint(tmp_path, "resume")
    assert not isinstance(refused.value, DamagedError)


def test_arrays_of_any_type_and_layout_come_back_bit_for_bit(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 2, (4, 6))
    names = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128"
    arrays = {name: numbers.astype(name) for name in names.split()}
    arrays |= {name: numbers.astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e5m2", "int4")}
    arrays["NaNs"] = np.arange(0x7F800001, 0x7F800009, dtype=np.uint32).view(np.float32)
    arrays |= {
        "big endian": numbers.astype(">f4"),
        "texts": np.array(["a", "bcd"]),
        "times": np.array(["2020"], "M8[s]"),
    }
    arrays |= {"columns": numbers.T, "every second": numbers[::2, ::-1], "broadcast": np.broadcast_to(1.5, (3, 2))}
    arrays |= {"scalar": np.asarray(np.float64(1e-300)), "bfloat16 scalar": np.asarray(ml_dtypes.bfloat16(2))}
    arrays |= {"none": np.zeros((0, 3)), "no bfloat16": np.zeros((2, 0), ml_dtypes.bfloat16)}
    write_checkpoint(tmp_path / "1", arrays, DOCUMENT)
    read = read_checkpoint(tmp_path / "1").arrays
    assert list(read) == list(arrays)
    for name, x in arrays.items():
        assert (read[name].dtype, read[name].shape, read[name].tobytes()) == (x.dtype, x.shape, x.tobytes()), name
        assert read[name].flags.writeable


def test_other_programs_find_the_arrays_by_name_and_may_read_what_the_user_lets_them(tmp_path):
    write_checkpoint(tmp_path / "1", {"a": np.arange(6.0).reshape(2, 3), "b": np.asarray(True)}, DOCUMENT)
    found = safetensors.numpy.load_file(tmp_path / "1" / ARRAYS)
    chex.assert_trees_all_equal(found, {"a": np.arange(6.0).reshape(2, 3), "b": np.asarray(True)})
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "other", *(tmp_path / "1").iterdir())}
    assert len(modes) == 1


def test_checkpoint_renamed_to_a_higher_number_is_not_the_newest(checkpoint, tmp_path):
    for name in ("7", "900"):
        shutil.copytree(checkpoint, tmp_path / "checkpoints" / name)
    with pytest.warns(UserWarning, match=r"900 is damaged: it is that of iteration 7, under another number\. The one"):
        assert load_checkpoint(tmp_path, "resume").path.name == "7"


def test_copy_of_a_dump_may_have_its_number(checkpoint, tmp_path):
    # Dumps have the number of the iteration that follows.
    for directory in ("dumps", "copies"):
        assert read_checkpoint(shutil.copytree(checkpoint, tmp_path / directory / "8")).iteration == 7


def test_machine_without_memory_is_no_damage_and_no_older_checkpoint_is_used(checkpoint, tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError

    for number in (6, 7):
        shutil.copytree(checkpoint, tmp_path / "checkpoints" / str(number))
    monkeypatch.setattr(checkpoint_format, "_read_arrays", fail)
    with pytest.raises(ConfigError, match="7 cannot be read here: its arrays do not fit into memory"):
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
