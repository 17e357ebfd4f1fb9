"""The viewer's server, asked through real sockets: whom it answers, and which messages of pages reach a session."""

import dataclasses
import http.client
import json
import random
import socket
from contextlib import closing
from unittest.mock import Mock

import numpy as np
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

import msgspec.msgpack
import viser
import viser._messages as viser_messages
from websockets import Headers
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from ksim.errors import ConfigError
from ksim.viewer import server as server_module
from ksim.viewer.browser import BrowserFrontend
from ksim.viewer.episodes import MAX_FILE_BYTES, Episode, load_episode, save_episode
from ksim.viewer.frontend import free_port
from ksim.viewer.page import Page
from ksim.viewer.server import CONTROLS, MAX_NUMBER, AccessRule, Channel, PageGate, read_control, start_server
from tests.support.processes import wait_until
from tests.support.scale import scale
from tests.support.tasks import BipedConfig, BipedTask
from tests.support.viewed import stepped, view_session

NAME = socket.gethostname().lower()
LOCAL, PUBLIC = "127.0.0.1", "0.0.0.0"
CAMERA = {
    "type": "ViewerCameraMessage", "wxyz": [1.0, 0.0, 0.0, 0.0], "position": [1.0, 2, 3], "fov": 0.8, "near": 0.1,
    "far": 100, "image_height": 400, "image_width": 600, "look_at": [0.0, 0, 0], "up_direction": [0, 0, 1.0],
}  # fmt: skip


@pytest.fixture(scope="module")
def servers():
    """A server for this machine alone, and one for every network."""
    servers = {host: start_server(host, free_port(host, 18100), Channel()) for host in (LOCAL, PUBLIC)}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def local(servers):
    """The port of the server for this machine alone."""
    return servers[LOCAL].get_port()


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


def refuses(port, **names):
    """The answer to a connection that must be refused."""
    with pytest.raises(InvalidStatus) as refused:
        connect_to(port, **names)
    assert refused.value.response.status_code == 403
    return refused.value.response.body.decode()


def send(page, message):
    page.send(message if isinstance(message, bytes) else msgspec.msgpack.encode(message))


def update(handle, value, name="value"):
    return {"type": "GuiUpdateMessage", "uuid": handle._impl.uuid, "updates": {name: value}}


def test_own_page_moves_a_slider_and_a_foreign_one_moves_none(servers, local):
    slider = servers[LOCAL].gui.add_slider("speed", 0.0, 1.0, 0.01, 0.0)
    with connect_to(local, origin=f"http://127.0.0.1:{local}") as client:
        send(client, update(slider, 0.5))
        wait_until(lambda: slider.value == 0.5)
    refuses(local, origin="http://evil.example")
    assert slider.value == 0.5


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:3000", "http://localhost.evil.example", "null", "http://[::2]"]
)
def test_connection_from_a_page_of_another_site_is_refused(local, origin):
    assert "must be the viewer's own page" in refuses(local, origin=origin)


def test_connection_under_a_name_that_resolves_to_this_machine_is_refused(local):
    # The page's own site in its Origin, as the browser sees it after the name has moved here.
    host = f"rebound.example:{local}"
    refuses(local, host=host, origin=f"http://{host}")
    status, text = get(local, host)
    assert status == 403
    assert text.startswith(f"Host ('{host}') must be localhost or viewer_host (127.0.0.1).")


# A forwarded port, as by `ssh -L 9000:localhost:8080`, has another number than the server's.
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.1.2.3:81", "[::1]:9000", "[::1]"])
def test_loopback_names_are_answered_at_any_port(local, host):
    assert get(local, host)[0] == 200
    for origin in (None, f"http://{host}"):
        connect_to(local, host=host, origin=origin).close()
    for scheme in ("https", "ftp", "chrome-extension", "file", ""):
        refuses(local, host=host, origin=f"{scheme}://{host}")


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


