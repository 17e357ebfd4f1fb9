"""The viewer's web server: viser's, under an access rule and behind a gate, with a channel for ksim's own script."""

import asyncio
import contextlib
import http
import io
import ipaddress
import json
import math
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec.msgpack
import viser
import websockets.asyncio.server
from websockets import Headers
from websockets.exceptions import ConnectionClosed

from ksim.errors import quoted
from ksim.viewer.episodes import MAX_FILE_BYTES

_AUTHORITY = re.compile(r"(\[[^\[\]]+\]|[^\s:/@\[\]]+)(?::(\d+))?")
_LOOPBACK = "localhost"
_SCHEMES = ("http", "https")
_PAGES = {"ws": "http", "wss": "https"}
"""The scheme of the page that opens a WebSocket; proxies send either."""


class AccessRule:
    """Refuses requests that another web page makes the user's browser send.

    Such a page may connect under the viewer's address (cross-site WebSocket hijacking; `Origin` then names the page's
    site), or under its own name, which it resolves to this machine (DNS rebinding; `Host` is then that name).

    So `Host` must be a loopback name or `viewer_host`, at any port, since a forwarded port may have another number. If
    `viewer_host` means every network (0.0.0.0 or ::), `Host` may be this machine's name or any IP address, but not a
    rebound name. `Origin`, which only browsers send, must be the same site as `Host`, by http; or by https, if a proxy
    says so in `X-Forwarded-Proto`, which no page can make a browser send.
    """

    def __init__(self, viewer_host: str) -> None:
        self._viewer_host = viewer_host
        self._serves_every_network = _is(viewer_host, "is_unspecified")
        self._names = {_LOOPBACK, _canonical(viewer_host)}
        if self._serves_every_network:
            machine = socket.gethostname().lower()
            self._names |= {machine, f"{machine}.local", socket.getfqdn().lower()}

    def refusal(self, headers: Headers) -> str | None:
        """The reason for refusing a request with these headers; None if it is allowed."""
        hosts, origins = headers.get_all("Host"), headers.get_all("Origin")
        site = _site(hosts[0]) if len(hosts) == 1 else None
        if site is None or not self._is_own(site[0]):
            return (
                f"Host ({quoted(', '.join(hosts))}) must be localhost or viewer_host ({self._viewer_host}). Open the "
                "address that ksim printed, or set viewer_host to the name by which you reach this machine.\n"
            )
        forwarded = ",".join(headers.get_all("X-Forwarded-Proto")) or "http"
        asked = forwarded.split(",")[0].strip().lower()  # each proxy may add one; the first is the browser's
        asked = _PAGES.get(asked, asked)
        for origin in origins:
            scheme, _, authority = origin.partition("://")
            refusal = f"Origin ({quoted(origin)}) must be the viewer's own page: it takes no commands from others."
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


MAX_NUMBER = 1e6
"""Largest absolute value that a page may send for an input without a range."""
MAX_UPLOADS = 4
"""Largest number of concurrent uploads, over all pages."""
_UPLOAD = "FileTransferStartUpload"
_MAX_PARTS = 1000
_MAX_TEXT = 300
_MAX_CONTROL_BYTES = 1000
_MAX_PIXELS = 100_000
_CAMERA_VECTORS = {"wxyz": 4, "position": 3, "look_at": 3, "up_direction": 3}
_CAMERA_NUMBERS = ("fov", "near", "far")
_CAMERA_SIZES = ("image_height", "image_width")
_UPLOAD_TEXTS = ("source_component_uuid", "transfer_uuid", "filename", "mime_type")


