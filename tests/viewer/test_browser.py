"""The viewer in the browser, in a real Chromium without a display and without a GPU."""

import contextlib
import dataclasses
import time
from types import SimpleNamespace

import imageio.v3
import mujoco
import numpy as np
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

from ksim.physics.rendering import GROUND_RGB, HORIZON_RGB, SKY_RGB
from ksim.viewer.browser import BrowserFrontend, reward_columns
from ksim.viewer.page import Page
from ksim.viewer.server import CONTROLS
from ksim.viewer.session import Frame
from tests.support.pages import CHROMIUM
from tests.support.processes import wait_until
from tests.support.tasks import BipedConfig, BipedTask
from tests.support.viewed import stepped, view_session

ARGUMENTS = [
    "--headless", "--no-sandbox", "--disable-dev-shm-usage", "--use-gl=angle", "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
TIMEOUT_S = 60


TASK = BipedTask(BipedConfig(engine="mujoco"))


@pytest.fixture(scope="module")
def session():
    return view_session(TASK, num_envs=2)


@pytest.fixture
def frontend(session):
    """The session served, and stepped as slowly as a page without a GPU is drawn."""
    session.set_to_start()
    session.paused, session.num_falls = False, 0
    frontend = BrowserFrontend(session, Page(TASK.environment.shown().model, 2, host="127.0.0.1", port=18080))
    frontend.frame_s = 0.2
    with stepped(session, frontend):
        yield frontend


GAMEPAD = """
window.pad = {connected: true, axes: [0, 0, 0, 0], buttons: Array.from({length: 17}, () => ({pressed: false}))};
navigator.getGamepads = () => [null, window.pad];
"""


@pytest.fixture
def open_page(frontend, tmp_path):
    """Opens the page at a width, with the addresses that it has asked for in `page.asked`."""
    if CHROMIUM is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    with playwright.sync_playwright() as driver, contextlib.ExitStack() as stack:

        def open_page(width, height):
            shape = {"viewport": {"width": width, "height": height}, "has_touch": width < 600}
            options = {"executable_path": CHROMIUM, "args": ARGUMENTS, "accept_downloads": True}
            context = driver.chromium.launch_persistent_context(tmp_path / "profile", **options, **shape)
            stack.callback(context.close)
            context.set_default_timeout(1000 * TIMEOUT_S)
            page = context.new_page()
            page.asked = []
            page.on("request", lambda request: page.asked.append(request.url))
            page.add_init_script(GAMEPAD)
            with page.expect_event("websocket", lambda socket: socket.url.endswith(CONTROLS)):
                page.goto(frontend._page.url)
            page.get_by_text("forward, m/s").wait_for()
            return page

        yield open_page


def test_input_of_a_page_is_kept_until_it_is_heard(frontend, session):
    forward, handle = session.numbers[0], frontend.inputs[0].handle
    hear = send(handle, 0.7)
    time.sleep(4 * frontend.frame_s)
    assert (handle.value, session.get(forward)) == (0.7, 0)
    hear()
    assert session.get(forward) == pytest.approx(0.7)
    time.sleep(4 * frontend.frame_s)
    assert handle.value == 0.7
    session.nudge(forward, 2)
    wait_until(lambda: handle.value == session.get(forward) != 0.7)


def test_scrubber_is_kept_until_it_is_heard(frontend, session):
    replay = frontend.replay
    wait_until(lambda: len(frontend.recorder.current.frames) > 2)
    frontend.recorder.cut()
    wait_until(lambda: frontend.recorder.finished)
    episode = dataclasses.replace(frontend.recorder.finished[-1], step_s=1000.0)  # so that it plays all the time
    replay.choose(episode)
    wait_until(lambda: replay.scrubber.handle.value > 0)
    hear = send(replay.scrubber.handle, episode.length_s)
    time.sleep(4 * frontend.frame_s)
    hear()
    wait_until(lambda: replay.pose.data.time == episode.frames[-1].time_s)
    assert replay.scrubber.handle.value == episode.length_s
    replay.choose(None)


def send(handle, value):
    """Puts a value into an input, as when it has arrived from a page; what hears of it runs when it is called."""
    handle._impl.value = value
    return lambda: [hear(SimpleNamespace(client=object())) for hear in handle._impl.update_cb]


def test_followed_robot_stays_in_the_middle_of_the_scene(frontend, session):
    session.paused = True
    handle = lambda name: frontend._server.scene.get_handle_by_name(name)
    names = ("/world", f"/world/robot_0/body_{session.base_body}")  # but for its place beside the other robot

    def is_in_the_middle():
        session.data.qpos[:2] = 7.0, -3.0  # again and again, as the last step may end after the pause
        mujoco.mj_forward(session.mj_model, session.data)
        place_3 = sum(np.array(handle(name).position) for name in names)
        height = frontend._scene.scale * session.data.xpos[session.base_body][2]
        return np.allclose(place_3, [0, 0, height], atol=1e-6) and handle("/world").position[0] < -1

    wait_until(is_in_the_middle)


@pytest.mark.long
def test_page_shows_the_robots_and_its_inputs_command_them(open_page, frontend, session):
    page = open_page(800, 500)
    forward, leftward, _ = session.numbers
    # A slider moved to its end is a command, and the policy is told.
    page.get_by_role("slider").nth(0).press("End")
    page.get_by_role("slider").nth(1).press("Home")
    wait_until(lambda: np.allclose(session._state.inner.commands["velocity"][0], [1.0, -0.3, 0.0]))
    assert (session.get(forward), session.get(leftward)) == (1.0, pytest.approx(-0.3))
    page.get_by_role("button", name="Zero commands").click()
    wait_until(lambda: not session._state.inner.commands["velocity"][0].any())
    wait_until(lambda: [number.handle.value for number in frontend.inputs] == [0, 0, 0])

    page.get_by_role("button", name="Pause", exact=True).click()
    badge_of(page).get_by_text("Paused").wait_for()
    assert session.paused
    before = session.data.qpos.copy()
    page.get_by_role("button", name="Reset").click()
    wait_until(lambda: (session.data.qpos != before).any())
    assert session.episode_step == 0

    image = imageio.v3.imread(page.screenshot())[..., :3]
    # Between the browser's notices and the panel there is the scene alone: lit robots on a grey floor.
    scene = image[:, 315:460].reshape(-1, 3)
    assert len(np.unique(scene, axis=0)) > 200
    assert scene.std() > 10

    # The sky of videos, from its zenith downwards, and a ground that is theirs, as the model's own has no colour.
    near = lambda x, y, *rgb: np.abs(image[y, x] / 255 - rgb[0]).max() < 0.03
    assert near(400, 4, SKY_RGB)
    assert near(300, 496, np.mean(GROUND_RGB, axis=0))
    rows_y3 = image[4:100, 400] / 255
    assert (np.diff(rows_y3[:, 0]) >= -1e-9).all()
    assert SKY_RGB[0] < rows_y3[-1, 0] < HORIZON_RGB[0]

    page.get_by_role("button", name="Pause", exact=True).click()
    wait_until(lambda: session.episode_step > 0)
    badge_of(page).get_by_text("Live").wait_for()
    # Nothing of the page comes from elsewhere.
    url = frontend._page.url
    own = (url, url.replace("http", "ws"), "data:", "blob:")
    assert not [url for url in page.asked if not url.startswith(own)]


def badge_of(page):
    return page.get_by_role("status").and_(page.locator("#ksim-badge"))


def values_of(session):
    return [round(session.get(number), 3) for number in session.numbers]


@pytest.mark.long
def test_keys_drive_while_they_are_held_and_stop_when_they_are_released(open_page, frontend, session):
    page = open_page(800, 500)
    shows = lambda *values: wait_until(lambda: values_of(session) == [*values])
    camera = lambda: next(iter(frontend._server.get_clients().values())).camera.position
    position_3 = frontend._server.initial_camera.position
    # A page reports viser's own place before the one that it is given.
    wait_until(lambda: frontend._server.get_clients() and np.allclose(camera(), position_3))
    # To the ends of the ranges: 0 to 1, -0.3 to 0.3, -0.5 to 0.5.
    page.keyboard.down("w")
    shows(1.0, 0.0, 0.0)
    page.keyboard.down("q")
    shows(1.0, 0.0, 0.5)
    page.keyboard.down("e")  # both of a pair
    shows(1.0, 0.0, 0.0)
    page.keyboard.up("w")
    page.keyboard.up("q")
    shows(0.0, 0.0, -0.5)
    page.keyboard.up("e")
    shows(0.0, 0.0, 0.0)
    np.testing.assert_allclose(camera(), position_3, atol=1e-6)  # which these keys would move on viser's own page

    # A number set by its slider stays while another one is driven; a window that loses its focus releases all keys.
    session.set(session.numbers[0], 0.4)
    page.keyboard.down("a")
    shows(0.4, 0.3, 0.0)
    page.evaluate("window.dispatchEvent(new Event('blur'))")
    shows(0.4, 0.0, 0.0)
    page.keyboard.up("a")
    page.keyboard.press(" ")
    shows(0.0, 0.0, 0.0)
    page.keyboard.press("k")
    wait_until(lambda: session.paused)
    page.keyboard.press("k")
    wait_until(lambda: not session.paused)
    page.locator("input.mantine-NumberInput-input").first.focus()
    page.keyboard.press("k")  # typed into a field, so it pauses nothing
    page.evaluate("document.activeElement.blur()")
    page.keyboard.down("w")
    shows(1.0, 0.0, 0.0)
    assert not session.paused
    page.close()  # and cannot release its key
    shows(0.0, 0.0, 0.0)


@pytest.mark.long
def test_gamepad_drives_the_robots(open_page, frontend, session):
    page = open_page(800, 500)
    # Half-way forward (less the dead zone), all the way right, the right stick all the way left.
    page.evaluate("window.pad.axes = [1, -0.56, -1, 0]")
    wait_until(lambda: values_of(session) == [0.5, -0.3, 0.5])
    page.evaluate("window.pad.axes = [0, 0.05, 0, 0]")
    wait_until(lambda: values_of(session) == [0.0, 0.0, 0.0])
    page.evaluate("window.pad.buttons[9].pressed = true")
    wait_until(lambda: session.paused)


@pytest.mark.long
def test_episode_is_replayed_with_the_scrubber_saved_and_loaded(open_page, frontend, session, tmp_path):
    page = open_page(800, 900)
    wait_until(lambda: len(frontend.recorder.finished) > 0)
    episode = frontend.recorder.finished[0]
    page.get_by_label("Show", exact=True).scroll_into_view_if_needed()
    wait_until(lambda: len(frontend.replay.menu.options) > 1)
    page.get_by_label("Show", exact=True).click()
    page.get_by_role("option", name=f"{episode.name}:").first.click()
    badge = badge_of(page)
    badge.get_by_text("Replay").wait_for()
    assert session.paused
    said = f"{episode.name} \u00b7 "
    wait_until(lambda: "recorded" in badge.inner_text() and said in badge.inner_text())
    recorded = page.evaluate("s => new Date(1000 * s).toLocaleString()", episode.recorded_s)
    assert recorded in badge.inner_text()
    box = badge.bounding_box()
    assert box["x"] >= 0
    assert box["y"] >= 0
    frame = imageio.v3.imread(page.screenshot())[..., :3]
    assert (frame[450, 1] == frame[2, 400]).all()  # of one colour, at all edges
    assert frame[450, 1, 0] > frame[450, 1, 2] + 100  # amber
    wait_until(lambda: frontend.replay.pose.data.time > 0)
    scrubber = page.get_by_role("slider").last
    scrubber.press("End")
    wait_until(lambda: np.array_equal(frontend.replay.pose.data.qpos, episode.frames[-1].qpos))
    scrubber.press("Home")
    wait_until(lambda: np.array_equal(frontend.replay.pose.data.qpos, episode.frames[0].qpos))

    with page.expect_download() as download:
        page.get_by_role("button", name="Save as a file").click()
    path = tmp_path / "mine.npz"
    download.value.save_as(path)
    page.locator("input[type=file]").set_input_files(path)
    wait_until(lambda: frontend.recorder.finished[-1].name == "mine.npz")
    assert len(frontend.recorder.finished[-1].frames) == len(episode.frames)
    page.get_by_label("Show", exact=True).click()
    page.get_by_role("option", name="live").click()
    wait_until(lambda: not session.paused)
    badge.get_by_text("Live").wait_for()


@pytest.mark.long
def test_page_on_a_phone_shows_the_robot_above_the_panel_and_is_driven_by_a_stick(open_page, frontend, session):
    page = open_page(390, 844)
    stick = page.locator("#ksim-stick").bounding_box()
    panel_top = page.get_by_text("ksim", exact=True).bounding_box()["y"]
    assert stick["x"] >= 0
    assert stick["y"] + stick["height"] <= panel_top
    x, y, radius = stick["x"] + stick["width"] / 2, stick["y"] + stick["height"] / 2, 48
    finger = page.context.new_cdp_session(page)
    at = lambda right, up: {"touchPoints": [{"x": x + radius * right, "y": y - radius * up}]}
    touch = lambda kind, points: finger.send("Input.dispatchTouchEvent", {"type": kind, **points})
    touch("touchStart", at(0, 0))
    touch("touchMove", at(0, 1.5))  # beyond its edge
    wait_until(lambda: values_of(session) == [1.0, 0.0, 0.0])
    touch("touchMove", at(-0.8, 0.6))
    wait_until(lambda: session.get(session.numbers[2]) > 0.3 and 0.4 < session.get(session.numbers[0]) < 0.7)
    touch("touchMove", at(1, 0))
    wait_until(lambda: values_of(session) == [0.0, 0.0, -0.5])
    touch("touchEnd", {"touchPoints": []})
    wait_until(lambda: values_of(session) == [0.0, 0.0, 0.0])

    # The panel and a group of buttons take the width of the page; buttons have the size of a finger.
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    buttons = [page.get_by_role("button", name=name).bounding_box() for name in ("Zero commands", "Pause")]
    assert buttons[0]["x"] < 20
    assert buttons[1]["x"] + buttons[1]["width"] > 370
    assert min(box["height"] for box in buttons) >= 32
    page.get_by_role("button", name="Pause").tap()
    wait_until(lambda: session.paused)
    # The middle of the robot is drawn in the part of the page that the panel leaves free.
    wait_until(frontend._server.get_clients)
    client = next(iter(frontend._server.get_clients().values()))
    wait_until(lambda: 0 < height_on_page(client.camera, frontend, session, 844) < panel_top)


def height_on_page(camera, frontend, session, height):
    """The pixel row of the middle of the followed robot."""
    base_3 = frontend._scene.scale * session.data.xpos[session.base_body] * [0, 0, 1]
    forward_3 = camera.look_at - camera.position
    forward_3 /= np.linalg.norm(forward_3)
    up_3 = np.array([0, 0, 1]) - forward_3[2] * forward_3
    up_3 /= np.linalg.norm(up_3)
    way_3 = base_3 - camera.position
    return height / 2 * (1 - way_3 @ up_3 / (way_3 @ forward_3) / np.tan(camera.fov / 2))


def test_plotted_rewards_end_with_the_newest_frame():
    frames = [Frame(0.0, np.zeros(1), np.zeros(1), {}, None, {}, {"total": float(i)}) for i in range(600)]
    time_t, total_t, missing_t = reward_columns(frames, ["total", "alive"], 0.02)
    assert len(time_t) == 200
    assert (time_t[-1], total_t[-1], total_t[-2]) == (0.0, 599.0, 596.0)
    assert time_t[0] == pytest.approx(-199 * 3 * 0.02)
    assert not missing_t.any()