# A page that rebinds a name has that name in Host, never an address.
@pytest.mark.parametrize("host", ["localhost:9000", "192.168.1.5:8080", "[fe80::1]:8080", NAME, f"{NAME}.local:8080"])
def test_addresses_and_own_names_are_answered_where_every_network_is_served(servers, host):
    port = servers[PUBLIC].get_port()
    assert get(port, host)[0] == 200
    connect_to(port, host=host, origin=f"http://{host}").close()
    refuses(port, host=host, origin="http://192.168.1.66:8080")


NOT_LOCAL = ["evil.example", "192.168.1.5", "localhost.evil.example", "x@localhost", "", NAME]


@pytest.mark.parametrize(("served", "host"), [*((LOCAL, host) for host in NOT_LOCAL), (PUBLIC, "rebound.example")])
def test_other_hosts_are_refused(servers, served, host):
    assert get(servers[served].get_port(), host)[0] == 403


def test_viewer_host_is_answered_under_its_own_name():
    rule = AccessRule("robot.example")
    assert rule.refusal(Headers(Host="Robot.example:8080", Origin="http://robot.example:8080")) is None
    assert "Host ('192.168.1.5')" in rule.refusal(Headers(Host="192.168.1.5"))


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
def test_request_without_a_host_or_with_two_is_refused(hosts):
    assert "must be localhost" in AccessRule("127.0.0.1").refusal(Headers([("Host", host) for host in hosts]))


def test_viser_that_would_answer_everybody_is_not_used(monkeypatch):
    other = Mock(spec=["stop"])
    monkeypatch.setattr(server_module.viser, "ViserServer", lambda **_: other)
    with pytest.raises(RuntimeError, match="does not let ksim refuse"):
        start_server("127.0.0.1", 18100, Channel())
    other.stop.assert_called_once()


def test_port_that_is_taken_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port("127.0.0.1", port) > port


def test_host_that_is_not_this_machine_is_refused():
    # An address for documentation (RFC 5737): nobody's.
    with pytest.raises(ConfigError, match=r"viewer_host \(192.0.2.1\) must be an address of this machine"):
        free_port("192.0.2.1", 8080)


@pytest.fixture(scope="module")
def frontend():
    """A session of two robots that is served and stepped."""
    task = BipedTask(BipedConfig(engine="mujoco"))
    session = view_session(task, num_envs=2)
    page = Page(task.environment.shown().model, 2, host="127.0.0.1", port=18280)
    with stepped(session, BrowserFrontend(session, page)) as frontend:
        yield frontend


def page_of(frontend):
    """A connection as the page's own."""
    return connect_to(frontend._server.get_port())


def handles(frontend, kind):
    found = frontend._server.gui._gui_input_handle_from_uuid.values()
    return [handle for handle in found if type(handle) is kind]


def after(frontend, page):
    """Returns when all that a page has sent was handled: a later message has had its effect."""
    checkbox, new = frontend._arrows.show_commands, not frontend._arrows.show_commands.value
    send(page, update(checkbox, new))
    wait_until(lambda: checkbox.value == new)


INF, NAN = float("inf"), float("nan")
NUMBERS = (NAN, INF, -INF, 1e308, -1e308, 10**18, "", "abc", "0.5", None, True, [], [0.5], {})


WORDS = ["99", "-7", "0", "", "abc", "nan", "1e308", 1, None, True, ["1"]]
SLIDERS = (viser.GuiSliderHandle, viser.GuiNumberHandle)
MENUS = (viser.GuiDropdownHandle, viser.GuiButtonGroupHandle)
FOREIGN = [*((SLIDERS, value) for value in NUMBERS), *((MENUS, value) for value in WORDS)]


# Sliders and the scrubber take numbers of their range alone, menus and groups of buttons known choices alone.
@pytest.mark.parametrize(("kinds", "value"), FOREIGN, ids=repr)
def test_value_that_an_input_does_not_have_changes_nothing(frontend, kinds, value):
    inputs = [handle for kind in kinds for handle in handles(frontend, kind)]
    before = [handle.value for handle in inputs]
    assert len(inputs) >= 4
    assert kinds is SLIDERS or {"1", "1 x", "live", "total"} <= set(before)
    with page_of(frontend) as page:
        for handle in inputs:
            send(page, update(handle, value))
        after(frontend, page)
    assert [handle.value for handle in inputs] == before
    assert frontend._session.followed == 0


