"""Checkpoints on disk: named arrays in a safetensors file, and a JSON document. Their content is never trusted.

A checkpoint is data: reading it runs no code from it. The document contains the size and digest of every file, and its
own digest, so damage is found before a library reads a damaged file. No array takes more memory than its file.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ksim.checkpoint.progress import KEPT
from ksim.config import is_of_type
from ksim.errors import ConfigError, as_number, quoted
from ksim.host.files import write_through
from ksim.host.terminal import warn_user
from ksim.log.jsonl import read_evaluations

CHECKPOINTS = "checkpoints"
"""Subdirectory of a run for checkpoints, each named by the number of iterations done."""
DUMPS = "dumps"
"""Subdirectory of a run for states to replay, each named by the number of the next iteration."""
BEST = "best"
"""Name in the path `checkpoints/best`, which stands for the best checkpoint by evaluation."""
FORMAT = 2
"""Version of the format; only checkpoints of this version can be read."""
_ABOUT_FORMATS = {"1": " It stored arrays with Orbax: export the policy there with run_mode=export, or train again."}
"""A hint for checkpoints of earlier formats."""
_DOCUMENT, _ARRAYS = "document.json", "arrays.safetensors"
_KINDS: Mapping[str, Any] = {
    "iteration": int,
    "num_devices": int,
    "progress": dict[str, int | float],
    "last_episodes": dict[str, float],
    "config": dict[str, Any],
    "versions": dict[str, str],
    "leaves": dict[str, dict[str, Any]],
    "files": dict[str, str],
    "sizes": dict[str, int],
}
"""Entries of a document and their types."""
_BYTES = np.dtype(np.uint8)
_STORED = {
    **{"BOOL": np.dtype(np.bool_), "U8": _BYTES, "C64": np.dtype(np.complex64)},
    **{f"U{n}": np.dtype(f"uint{n}") for n in (16, 32, 64)},
    **{f"I{n}": np.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"F{n}": np.dtype(f"float{n}") for n in (16, 32, 64)},
}
"""Types that safetensors reads into NumPy arrays, by its names. Arrays of other types are stored as their bytes."""
_MAX_DEPTH = 12
_MAX_DOCUMENT_BYTES = 64 << 20
"""Largest size of a document, and of the header of a file of arrays."""
_UNFINISHED, _REMOVED = ".unfinished", ".removed"

Arrays = Mapping[str, np.ndarray]
"""Host arrays by name; typed PRNG keys as their raw data."""


class DamagedError(ConfigError):
    """A checkpoint is damaged."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint: arrays, and a document of types that JSON can represent."""

    path: Path
    arrays: Arrays
    document: Mapping[str, Any]

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return int(self.document["iteration"])