class PageGate:
    """A filter for the messages of all pages.

    `inputs` returns the input of the page that has an id, or None; set once there are inputs.
    """

    def __init__(self) -> None:
        self.inputs: Callable[[str], Any] = lambda _: None
        self._uploads: dict[object, tuple[str, int]] = {}

    def admitted(self, page: object, message: str | bytes) -> bytes | None:
        """A message for viser, if it is one that the viewer's page sends, with values that its inputs can have.

        A file that is too large is replaced by an empty one, so that its page reports that it was not loaded.

        `page` is the connection of the message.
        """
        if not isinstance(message, bytes):
            return None
        try:
            fields = msgspec.msgpack.decode(message)
            kind = fields.pop("type")
            if kind == _UPLOAD and fields["size_bytes"] > MAX_FILE_BYTES:
                fields |= {"size_bytes": 0, "part_count": 0}
                message = msgspec.msgpack.encode({"type": kind} | fields)
            return message if self._passes(page, kind, fields) else None
        # A page may have sent anything, so the decoder and the checks may raise anything.
        except Exception:  # noqa: BLE001
            return None

    def forget(self, page: object) -> None:
        """Forgets a closed connection and its unfinished upload."""
        self._uploads.pop(page, None)

    def _passes(self, page: object, kind: str, fields: Mapping[str, Any]) -> bool:
        match kind:
            case "GuiUpdateMessage":
                return self._updates(fields)
            case "ViewerCameraMessage":
                return _is_camera(fields)
            case "FileTransferStartUpload":
                return self._starts_upload(page, fields)
            case "FileTransferPart":
                return self._continues_upload(page, fields)
        return False

    def _updates(self, fields: Mapping[str, Any]) -> bool:
        """Whether one input gets a value that it can have."""
        (name, value), *more = fields["updates"].items()
        return fields.keys() == {"uuid", "updates"} and name == "value" and not more and self._fits(fields, value)

    def _fits(self, fields: Mapping[str, Any], value: Any) -> bool:
        match self.inputs(fields["uuid"]):
            case viser.GuiSliderHandle() as slider:
                # The page rounds to its precision, which may be one step beyond an end.
                return _is_number(value, slider.min - slider.step, slider.max + slider.step)
            case viser.GuiNumberHandle() as number:
                low, high = (-MAX_NUMBER if number.min is None else number.min), number.max
                return _is_number(value, low, MAX_NUMBER if high is None else high)
            case viser.GuiDropdownHandle() | viser.GuiButtonGroupHandle() as choice:
                return isinstance(value, str) and value in choice.options
            case viser.GuiCheckboxHandle() | viser.GuiButtonHandle():
                return isinstance(value, bool)
        return False

    def _starts_upload(self, page: object, fields: Mapping[str, Any]) -> bool:
        """Whether an upload of an allowed size to an upload button may begin: the page has no other in progress."""
        size, num_parts = fields["size_bytes"], fields["part_count"]
        is_one = (
            fields.keys() == {*_UPLOAD_TEXTS, "size_bytes", "part_count"}
            and all(type(fields[name]) is str and len(fields[name]) <= _MAX_TEXT for name in _UPLOAD_TEXTS)
            and isinstance(self.inputs(fields["source_component_uuid"]), viser.GuiUploadButtonHandle)
            and type(size) is type(num_parts) is int
            and 0 <= size <= MAX_FILE_BYTES
            and 0 <= num_parts <= _MAX_PARTS
            and page not in self._uploads
            and len(self._uploads) < MAX_UPLOADS
        )
        if is_one and num_parts:
            self._uploads[page] = fields["transfer_uuid"], size
        return is_one

    def _continues_upload(self, page: object, fields: Mapping[str, Any]) -> bool:
        """Whether a part belongs to the page's upload, within the announced size."""
        name, left = self._uploads.get(page, ("", 0))
        is_part = (
            fields.keys() == {"source_component_uuid", "transfer_uuid", "part_index", "content"}
            and fields["transfer_uuid"] == name
            and isinstance(self.inputs(fields["source_component_uuid"]), viser.GuiUploadButtonHandle)
            and type(fields["part_index"]) is int
            and type(fields["content"]) is bytes
            and 0 < len(fields["content"]) <= left
        )
        if is_part:
            left -= len(fields["content"])
            self._uploads[page] = name, left
            if not left:
                self.forget(page)
        return is_part


def read_control(text: str | bytes) -> Mapping[str, Any] | None:
    """A message of the page's own script for the `Driver`, None for anything else: see `Driver.__call__`."""
    try:
        message = json.loads(text) if len(text) <= _MAX_CONTROL_BYTES else None
    except (ValueError, RecursionError):
        return None
    match message:
        case {"axes": [*axes]} if all(x is None or _is_number(x, -1, 1) for x in axes):
            return {"axes": axes}
        case {"press": str(name)}:
            return {"press": name}
    return None