def test_what_a_page_sends_for_its_inputs_passes(frontend):
    speed, robot = frontend.replay.speed, next(x for x in handles(frontend, viser.GuiDropdownHandle) if x.value == "1")
    slider = frontend.inputs[0].handle
    with page_of(frontend) as page:
        send(page, CAMERA)
        send(page, update(speed, "2 x"))
        send(page, update(robot, "2"))
        send(page, update(slider, slider.max))
        wait_until(lambda: (speed.value, robot.value, slider.value) == ("2 x", "2", slider.max))
        wait_until(lambda: frontend._session.followed == 1)
        wait_until(lambda: frontend.is_watched)
        number = frontend._session.numbers[0]
        wait_until(lambda: frontend._session.get(number) == pytest.approx(slider.max))
        send(page, update(slider, slider.max + slider.step))  # as rounded by the page
        send(page, update(robot, "1"))
        wait_until(lambda: frontend._session.followed == 0)
    assert frontend._session.get(number) == pytest.approx(number.range[1])
    frontend._session.set_to_start()


def test_no_page_publishes_the_viewer_on_the_internet_or_changes_more_than_values(frontend, monkeypatch):
    called = []
    monkeypatch.setattr(frontend._server, "request_share_url", lambda *_: called.append("share"))
    monkeypatch.setattr(frontend._server, "disconnect_share_url", lambda *_: called.append("disconnect"))
    slider = frontend.inputs[0].handle
    inner = {name: value for name, value in vars(slider._impl).items() if name not in ("value", "update_timestamp")}
    with page_of(frontend) as page:
        shares = ("ShareUrlRequest", "ShareUrlDisconnect")
        for kind in (*shares, "GuiFormDirtyMessage", "ResetGuiMessage", "Message", "", 1):
            send(page, {"type": kind})
            send(page, {"type": kind, "uuid": slider._impl.uuid})
        for name in ("update_cb", "removed", "sync_cb", "props", "uuid", "nothing"):
            send(page, update(slider, [], name))
            send(page, update(slider, 0.0) | {"updates": {"value": 0.0, name: []}})
        after(frontend, page)
    assert not called
    assert {name: getattr(slider._impl, name) for name in inner} == inner


@pytest.mark.parametrize(
    "change",
    [
        {"image_height": 0}, {"image_height": -1}, {"image_width": 10**9}, {"fov": NAN}, {"wxyz": [1, 0, 0]},
        {"position": [1e300, 0, 0]}, {"position": "abc"}, {"look_at": None}, {"near": -1}, {"extra": 1},
    ],
    ids=repr,
)  # fmt: skip
def test_camera_of_no_page_is_dropped(frontend, change):
    with page_of(frontend) as page:
        send(page, CAMERA | change)
        after(frontend, page)
        assert not frontend.is_watched


FIELDS = ["type", "uuid", "updates", "value", *CAMERA, "content", "part_index", "size_bytes", "name"]


def test_session_goes_on_under_any_messages(frontend):
    rng = random.Random(0)
    uuids = list(frontend._server.gui._gui_input_handle_from_uuid)
    kinds = [kind.__name__ for kind in viser_messages.Message.get_subclasses()]
    values = [*NUMBERS, *CAMERA.values(), b"x" * 1000, "x" * 100_000, -(2**63), 2**64 - 1, [[[]]] * 100, *uuids[:3]]
    with page_of(frontend) as page, page_of(frontend) as other:
        send(other, CAMERA)
        for _ in range(scale(300, 20_000)):
            name = rng.choice(FIELDS)
            base = rng.choice([CAMERA, {"type": rng.choice(kinds)}, update(frontend.inputs[0].handle, 0.0)])
            message = base | {"uuid": rng.choice(uuids)} | {name: rng.choice(values)}
            message |= rng.choice([{}, {"updates": {rng.choice(["value", "props", "disabled"]): rng.choice(values)}}])
            data = msgspec.msgpack.encode(message)
            send(page, data if rng.random() < 0.8 else data[: rng.randrange(len(data))] + rng.randbytes(3))
        page.send("a text and no bytes")
        after(frontend, page)
    before = frontend._session.episode_step + frontend._session.num_falls
    frontend._session.paused = False
    wait_until(lambda: frontend._session.episode_step + frontend._session.num_falls != before)