def write_checkpoint(path: Path, arrays: Arrays, document: Mapping[str, Any]) -> None:
    """Writes a checkpoint from the calling process alone.

    It appears under its path only when it is complete and flushed to disk.

    Raises:
        OSError: It cannot be written.
    """
    leaves = {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in arrays.items()}
    unfinished = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with _system_errors(path):
        save_file({name: _stored(x) for name, x in arrays.items()}, unfinished / _ARRAYS)
    sizes = _sizes(unfinished)
    content = {**document, "format": FORMAT, "leaves": leaves, "sizes": sizes, "files": _digests(unfinished, sizes)}
    content = json.loads(json.dumps(content))  # as it will be read
    content["digest"] = _digest_of_document(content)
    (unfinished / _DOCUMENT).write_text(json.dumps(content))
    shutil.copymode(unfinished / _DOCUMENT, unfinished / _ARRAYS)  # safetensors lets only the owner read
    for written in (*unfinished.iterdir(), unfinished):
        write_through(written)
    unfinished.rename(path)
    write_through(path.parent)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks that it is unchanged since it was written.

    Raises:
        DamagedError: It was changed.
        ConfigError: It is of another format version, or this machine has not enough memory.
    """
    document = read_document(path)
    try:
        _check_files(path, document)
        return Checkpoint(path, _read_arrays(path / _ARRAYS, document["leaves"]), document)
    except MemoryError as error:
        raise ConfigError(
            f"Checkpoint {path} cannot be read here: its arrays do not fit into memory. Free some, or read it on a "
            "machine with more."
        ) from error
    # Readers of untrusted files may raise anything.
    except Exception as error:
        raise DamagedError(f"Checkpoint {path} is damaged: {_first_line(error)}.") from error


def read_document(path: Path) -> Mapping[str, Any]:
    """Reads the document of a checkpoint and checks that it is unchanged since it was written.

    Raises:
        DamagedError: It was changed.
        ConfigError: It is of another format version.
    """
    try:
        document = json.loads(_read_document_file(path / _DOCUMENT))
        is_sound = dict(document)["digest"] == _digest_of_document(document)
    except Exception as error:
        raise DamagedError(f"Checkpoint {path} is damaged: {_DOCUMENT}: {_first_line(error)}.") from error
    if not is_sound:
        raise DamagedError(f"Checkpoint {path} is damaged: {_DOCUMENT} is not what was written.")
    if not _is_shallow(document, _MAX_DEPTH):
        raise DamagedError(f"Checkpoint {path} is damaged: {_DOCUMENT} is nested too deeply.")
    if document.get("format") != FORMAT:
        versions = document.get("versions")
        written_by = versions.get("ksim", "unknown") if isinstance(versions, dict) else "unknown"
        raise ConfigError(
            f"Checkpoint {path} is of format {quoted(document.get('format'))}, and this ksim reads format {FORMAT}. "
            f"Use the version that wrote it ({written_by!s:.80}).{_ABOUT_FORMATS.get(str(document.get('format')), '')}"
        )
    problem = _problem_of_document(document)
    if problem is not None:
        raise DamagedError(f"Checkpoint {path} is damaged: {_DOCUMENT}: {problem}.")
    place, number = path.parent.name, document["iteration"] + (path.parent.name == DUMPS)
    # A copy elsewhere may have any name.
    if place in (CHECKPOINTS, DUMPS) and as_number(path.name) not in (None, number):
        raise DamagedError(f"Checkpoint {path} is damaged: it is that of iteration {number}, under another number.")
    return document


def _problem_of_document(document: Mapping[str, Any]) -> str | None:
    """A description of the first invalid entry of a document, by type or range; None if all are valid."""
    content = {"last_episodes": {}, **document}  # a dump has no episodes
    for name, kind in _KINDS.items():
        if not is_of_type(content.get(name), kind):
            return f"{name} ({quoted(content.get(name))}) is not what a run saves"
    progress = document["progress"]
    if any(not is_of_type(progress.get(name), kind) or not 0 <= progress[name] < 2**63 for name, kind in KEPT.items()):
        return f"progress ({quoted(progress)}) is not what a run saves"
    if not (0 <= document["iteration"] < 2**31 and document["num_devices"] >= 1):
        return f"iteration ({quoted(document['iteration'])}) or num_devices is out of range"
    return None


def _is_shallow(value: Any, most: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most > 0 and all(_is_shallow(part, most - 1) for part in parts)


def list_checkpoints(directory: Path) -> list[Path]:
    """The checkpoints of a directory, oldest first, damaged ones too; raises OSError if it is unreadable."""
    return sorted(filter(_is_checkpoint, _entries(directory)), key=lambda path: int(path.name))


def find_checkpoints(path: str | Path, name: str) -> list[Path]:
    """The checkpoints that a path stands for, in the order in which to try them.

    Args:
        path: A checkpoint, `<run>/checkpoints/best`, or a run's directory or its `checkpoints`. For a directory, the
            newest checkpoint comes first.
        name: The name of the path in messages, such as `resume`.

    Raises:
        ConfigError: There is none, or its directory cannot be read.
    """
    path = Path(path)
    with readable(path, name):
        return _find_checkpoints(path, name)


@contextlib.contextmanager
def readable(path: str | Path, name: str) -> Iterator[None]:
    """Turns an OSError of the block into a ConfigError, with the path as the user gave it; see `find_checkpoints`.

    Raises:
        ConfigError: A directory of the path cannot be read, for instance because another user owns it.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{name} ({quoted(str(path))}) cannot be read: {error.strerror}: {quoted(str(error.filename))}. Set its "
            "permissions, or give another."
        ) from error


