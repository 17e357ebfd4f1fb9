"""Whether the viewer in the browser can be served. Imports nothing of viser, which is optional."""

import errno
import importlib.util
import socket

from ksim.errors import ConfigError
from ksim.host.machine import install_command


def check_viser() -> None:
    """Raises ConfigError if the viewer in the browser is not installed."""
    if importlib.util.find_spec("viser") is None:
        raise ConfigError(f"The viewer in the browser needs viser. Run {install_command('viewer')}.")


def free_port(host: str, port: int) -> int:
    """The first free port, starting at `port`.

    Raises:
        ConfigError: There is none, or the host is not an address of this machine.
    """
    for candidate in range(port, 2**16):
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                # As in servers: a port that was in use a moment ago counts as free.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, candidate))
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise ConfigError(
                    f"viewer_host ({host}) must be an address of this machine: {error.strerror}. "
                    "127.0.0.1 is this machine alone, 0.0.0.0 is every network that it is in."
                ) from error
            continue
        return candidate
    raise ConfigError(f"viewer_port ({port}): no port from there on is free. Choose a lower one.")
