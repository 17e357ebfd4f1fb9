"""Whom the viewer's server answers, asked through real sockets."""

import http.client
import socket
import time
from contextlib import closing

import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

import msgspec.msgpack
import viser
from websockets import Headers
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ksim.viewer import server as server_module
from ksim.viewer.server import AccessRule, free_port, start_server

NAME = socket.gethostname().lower()


def serve(host):
    server = start_server(host, free_port(host, 18100), lambda message: None)
    return server, server.get_port()


@pytest.fixture(scope="module")
def local():
    """A server for this machine alone, with its port."""
    server, port = serve("127.0.0.1")
    yield server, port
    server.stop()


@pytest.fixture(scope="module")
def public():
    """A server for every network, with its port."""
    server, port = serve("0.0.0.0")
    yield server, port
    server.stop()


def get(port, host):
    """Status and text of the page, asked for under a Host."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/", headers={"Host": host})
        response = connection.getresponse()
        return response.status, response.read().decode()


def connect_to(port, *, host=None, origin=None):
    """A connection as the page's own, but for its Host and its Origin."""
    protocols = [f"viser-v{viser.__version__}"]
    address = socket.create_connection(("127.0.0.1", port))
    return connect(f"ws://{host or f'127.0.0.1:{port}'}", sock=address, origin=origin, subprotocols=protocols)


def move(slider, client, value):
    updates = {"type": "GuiUpdateMessage", "uuid": slider._impl.uuid, "updates": {"value": value}}
    client.send(msgspec.msgpack.encode(updates))


def test_own_page_moves_a_slider_and_a_foreign_one_moves_none(local):
    server, port = local
    slider = server.gui.add_slider("speed", 0.0, 1.0, 0.01, 0.0)
    with connect_to(port, origin=f"http://127.0.0.1:{port}") as client:
        move(slider, client, 0.5)
        deadline = time.monotonic() + 10
        while slider.value != 0.5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert slider.value == 0.5
    with pytest.raises(InvalidStatus, match="403"):
        connect_to(port, origin="http://evil.example")
    assert slider.value == 0.5


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:3000", "http://localhost.evil.example", "null", "http://[::2]"]
)
def test_connection_from_a_page_of_another_site_is_refused(local, origin):
    with pytest.raises(InvalidStatus) as refused:
        connect_to(local[1], origin=origin)
    assert refused.value.response.status_code == 403
    assert "must be the viewer's own page" in refused.value.response.body.decode()


def test_connection_under_a_name_that_resolves_to_this_machine_is_refused(local):
    # The page's own site in its Origin, as the browser sees it after the name has moved here.
    host = f"rebound.example:{local[1]}"
    with pytest.raises(InvalidStatus, match="403"):
        connect_to(local[1], host=host, origin=f"http://{host}")
    status, text = get(local[1], host)
    assert status == 403
    assert text.startswith(f"Host ('{host}') must be localhost or viewer_host (127.0.0.1).")


# A forwarded port, as by `ssh -L 9000:localhost:8080`, has another number than the server's.
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.1.2.3:81", "[::1]:9000", "[::1]"])
def test_loopback_names_are_answered_at_any_port(local, host):
    assert get(local[1], host)[0] == 200
    for origin in (None, f"http://{host}"):
        connect_to(local[1], host=host, origin=origin).close()
    for scheme in ("https", "ftp", "chrome-extension", "file", ""):
        with pytest.raises(InvalidStatus, match="403"):
            connect_to(local[1], host=host, origin=f"{scheme}://{host}")


def test_origin_has_the_scheme_by_which_a_proxy_was_asked():
    rule, host = AccessRule("127.0.0.1"), "localhost:9000"
    refusal = lambda origin, **more: rule.refusal(
        Headers({"Host": host, "Origin": f"{origin}://{host}"} | {key.replace("_", "-"): x for key, x in more.items()})
    )
    for asked in ("https", "wss", "https,http", "https, http"):
        assert refusal("https", X_Forwarded_Proto=asked) is None
    for asked in ("http", "ws", "http,https"):
        assert refusal("http", X_Forwarded_Proto=asked) is None
    assert "let the proxy set X-Forwarded-Proto: https." in refusal("https")
    assert "let the proxy set X-Forwarded-Proto: https." in refusal("https", X_Forwarded_Proto="http,https")
    assert "must be the viewer's own page" in refusal("http", X_Forwarded_Proto="https")
    assert "must be the viewer's own page" in refusal("ftp", X_Forwarded_Proto="ftp")


@pytest.mark.parametrize("host", ["evil.example", "192.168.1.5", "localhost.evil.example", "x@localhost", "", NAME])
def test_other_hosts_are_refused_where_only_this_machine_is_served(local, host):
    assert get(local[1], host)[0] == 403


@pytest.mark.parametrize("host", ["localhost:9000", "192.168.1.5:8080", "[fe80::1]:8080", NAME, f"{NAME}.local:8080"])
def test_addresses_and_own_names_are_answered_where_every_network_is_served(public, host):
    # A page that rebinds a name has that name in Host, never an address.
    assert get(public[1], host)[0] == 200
    connect_to(public[1], host=host, origin=f"http://{host}").close()
    with pytest.raises(InvalidStatus, match="403"):
        connect_to(public[1], host=host, origin="http://192.168.1.66:8080")


def test_other_names_are_refused_where_every_network_is_served(public):
    assert get(public[1], "rebound.example")[0] == 403


def test_viewer_host_is_answered_under_its_own_name():
    rule = AccessRule("robot.example")
    assert rule.refusal(Headers(Host="Robot.example:8080", Origin="http://robot.example:8080")) is None
    assert "Host ('192.168.1.5')" in rule.refusal(Headers(Host="192.168.1.5"))


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
def test_request_without_a_host_or_with_two_is_refused(hosts):
    assert "must be localhost" in AccessRule("127.0.0.1").refusal(Headers([("Host", host) for host in hosts]))


def test_viser_that_would_answer_everybody_is_not_used(monkeypatch):
    stopped = []

    class OtherServer:
        def __init__(self, **_):
            pass

        def stop(self):
            stopped.append(True)

    monkeypatch.setattr(server_module.viser, "ViserServer", OtherServer)
    with pytest.raises(RuntimeError, match="does not let ksim refuse"):
        start_server("127.0.0.1", 18100, lambda message: None)
    assert stopped
