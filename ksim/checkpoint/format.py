"""Checkpoints on disk: named arrays, written by Orbax, and a JSON document. Their content is never trusted.

A checkpoint is data: reading it runs no code from it. The document contains the size and digest of every file, and its
own digest, so damage is found before a library reads a damaged file. No array takes more memory than the document says.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ksim.checkpoint.orbax_log import without_handlers
from ksim.checkpoint.progress import KEPT
from ksim.config import is_of_type
from ksim.errors import ConfigError, as_number, quoted
from ksim.host.files import write_through
from ksim.host.terminal import warn_user
from ksim.log.jsonl import read_evaluations
from ksim.parallel.multihost import num_processes, process_index

CHECKPOINTS = "checkpoints"
"""Subdirectory of a run for checkpoints, each named by the number of iterations done."""
DUMPS = "dumps"
"""Subdirectory of a run for states to replay, each named by the number of the next iteration."""
BEST = "best"
"""Name in the path `checkpoints/best`, which stands for the best checkpoint by evaluation."""
FORMAT = 1
"""Version of the format; only checkpoints of this version can be read."""
_DOCUMENT, _STATE = "document.json", "state"
_COMMIT = "commit_success.txt"
"""A file that Orbax writes for storage without renaming. It contains a path, and is not needed on disks."""
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
_PLAIN_PATH = re.compile(r"(?:/(?![^/]*\.__lock(?:/|$))[\w.+=,@~-]+)+", re.ASCII)
"""Paths that Orbax and TensorStore take literally; see `_plain_path`."""
_MAX_DEPTH = 12
_MAX_FILES = 10_000
_MAX_DOCUMENT_BYTES = 64 << 20
_MAX_RATIO = 2**15
"""The largest compression ratio of zstd: 128 KiB of zeros in 4 bytes."""
_UNFINISHED, _REMOVED = ".unfinished", ".removed"

Arrays = Mapping[str, np.ndarray]
"""Host arrays by name; typed PRNG keys as their raw data."""


class DamagedError(ConfigError):
    """A checkpoint is damaged."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    Attributes:
        document: All other data, of types that JSON can represent.
    """

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
        OSError: It cannot be written. Orbax may report an error of the file system by another exception.
    """
    leaves = {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in arrays.items()}
    unfinished = path.with_name(path.name + _UNFINISHED)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    ocp = _orbax()
    with _checkpointer() as checkpointer, _system_errors(path), _plain_path(unfinished) as place:
        checkpointer.save(place / _STATE, args=ocp.args.PyTreeSave(_packed(arrays)))
    _check_is_here(unfinished / _STATE)
    (unfinished / _STATE / _COMMIT).unlink(missing_ok=True)
    sizes = _sizes(unfinished)
    content = {**document, "format": FORMAT, "leaves": leaves, "sizes": sizes, "files": _digests(unfinished, sizes)}
    content = json.loads(json.dumps(content))  # as it will be read
    content["digest"] = _digest_of_document(content)
    (unfinished / _DOCUMENT).write_text(json.dumps(content))
    for written in (*unfinished.rglob("*"), unfinished):
        write_through(written)
    unfinished.rename(path)
    write_through(path.parent)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks that it is unchanged since it was written.

    Raises:
        DamagedError: It was changed.
        ConfigError: It is of another format version, or this machine has not enough memory or no place for a link.
    """
    document = read_document(path)
    try:
        _check_files(path, document)
        with contextlib.ExitStack() as stack:
            try:
                place = stack.enter_context(_plain_path(path))
            except OSError as error:
                raise ConfigError(
                    f"Checkpoint {path} cannot be read here: its path needs a link in the directory for temporary "
                    f"files, which cannot be made ({error}). Set TMPDIR to one that can be written."
                ) from error
            return Checkpoint(path, _read_arrays(place / _STATE, document["leaves"]), document)
    except ConfigError:
        raise
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
        # Not by Orbax, which would start the JAX backend before this process has joined its job.
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
            f"Use the version that wrote it ({written_by!s:.80})."
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
    content = {"last_episodes": {}, "sizes": {}, **document}  # a dump has no episodes, an older document no sizes
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
    """The checkpoints of a directory, oldest first, including damaged ones.

    Raises:
        OSError: It exists but cannot be read.
    """
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
    """Turns an OSError of the block into a ConfigError.

    Args:
        path: The path as the user gave it.
        name: See `find_checkpoints`.

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
    if _is_checkpoint(path) and any((path / name).exists() for name in (_DOCUMENT, _STATE)):
        return [path]
    found = list_checkpoints(path if path.name == CHECKPOINTS else path / CHECKPOINTS)
    if not found:
        raise ConfigError(
            f"{name} ({quoted(str(path), 400)}) must be a run's directory with checkpoints, or one of "
            "checkpoints/<number>."
        )
    return found[::-1]


