"""The viewer's web server: viser's, under an access rule and behind a gate, with keys and gamepads."""

import contextlib
import http
import io
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any

import viser
import websockets.asyncio.server
from websockets.exceptions import ConnectionClosed

from ksim.viewer.access import AccessRule
from ksim.viewer.gate import PageGate, read_control

CONTROLS = "/ksim/controls"
"""Path at which the page's script connects to send input from the keyboard and the gamepad."""

Receive = Callable[[Mapping[str, Any]], None]
"""Takes a message of the page's script."""


def start_server(host: str, port: int, receive: Receive) -> viser.ViserServer:
    """Starts viser's server under an `AccessRule` and behind a `PageGate`; by itself it takes anything from anybody.

    The page gets a script, `controls.js`, which sends keys and gamepads, and a style for phones, `page.css`: viser's
    own page knows nothing of them.

    Args:
        host: Address to listen on.
        port: A free port.
        receive: Called in the server's thread with each message of the script; malformed ones are dropped.

    Raises:
        RuntimeError: This version of viser starts its server in another way, so the rule would have no effect.
    """
    guard = _Guard(AccessRule(host), receive)
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
    """Stands between the network and viser's server.

    Attributes:
        is_used: Whether viser has started its server through it.
        gate: Decides which messages reach viser.
    """

    def __init__(self, rule: AccessRule, receive: Receive) -> None:
        self._rule, self._receive = rule, receive
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
            if "Accept-Encoding" in request.headers:  # the page is compressed in itself, and the script is put into it
                del request.headers["Accept-Encoding"]
            return self._with_head(process_request(connection, request))

        async def handle(connection: Any) -> None:
            if connection.request.path == CONTROLS:
                await self._read(connection)
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

    async def _read(self, connection: Any) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                message = read_control(text)
                if message is not None:
                    self._receive(message)


class _GatedConnection:
    """A connection that gives viser only messages that pass the gate; viser reads by `recv` alone."""

    def __init__(self, connection: Any, gate: PageGate) -> None:
        self._connection, self._gate = connection, gate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("recv"):  # another way to read, around the gate
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