def _find_checkpoints(path: Path, name: str) -> list[Path]:
    if path.name == BEST and path.parent.name == CHECKPOINTS:
        best = find_best(path.parent.parent)
        if best is None:
            raise ConfigError(f"{name} ({path}) does not exist yet: there was no evaluation. Give the run's directory.")
        return [best]
    # The name of a run's directory may be a number, too.
    if _is_checkpoint(path) and any((path / name).exists() for name in (_DOCUMENT, _ARRAYS)):
        return [path]
    found = list_checkpoints(path if path.name == CHECKPOINTS else path / CHECKPOINTS)
    if not found:
        kinds = f"a run's directory with checkpoints, or one of checkpoints/<number> and checkpoints/{BEST}"
        problem = f"must be {kinds}" if path.exists() else f"does not exist. It must be {kinds}"
        raise ConfigError(f"{name} ({quoted(str(path), 400)}) {problem}.")
    return found[::-1]


def load_checkpoint(path: str | Path, name: str) -> Checkpoint:
    """Reads the checkpoint of a path, as in `find_checkpoints`; if a run's newest is damaged, an older one.

    Warns:
        UserWarning: A checkpoint is damaged, and the one before it is used.

    Raises:
        ConfigError: There is no checkpoint, or all are damaged.
    """
    candidates = find_checkpoints(path, name)
    for candidate, before in zip(candidates, [*candidates[1:], None], strict=True):
        try:
            return read_checkpoint(candidate)
        except DamagedError as error:
            if before is None:
                raise
            warn_user(f"{error} The one before it ({before}) is used.")
    raise AssertionError("find_checkpoints gives at least one")


def remove_all_but(directory: Path, max_to_keep: int, also: Path | None) -> None:
    """Removes old checkpoints except the newest and `also`, and unfinished ones of killed processes."""
    for path in list_checkpoints(directory)[:-max_to_keep]:
        if path != also:
            remove_checkpoint(path)
    for path in directory.glob("*"):
        if as_number(path.stem) is not None and path.suffix in (_UNFINISHED, _REMOVED):
            shutil.rmtree(path, ignore_errors=True)


def remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint. It is renamed first, so that a partly removed checkpoint counts as unfinished."""
    trash = path.with_name(path.name + _REMOVED)
    path.rename(trash)
    shutil.rmtree(trash, ignore_errors=True)


def find_best(run_dir: Path) -> Path | None:
    """The existing checkpoint with the highest return by evaluation; None if no checkpoint was evaluated."""
    returns = {record["iteration"]: record["figures"]["return"]["mean"] for record in read_evaluations(run_dir)}
    rated = [path for path in list_checkpoints(run_dir / CHECKPOINTS) if returns.get(int(path.name)) is not None]
    return max(rated, key=lambda path: returns[int(path.name)], default=None)


def _is_checkpoint(path: Path) -> bool:
    # Only complete checkpoints get such a name; if files are missing, it is damaged.
    return as_number(path.name) is not None and bool(_entries(path))


def _entries(directory: Path) -> list[Path]:
    """The entries of a directory; empty if it is not a directory. Unlike `glob`, raises OSError if unreadable."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextlib.contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Turns an error of safetensors that contains an OS error code into the OSError."""
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def _stored(x: np.ndarray) -> np.ndarray:
    """An array as it is stored: dense, and the bytes of a type that safetensors does not know."""
    dense = np.asarray(x, order="C")
    return dense if x.dtype in _STORED.values() else dense.reshape(-1).view(_BYTES)


