"""Access to the viewer's page: only browsers that opened it, not pages of other sites."""

import ipaddress
import re
import socket

from websockets import Headers

from ksim.errors import shown

_AUTHORITY = re.compile(r"(\[[^\[\]]+\]|[^\s:/@\[\]]+)(?::(\d+))?")
_LOOPBACK = "localhost"
_SCHEMES = ("http", "https")
_PAGES = {"ws": "http", "wss": "https"}
"""The scheme of the page that opens a WebSocket; proxies send either."""


class AccessRule:
    """Refuses requests that another web page makes the user's browser send.

    Such a page may connect to the viewer under the viewer's address (cross-site WebSocket hijacking: `Origin` then
    names the page's site), or under its own name, which it resolves to this machine (DNS rebinding: `Host` then is
    that name). So `Host` must be a loopback name or `viewer_host`, at any port, since a forwarded port may have
    another number; and `Origin`, which only browsers send, must be the same site as `Host`, by http, or by https if a
    proxy in between says so in `X-Forwarded-Proto`, which no page can make a browser send. Where
    `viewer_host` means every network (0.0.0.0 or ::), `Host` may be this machine's name or any IP address: a page that
    rebinds a name has that name there.
    """

    def __init__(self, viewer_host: str) -> None:
        self._viewer_host = viewer_host
        self._serves_every_network = _is(viewer_host, "is_unspecified")
        self._names = {_LOOPBACK, _canonical(viewer_host)}
        if self._serves_every_network:
            machine = socket.gethostname().lower()
            self._names |= {machine, f"{machine}.local", socket.getfqdn().lower()}

    def refusal(self, headers: Headers) -> str | None:
        """Why a request with these headers is refused; None if it is allowed."""
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        site = _site(hosts[0]) if len(hosts) == 1 else None
        if site is None or not self._is_own(site[0]):
            return (
                f"Host ({shown(', '.join(hosts))}) must be localhost or viewer_host ({self._viewer_host}). Open the "
                "address that ksim printed, or set viewer_host to the name by which you reach this machine.\n"
            )
        forwarded = ",".join(headers.get_all("X-Forwarded-Proto")) or "http"
        asked = forwarded.split(",")[0].strip().lower()  # each proxy may add one; the first is the browser's
        asked = _PAGES.get(asked, asked)
        for origin in origins:
            scheme, _, authority = origin.partition("://")
            refusal = f"Origin ({shown(origin)}) must be the viewer's own page: it takes no commands from others."
            if scheme not in _SCHEMES or _site(authority) != site:
                return f"{refusal}\n"
            if scheme != asked:
                return f"{refusal} If it is the page behind a proxy, let the proxy set X-Forwarded-Proto: {scheme}.\n"
        return None

    def _is_own(self, name: str) -> bool:
        return name in self._names or (self._serves_every_network and _is(name, "version"))


def _site(authority: str) -> tuple[str, str | None] | None:
    """Name and port of `name[:port]`; None for anything else."""
    match = _AUTHORITY.fullmatch(authority)
    return None if match is None else (_canonical(match[1]), match[2])


def _canonical(name: str) -> str:
    """A host's name for comparisons; all names of the loopback interface are `localhost`."""
    name = name.strip("[]").lower()
    return _LOOPBACK if _is(name, "is_loopback") else name


def _is(name: str, what: str) -> bool:
    """Whether a name is an IP address with a property."""
    try:
        return bool(getattr(ipaddress.ip_address(name), what))
    except ValueError:
        return False