def load_checkpoint(path: str | Path, name: str) -> Checkpoint:
    """Reads the checkpoint that a path stands for. If the newest checkpoint of a run is damaged, reads an older one.

    Args:
        path: See `find_checkpoints`.
        name: See `find_checkpoints`.

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
    """Removes old checkpoints, and unfinished ones of killed processes.

    Args:
        max_to_keep: Number of newest checkpoints to keep.
        also: Another checkpoint to keep.
    """
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


def _orbax() -> Any:
    """The module of Orbax. It is imported late: it takes a second, and most programs use no checkpoint."""
    with without_handlers():
        import orbax.checkpoint as ocp  # noqa: PLC0415
    return ocp


def _checkpointer() -> Any:
    ocp = _orbax()
    # Only the calling process takes part; by default Orbax would wait for the other processes.
    own = {process_index()} if num_processes() > 1 else None
    alone = ocp.options.MultiprocessingOptions(
        primary_host=process_index(), active_processes=own, barrier_sync_key_prefix="ksim" if own else None
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
    return ocp.Checkpointer(handler, multiprocessing_options=alone)


@contextlib.contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Turns a ValueError of TensorStore that contains an OS error code into the OSError."""
    try:
        yield
    except ValueError as error:
        code = re.search(r"os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


@contextlib.contextmanager
def _plain_path(directory: Path) -> Iterator[Path]:
    """A path of a directory that Orbax and TensorStore take literally: its own, or the path of a temporary link to it.

    With a backslash or brackets in a name, or names such as `gs:` or `x.__lock`, they write elsewhere or fail.

    Raises:
        OSError: A link is needed and cannot be made.
    """
    path = directory.resolve()
    if _PLAIN_PATH.fullmatch(str(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ksim-") as holder:
        link = Path(holder).resolve() / "checkpoint"
        if not _PLAIN_PATH.fullmatch(str(link)):
            raise OSError(errno.EINVAL, "TMPDIR must name a directory with a plain name, as /tmp", holder)
        link.symlink_to(path, target_is_directory=True)
        yield link


def _check_is_here(state: Path) -> None:
    """Raises OSError unless TensorStore wrote to the given directory."""
    if not ((state / "manifest.ocdbt").is_file() and any((state / "d").glob("*"))):
        raise OSError(errno.EIO, "TensorStore did not write its files to the directory", str(state))


def _packed(arrays: Arrays) -> dict[str, np.ndarray]:
    """All arrays concatenated by dtype, in their order; by the name of the dtype.

    For every array written, Orbax takes time and TensorStore leaks a little memory.
    """
    dtypes = dict.fromkeys(str(x.dtype) for x in arrays.values() if x.size)
    return {t: np.concatenate([x.ravel() for x in arrays.values() if str(x.dtype) == t]) for t in dtypes}


def _read_arrays(directory: Path, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Reads the arrays that Orbax has written, with the shapes and dtypes of the document.

    They are read with TensorStore alone, and sizes are checked first: TensorStore aborts the process if it cannot
    allocate an array.

    Args:
        leaves: Shape and dtype of each array, from the document.

    Raises:
        ValueError: The arrays are missing or differ from the document.
    """
    import tensorstore as ts  # noqa: PLC0415 - most programs that import ksim read no checkpoint

    shapes = {name: tuple(leaf["shape"]) for name, leaf in leaves.items()}
    if any(type(n) is not int or n < 0 for shape in shapes.values() for n in shape):
        raise ValueError("an array has an invalid shape")
    if any(
        np.dtype(leaf["dtype"]).hasobject or str(np.dtype(leaf["dtype"])) != leaf["dtype"] for leaf in leaves.values()
    ):
        raise ValueError("an array has an invalid type")
    counts: dict[str, int] = {}
    for name, leaf in leaves.items():
        counts[leaf["dtype"]] = counts.get(leaf["dtype"], 0) + math.prod(shapes[name])
    num_bytes = sum(count * np.dtype(dtype).itemsize for dtype, count in counts.items())
    if num_bytes > _MAX_RATIO * sum(_sizes(directory).values()):
        raise ValueError(f"its files are too small for arrays of {num_bytes} bytes")
    np.empty(num_bytes, np.uint8)  # raises MemoryError, where TensorStore would abort the process
    packed = {}
    for dtype, count in counts.items():
        if count:
            base = {"driver": "file", "path": f"{directory}/"}
            store = {"driver": "ocdbt", "base": base, "path": f"{dtype}/"}
            array = ts.open({"driver": "zarr", "kvstore": store}, open=True, read=True).result()
            chunk = tuple(n or 0 for n in array.chunk_layout.read_chunk.shape or ())
            is_told = array.shape == (count,) and array.dtype.numpy_dtype == np.dtype(dtype)
            if not is_told or not 0 < math.prod(chunk) <= count:
                raise ValueError(f"its {dtype} are {array.shape} in parts of {chunk}, and not {count}")
            packed[dtype] = np.asarray(array.read().result())
    return _unpacked(packed, shapes, leaves)


def _unpacked(
    packed: Arrays, shapes: Mapping[str, tuple[int, ...]], leaves: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The inverse of `_packed`, with the shapes and dtypes of the document."""
    taken = dict.fromkeys((leaf["dtype"] for leaf in leaves.values()), 0)
    arrays = {}
    for name, shape in shapes.items():
        dtype, size = leaves[name]["dtype"], math.prod(shape)
        flat = packed[dtype][taken[dtype] :][:size] if size else np.zeros(0, dtype)
        taken[dtype] += size
        arrays[name] = flat.reshape(shape).copy()
    return arrays


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
        if sizes[name] != document.get("sizes", sizes).get(name):
            raise ValueError(f"{name} is not what was written: it has another size")
    found = _digests(path, sizes)
    for name, digest in listed.items():
        if found[name] != digest:
            raise ValueError(f"{name} is not what was written")


def _sizes(directory: Path) -> dict[str, int]:
    """The size in bytes of each file of a checkpoint, by relative path. No file is opened and no link followed.

    Raises:
        ValueError: It contains more than `_MAX_FILES` entries, or anything but regular files and directories.
    """
    sizes: dict[str, int] = {}
    directories = [directory]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                name = Path(entry.path).relative_to(directory).as_posix()
                if entry.is_dir(follow_symlinks=False):
                    directories.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    sizes[name] = entry.stat(follow_symlinks=False).st_size
                else:
                    raise ValueError(f"{name} is no regular file")
                if len(sizes) + len(directories) > _MAX_FILES:
                    raise ValueError(f"it has more than {_MAX_FILES} files")
    return sizes


def _digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """The digest of each file of a checkpoint, by relative path."""
    return {name: _digest((directory / name).read_bytes()) for name in sorted(names)}


def _read_document_file(path: Path) -> bytes:
    """The bytes of a document; raises ValueError if it is not a regular file, or larger than `_MAX_DOCUMENT_BYTES`."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_DOCUMENT_BYTES:
        raise ValueError("it is no regular file, or a very large one")
    return path.read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _digest_of_document(document: Mapping[str, Any]) -> str:
    return _digest(json.dumps({k: v for k, v in document.items() if k != "digest"}, sort_keys=True).encode())


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300].rstrip(" .;") if lines else type(error).__name__