def _read_arrays(file: Path, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, with the shapes and dtypes of the document, by `leaves`.

    Both and the size of the file are compared before any array is read.

    Raises:
        ValueError: The arrays are missing or differ from the document.
    """
    shapes = {name: tuple(leaf["shape"]) for name, leaf in leaves.items()}
    dtypes = {name: np.dtype(leaf["dtype"]) for name, leaf in leaves.items()}
    if any(type(n) is not int or n < 0 for shape in shapes.values() for n in shape):
        raise ValueError("an array has an invalid shape")
    if any(dtype.hasobject or str(dtype) != leaves[name]["dtype"] for name, dtype in dtypes.items()):
        raise ValueError("an array has an invalid type")
    num_bytes = sum(math.prod(shapes[name]) * dtype.itemsize for name, dtype in dtypes.items())
    size = file.stat().st_size
    if num_bytes > size:
        raise ValueError(f"its files are too small for arrays of {num_bytes} bytes")
    if size - num_bytes > _MAX_DOCUMENT_BYTES:
        raise ValueError(f"its files are too large for arrays of {num_bytes} bytes")
    np.empty(num_bytes, np.uint8)  # raises MemoryError before safetensors has to
    # Not mapped into memory: a file that another process truncates would end this one.
    with safe_open(file, framework="numpy", backend="pread") as stored:
        if set(stored.keys()) != leaves.keys():
            raise ValueError(f"{file.name} has other arrays than {_DOCUMENT}")
        return {name: _read_array(stored, name, shapes[name], dtypes[name]) for name in leaves}


def _read_array(stored: Any, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Reads an array, once its header has the expected shape and type."""
    is_known = dtype in _STORED.values()
    wanted = (list(shape), dtype) if is_known else ([math.prod(shape) * dtype.itemsize], _BYTES)
    header = stored.get_slice(name)
    if (header.get_shape(), _STORED.get(header.get_dtype())) != wanted:
        raise ValueError(f"{name} is {header.get_dtype()}{header.get_shape()}, and not {dtype}{list(shape)}")
    x = stored.get_tensor(name)
    return x if is_known else x.view(dtype).reshape(shape)


def _check_files(path: Path, document: Mapping[str, Any]) -> None:
    """Checks that a checkpoint has the files of its document, and no others.

    Raises:
        ValueError: A file is missing, changed, not listed, or not a regular file.
    """
    listed, sizes = document["files"], _sizes(path)
    del sizes[_DOCUMENT]
    # Sizes are compared before any file is read, because a file may have become huge.
    for name in listed.keys() | sizes.keys():
        if name not in sizes:
            raise ValueError(f"{name} is missing")
        if name not in listed:
            raise ValueError(f"{name} is no part of the checkpoint; remove it")
        if sizes[name] != document["sizes"].get(name):
            raise ValueError(f"{name} is not what was written: it has another size")
    found = _digests(path, sizes)
    for name, digest in listed.items():
        if found[name] != digest:
            raise ValueError(f"{name} is not what was written")


def _sizes(directory: Path) -> dict[str, int]:
    """The size in bytes of each file of a checkpoint, by name. No file is opened and no link followed.

    Raises:
        ValueError: It contains anything but regular files.
    """
    sizes: dict[str, int] = {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                raise ValueError(f"{entry.name} is no regular file")
            sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    return sizes


def _digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """The digest of each file of a checkpoint, by name."""
    return {name: _digest_of_file(directory / name) for name in sorted(names)}


def _digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _read_document_file(path: Path) -> bytes:
    """The bytes of a document; raises ValueError if it is not a regular file, or larger than `_MAX_DOCUMENT_BYTES`."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_DOCUMENT_BYTES:
        raise ValueError("it is no regular file, or a very large one")
    return path.read_bytes()


def _digest_of_document(document: Mapping[str, Any]) -> str:
    content = json.dumps({k: v for k, v in document.items() if k != "digest"}, sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(" .;") if lines else type(error).__name__