def test_session_goes_on_when_many_pages_close_at_once(frontend):
    for _ in range(scale(1, 20)):
        pages = [page_of(frontend) for _ in range(50)]
        for page in pages:
            send(page, CAMERA)
        for page in pages:
            page.socket.close()
    with page_of(frontend) as page:
        after(frontend, page)


class Inputs:
    """An upload button and nothing else."""

    def __init__(self, server):
        self.button = server.gui.add_upload_button("Load")
        self.gate = PageGate()
        self.gate.inputs = lambda uuid: self.button if uuid == self.button._impl.uuid else None

    def start(self, page, **changes):
        start = {"filename": "f", "mime_type": "", "size_bytes": 10, "part_count": 2}
        return self._admitted(page, "FileTransferStartUpload", start | changes)

    def part(self, page, content, **changes):
        return self._admitted(page, "FileTransferPart", {"part_index": 0, "content": content} | changes)

    def _admitted(self, page, kind, fields):
        own = {"type": kind, "source_component_uuid": self.button._impl.uuid, "transfer_uuid": "t"}
        return self.gate.admitted(page, msgspec.msgpack.encode(own | fields))


@pytest.fixture
def inputs(frontend):
    inputs = Inputs(frontend._server)
    yield inputs
    inputs.button.remove()


def test_no_more_of_a_file_passes_than_was_announced(inputs):
    assert inputs.part("page", b"12345") is None
    assert inputs.start("page") is not None
    assert inputs.start("page", transfer_uuid="u") is None  # one at a time
    assert inputs.part("page", b"12345") is not None
    assert inputs.part("page", b"123456") is None
    assert inputs.part("page", b"12345", transfer_uuid="u") is None
    assert inputs.part("other", b"12345") is None
    assert inputs.part("page", b"12345", part_index=1) is not None
    assert inputs.part("page", b"1") is None
    assert inputs.start("page") is not None


def test_files_that_never_end_keep_only_few_others_out(inputs):
    pages = [f"page {i}" for i in range(server_module.MAX_UPLOADS)]
    assert all(inputs.start(page) for page in pages)
    assert inputs.start("late") is None
    inputs.gate.forget(pages[0])
    assert inputs.start("late") is not None


@pytest.mark.parametrize(
    "change",
    [{"size_bytes": -1}, {"size_bytes": 1.5}, {"part_count": 10**9}, {"filename": "x" * 1000}, {"filename": 1},
     {"source_component_uuid": "another"}, {"more": 1}],
    ids=repr,
)  # fmt: skip
def test_file_that_no_page_would_send_is_dropped(inputs, change):
    assert inputs.start("page", **change) is None


def test_file_that_is_too_large_arrives_as_an_empty_one(inputs):
    fields = msgspec.msgpack.decode(inputs.start("page", size_bytes=MAX_FILE_BYTES + 1, part_count=200))
    assert (fields["size_bytes"], fields["part_count"], fields["filename"]) == (0, 0, "f")
    assert inputs.part("page", b"12345") is None


def upload(page, button, content, name):
    own = {"source_component_uuid": button._impl.uuid, "transfer_uuid": name}
    start = {"type": "FileTransferStartUpload", "filename": name, "mime_type": "", "size_bytes": len(content)}
    send(page, own | start | {"part_count": 1})
    send(page, own | {"type": "FileTransferPart", "part_index": 0, "content": content})


