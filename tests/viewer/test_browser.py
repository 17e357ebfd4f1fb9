"""The viewer in the browser, in a real Chromium without a display and without a GPU."""

import shutil
import socket
import threading
import time

import jax
import numpy as np
import pytest

pytest.importorskip("viser", reason="needs viser: pip install -e '.[viewer]'")

from ksim.errors import ConfigError
from ksim.host.signals import StopRequest
from ksim.parallel.layout import SingleDevice
from ksim.viewer.browser import BrowserFrontend, free_port
from ksim.viewer.frontend import run_session
from ksim.viewer.session import ViewSession
from tests.tasks import BipedConfig, BipedTask

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def session():
    task = BipedTask(BipedConfig(engine="mujoco"))
    task.layout = SingleDevice()
    env = task.environment
    return ViewSession(env, task._get_initial_model(jax.random.key(0)), seed=0)


@pytest.fixture
def frontend(session):
    """The session served, and stepped in a thread of its own."""
    frontend = BrowserFrontend(session, host="127.0.0.1", port=18080)
    stop = StopRequest()
    thread = threading.Thread(target=run_session, args=(session, frontend, stop))
    thread.start()
    yield frontend
    stop.signal = 2
    thread.join()
    frontend.close()


@pytest.fixture
def page(frontend, tmp_path):
    """The page, with the addresses that it has asked for in `page.asked`."""
    if CHROMIUM is None:
        pytest.skip("There is no Chromium on this machine: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=CHROMIUM, args=ARGUMENTS, viewport={"width": 800, "height": 400}
        )
        context.set_default_timeout(1000 * TIMEOUT_S)
        page = context.new_page()
        page.asked = []
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(frontend.url)
        page.get_by_text("forward, m/s").wait_for()
        yield page
        context.close()


def wait_until(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "It did not happen in time."
        time.sleep(0.05)


@pytest.mark.long
def test_page_shows_the_robot_and_its_inputs_command_it(page, frontend, session, tmp_path):
    forward, leftward, _ = session.numbers
    # A slider moved to its end is a command, and the policy is told.
    page.get_by_role("slider").nth(0).press("End")
    page.get_by_role("slider").nth(1).press("Home")
    wait_until(lambda: np.allclose(session.policy_commands["velocity"], [1.0, -0.3, 0.0]))
    assert (session.get(forward), session.get(leftward)) == (1.0, pytest.approx(-0.3))
    page.get_by_role("button", name="Initial commands").click()
    wait_until(lambda: not session.policy_commands["velocity"].any())
    wait_until(lambda: [handle.value for handle in frontend.inputs] == [0, 0, 0])

    page.get_by_role("button", name="Pause").click()
    page.get_by_text("paused").wait_for()
    assert session.paused
    before = session.data.qpos.copy()
    page.get_by_role("button", name="Reset").click()
    wait_until(lambda: (session.data.qpos != before).any())
    assert session.episode_step == 0

    image = pixels_of(page.screenshot(path=tmp_path / "page.png"))
    # Between the browser's notices and the panel there is the scene alone: a lit robot on a grey floor.
    scene = image[:, 315:460].reshape(-1, 3)
    assert len(np.unique(scene, axis=0)) > 200
    assert scene.std() > 10

    page.get_by_role("button", name="Resume").click()
    wait_until(lambda: session.episode_step > 0)
    # Nothing of the page comes from elsewhere.
    assert not [url for url in page.asked if not url.startswith((frontend.url, "data:", "blob:"))]


def pixels_of(png):
    import io

    import imageio.v3

    return np.asarray(imageio.v3.imread(io.BytesIO(png)))[..., :3]


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