def _is_number(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number, finite and in a range."""
    return type(value) in (int, float) and low <= value <= high and math.isfinite(value)


def _is_camera(fields: Mapping[str, Any]) -> bool:
    return (
        fields.keys() == {*_CAMERA_VECTORS, *_CAMERA_NUMBERS, *_CAMERA_SIZES}
        and all(len(fields[name]) == size for name, size in _CAMERA_VECTORS.items())
        and all(_is_number(x, -MAX_NUMBER, MAX_NUMBER) for name in _CAMERA_VECTORS for x in fields[name])
        and all(_is_number(fields[name], 0, MAX_NUMBER) for name in _CAMERA_NUMBERS)
        and all(type(fields[name]) is int and 0 < fields[name] <= _MAX_PIXELS for name in _CAMERA_SIZES)
    )


CONTROLS = "/ksim/controls"
"""Path at which the page's script connects: it sends keys, sticks and gamepads, and is told the state to show."""


class Channel:
    """The connections of ksim's script on all pages.

    Attributes:
        receive: Called in the server's thread with each message of a script; malformed messages are dropped.
    """

    def __init__(self) -> None:
        self.receive: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._state, self._connections = "", set[Any]()
        self._loop: asyncio.AbstractEventLoop | None = None

    def tell(self, state: Mapping[str, Any]) -> None:
        """Tells all pages, and those that come later, a state; from any thread. Nothing is sent if it is the same."""
        text = json.dumps(state)
        if text == self._state:
            return
        self._state = text
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the server has stopped
                self._loop.call_soon_threadsafe(self._broadcast)

    async def serve(self, connection: Any) -> None:
        """Serves a page until it closes. It leaves nothing driven: a page that is gone cannot release a key."""
        self._loop = asyncio.get_running_loop()
        self._connections.add(connection)
        driven: dict[int, float] = {}
        try:
            if self._state:
                await connection.send(self._state)
            async for text in connection:
                message = read_control(text)
                if message is not None:
                    driven |= {i: x for i, x in enumerate(message.get("axes", ())) if x is not None}
                    self.receive(message)
        except ConnectionClosed:
            pass
        finally:
            self._connections.discard(connection)
            if any(driven.values()):
                released = [0.0 if driven.get(i) else None for i in range(max(driven) + 1)]
                self.receive({"axes": released})

    def _broadcast(self) -> None:
        websockets.asyncio.server.broadcast(self._connections, self._state)


def start_server(host: str, port: int, channel: Channel) -> viser.ViserServer:
    """Starts viser's server on a free port, under an `AccessRule` and behind a `PageGate`.

    Without them it accepts any message from anybody. The page also gets ksim's style, `page.css`, and script,
    `controls.js`, which is at the other end of the channel.

    Raises:
        RuntimeError: This version of viser starts its server in another way, so the rule would have no effect.
    """
    guard = _Guard(AccessRule(host), channel)
    serve = websockets.asyncio.server.serve
    # Viser has no option for it. Its server's thread calls this before the constructor returns.
    websockets.asyncio.server.serve = lambda *args, **options: guard.serve(serve, *args, **options)  # type: ignore[assignment,misc]
    try:
        with silence():
            server = viser.ViserServer(host=host, port=port, label="ksim", verbose=False)
    finally:
        websockets.asyncio.server.serve = serve  # type: ignore[misc]
    inputs = getattr(getattr(server, "gui", None), "_gui_input_handle_from_uuid", None)
    if not guard.is_used or inputs is None:
        server.stop()
        raise RuntimeError(f"viser {viser.__version__} does not let ksim refuse what other web pages send.")
    guard.gate.inputs = inputs.get
    return server


class _Guard:
    """A layer between the network and viser's server. `is_used` once viser has started its server through it."""

    def __init__(self, rule: AccessRule, channel: Channel) -> None:
        self._rule, self._channel = rule, channel
        own = resources.files("ksim.viewer")
        read = lambda name, tag: f"<{tag}>{own.joinpath(name).read_text()}</{tag}>".encode()
        self._head = read("controls.js", "script") + read("page.css", "style")
        self.is_used, self.gate = False, PageGate()

    def serve(self, serve: Any, handler: Any, *args: Any, process_request: Any, **options: Any) -> Any:
        """Starts the server with this guard in front of viser's handlers."""
        self.is_used = True

        def answer(connection: Any, request: Any) -> Any:
            refusal = self._rule.refusal(request.headers)
            if refusal is not None:
                return connection.respond(http.HTTPStatus.FORBIDDEN, refusal)
            if "Accept-Encoding" in request.headers:  # the page must be uncompressed to insert the script
                del request.headers["Accept-Encoding"]
            return self._with_head(process_request(connection, request))

        async def handle(connection: Any) -> None:
            if connection.request.path == CONTROLS:
                await self._channel.serve(connection)
                return
            try:
                await handler(_GatedConnection(connection, self.gate))
            finally:
                self.gate.forget(connection)

        return serve(handle, *args, process_request=answer, **options)

    def _with_head(self, response: Any) -> Any:
        if response is not None and response.headers.get("Content-Type", "").startswith("text/html"):
            head, tag, rest = response.body.partition(b"<head>")
            response.body = head + tag + self._head + rest if tag else self._head + head
            del response.headers["Content-Length"]
            response.headers["Content-Length"] = str(len(response.body))
        return response


class _GatedConnection:
    """A connection that gives viser only messages that pass the gate; viser reads by `recv` alone."""

    def __init__(self, connection: Any, gate: PageGate) -> None:
        self._connection, self._gate = connection, gate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("recv"):  # another way to read, which would bypass the gate
            raise AttributeError(name)
        return getattr(self._connection, name)

    async def recv(self) -> bytes:
        """The next message that passes."""
        while True:
            message = self._gate.admitted(self._connection, await self._connection.recv())
            if message is not None:
                return message


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Suppresses viser's output at its start and stop; ksim prints its own."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