def test_uploaded_recording_is_listed_and_shown_and_a_damaged_one_is_not(frontend, monkeypatch):
    own, loaded = frontend._session.poses[0].frame, []

    def load(*arguments):
        loaded.append(arguments[0])
        return load_episode(*arguments)

    monkeypatch.setattr("ksim.viewer.episodes.load_episode", load)
    frames = [dataclasses.replace(own, time_s=0.1 * i, rewards={"total": 1.0}) for i in range(3)]
    content = save_episode(Episode("mine", 0.1, frames))
    (button,) = handles(frontend, viser.GuiUploadButtonHandle)
    menu, label = frontend.replay.menu, "mine.npz: 0.2 s, return 0.2"
    with page_of(frontend) as page:
        send(page, CAMERA)
        wait_until(lambda: frontend.is_watched)
        for data, name in ((content[:-100], "damaged.npz"), (content, "mine.npz"), (content, "mine.npz")):
            count = len(loaded)
            upload(page, button, data, name)
            wait_until(lambda count=count: len(loaded) > count)
        wait_until(lambda: {label, f"{label} (2)"} <= set(menu.options))
        assert loaded == ["damaged.npz", "mine.npz", "mine.npz"]
        assert not any("damaged" in option for option in menu.options)
        send(page, update(menu, f"{label} (2)"))
        wait_until(lambda: frontend.replay.is_on)
        send(page, update(frontend.replay.scrubber.handle, 0.1))
        wait_until(lambda: frontend.replay.pose.data.time == 0.1)
        send(page, update(menu, "live"))
        wait_until(lambda: not frontend.replay.is_on)
    np.testing.assert_array_equal(frontend.replay.pose.data.qpos, own.qpos)


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "[" * 900, "1" * 2000, b"\xff\xfe", "null", "[]", '{"axes": [1e400, 0, 0]}', '{"axes": [NaN]}',
     f'{{"axes": [{"9" * 400}]}}', '{"axes": [1.5]}', '{"axes": [true]}', '{"axes": ["1"]}', '{"axes": 1}',
     '{"nudge": [0, 1]}', '{"press": 3}'],
)  # fmt: skip
def test_control_that_the_pages_script_does_not_send_is_dropped(text):
    assert read_control(text) is None


def test_controls_of_the_pages_script_pass():
    for text in ('{"axes": [1, -0.25, 0]}', '{"axes": [null, 1, null]}', '{"press": "reset"}'):
        assert read_control(text) == msgspec.json.decode(text)


def test_channel_tells_its_state_to_pages_and_releases_what_a_closed_page_drove():
    channel, received = Channel(), []
    channel.receive = received.append
    server = start_server(LOCAL, free_port(LOCAL, 18100), channel)
    connect_script = lambda: connect(f"ws://{LOCAL}:{server.get_port()}{CONTROLS}")
    try:
        channel.tell({"mode": "preparing"})
        with connect_script() as page, connect_script() as other:
            assert [json.loads(x.recv(timeout=10)) for x in (page, other)] == 2 * [{"mode": "preparing"}]
            channel.tell({"mode": "live"})
            channel.tell({"mode": "live"})
            channel.tell({"mode": "replay"})
            told = [json.loads(x.recv(timeout=10))["mode"] for x in (page, page, other, other)]
            # Each broadcast sends the newest state, which may already be the last one.
            assert told[1::2] == ["replay", "replay"]
            page.send('{"axes": [null, 1, 0.5]}')
            page.send("nonsense")
            page.send('{"axes": [null, null, 0]}')
            wait_until(lambda: len(received) == 2)
            page.close()
            wait_until(lambda: len(received) == 3)
        assert received == [{"axes": [None, 1, 0.5]}, {"axes": [None, None, 0]}, {"axes": [None, 0.0, None]}]
    finally:
        server.stop()


def test_inputs_without_a_range_have_one(frontend):
    handle = frontend._server.gui.add_number("free", 0.0)
    gate = PageGate()
    gate.inputs = lambda _: handle
    passes = lambda value: gate.admitted("page", msgspec.msgpack.encode(update(handle, value))) is not None
    assert (passes(-MAX_NUMBER), passes(1.1 * MAX_NUMBER)) == (True, False)
    handle.remove()
