"""Files: written whole or not at all, and as addresses that hold them."""

import base64
import errno
import mimetypes
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ksim.errors import ConfigError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` and with its suffix, to write to; renamed to it at the end, removed on an error.

    Raises:
        OSError: The directory cannot be made, or the file cannot be written to the disk or renamed.
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


def write_through(path: Path) -> None:
    """Returns once a file, or which files a directory holds, is on the disk and outlives a loss of power.

    Raises:
        OSError: It cannot be written there. Not for directories on a file system that does not do so for these.
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
    """The directory that an option names, or a default; made where there is none.

    Raises:
        ConfigError: It cannot be written to.
    """
    path = default if wanted is None else Path(wanted)
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(f"Results cannot be written to {path} ({error.strerror}). Set {option}.") from error
    return path


def data_url(path: Path) -> str:
    """An address that holds the whole file, for pages that need no other file.

    Raises:
        OSError: The file cannot be read.
    """
    kind, _ = mimetypes.guess_type(path)
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
