"""Files: atomic writes, output directories and data URLs."""

import base64
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ksim.errors import ConfigError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, with its suffix. It is renamed to `path` at the end, and removed on an error.

    Raises:
        OSError: The directory cannot be created, or the file cannot be flushed to disk or renamed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.tmp{path.suffix}")
    try:
        yield temporary
        write_through(temporary)
        os.replace(temporary, path)
        write_through(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes a file whole or not at all; see `whole_file`."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_through(path: Path) -> None:
    """Flushes a file, or a directory's entries, to disk (fsync), so that they survive a power loss.

    Raises:
        OSError: The flush failed. Directories on file systems without fsync for directories are skipped.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if not (error.errno in (errno.EINVAL, errno.ENOTSUP) and path.is_dir()):
            raise
    finally:
        os.close(file)


def output_dir(option: str, wanted: str | None, default: Path) -> Path:
    """The directory that an option names, or a default. It is created if missing.

    Raises:
        ConfigError: The directory is not writable.
    """
    path = default if wanted is None else Path(wanted)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(f"Results cannot be written to {path} ({error.strerror}). Set {option}.") from error
    return path


def data_url(content: bytes, kind: str) -> str:
    """A `data:` URL with the content of a file, for self-contained pages. `kind` is its media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
