"""The site as a reader sees it, built as by `make site`."""

import contextlib
import functools
import http.server
import importlib.util
import json
import subprocess
import sys
import threading

import pytest

from tests.support.pages import DESKTOP, PHONE, open_page
from tests.support.processes import ROOT, environment
from tests.support.scale import only_in_full

fcntl = pytest.importorskip("fcntl", reason="needs file locks, which Windows lacks")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("sphinx") is None, reason="needs the extra `site`"),
]
LONGEST = 6000
"""Height of the highest page on a phone, in CSS pixels."""
LOAD_PICTURES = """
document.querySelectorAll("img").forEach((image) => (image.loading = "eager"));
Promise.all([...document.images].map((image) => image.decode().catch(() => null)));
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def copyfile(self, source, outputfile):
        with contextlib.suppress(ConnectionError):  # the page was left before it was loaded
            super().copyfile(source, outputfile)


@pytest.fixture(scope="module")
def site():
    """The directory of the site. Pages that are as they were when it was last built are not built again."""
    out = ROOT / "build/site"
    out.parent.mkdir(exist_ok=True)
    command = ["sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", "html", "-c", "docs/site", ".", out]
    with (ROOT / "build/site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may build it too
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment(), check=True)
    return out


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def pages_of(site):
    """The paths of all pages but that of the root, which leads on to the first one."""
    names = [path.relative_to(site).as_posix() for path in site.rglob("*.html") if "_static" not in path.parts]
    return [name for name in names if name != "index.html"]


@only_in_full("every page in a browser")
def test_no_page_is_higher_than_seven_screens_of_a_phone(site, address, chromium):
    page, heights = open_page(chromium, f"{address}/search.html", PHONE), {}
    for name in pages_of(site):
        page.goto(f"{address}/{name}", wait_until="load")
        page.evaluate(LOAD_PICTURES)
        heights[name] = page.evaluate("document.documentElement.scrollHeight")
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], name
    assert {name: height for name, height in heights.items() if height > LONGEST} == {}
    page.close()


def test_first_page_shows_film_commands_figures_and_all_robots(address, chromium):
    page = open_page(chromium, f"{address}/docs/site/index.html", DESKTOP)
    sources = page.evaluate("[...document.images].map(image => image.src.split('/').pop())")
    records = map(json.loads, (ROOT / "docs/robots.jsonl").read_text().splitlines())
    assert {"walking.webp"} | {record["picture"] for record in records if record.get("walks")} <= set(sources)
    assert "python -m ksim.tools.new my_robot.xml" in page.inner_text("#your-own-robot-in-three-commands")
    assert page.locator("#measured table tbody tr").count() > 5
    page.close()


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("distributed training", "DISTRIBUTED_TRAINING.html"),
        ("reward", "docs/own_task.html"),
        ("velocity", "docs/own_task.html"),
        ("checkpoint", "docs/reliability.html"),
        ("own robot", "docs/own_robot.html"),
        ("SwingPose", "docs/site/api/rewards.html"),
    ],
)
def test_search_finds_the_page_on_a_subject_first(address, chromium, query, first):
    page = open_page(chromium, f"{address}/search.html?q={query}", DESKTOP)
    found = page.locator("ul.search > li > a").first
    found.wait_for()
    assert found.get_attribute("href").split("#")[0] == first
    page.close()


def test_notebook_is_a_page_with_its_plots(address, chromium):
    page = open_page(chromium, f"{address}/docs/notebooks/first_steps.html", DESKTOP)
    assert page.locator("img[alt='Output of the cell above']").count() == 2
    page.close()
