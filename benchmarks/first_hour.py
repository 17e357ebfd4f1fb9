"""A newcomer's first hour, step by step: from a clone to their own robot in the browser.

python -m benchmarks.first_hour path/to/robot.xml --iterations 150

Clones this repository and runs the commands of the README in the clone, each as a newcomer would, one after another.
Prints a table of the seconds of each step, by the clock and of the processor, which other programs of a busy machine
change less. Needs Chromium, as the step "seen" opens the page of the viewer and waits until its sliders are there.
"""

import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from playwright.sync_api import sync_playwright

from ksim.tools.new import module_name

ROOT = Path(__file__).parents[1]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PREPARED = ("XLA_FLAGS", "PJRT_NPROC", "KSIM_PJRT_NPROC", "JAX_COMPILATION_CACHE_DIR", "PYTHONPATH")
"""Variables of this process that a newcomer's do not have."""
BROWSER = ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
"""It draws without a GPU."""
VIEWS_S = 600


def processor_s() -> float:
    """Processor time of all processes that have ended so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def see(command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
    """Starts a viewer, opens its page, waits for the sliders of the command, and stops the viewer.

    Raises:
        RuntimeError: The viewer ended before it served a page.
    """
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        addresses = (re.search(r"http://\S+:\d+", line) for line in process.stdout or ())
        address = next(filter(None, addresses), None)
        if address is None:
            raise RuntimeError(f"{' '.join(command)} ended with exit code {process.wait()}.")
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=BROWSER)
                page = browser.new_page()
                page.goto(address[0], timeout=1000 * VIEWS_S)
                page.get_by_role("slider").first.wait_for(timeout=1000 * VIEWS_S)
                browser.close()
        finally:
            process.send_signal(signal.SIGINT)


def steps(robot: Path, iterations: int, python: str) -> list[tuple[str, list[str]]]:
    """A newcomer's steps and their commands. Commands with `run_mode=view` are opened in the browser."""
    program = f"{module_name(robot.stem)}.py"
    own = [".venv/bin/python", program]
    walking = [".venv/bin/python", "-m", "examples.walking"]
    view = ["run_mode=view", "viewer=browser"]
    return [
        ("clone", ["git", "clone", "--quiet", str(ROOT), "."]),
        ("set up", ["make", f"PYTHON={python}", ".venv/.installed"]),
        ("train the humanoid", ["make", "walk", f"ARGS=max_iterations={iterations}"]),
        ("see the trained humanoid", [*walking, *view, "checkpoint=pretrained"]),
        ("write a task for a robot", [".venv/bin/python", "-m", "ksim.tools.new", str(robot)]),
        ("train the robot", [*own, f"max_iterations={iterations}", "run_dir=runs/robot"]),
        ("see the robot", [*own, *view, "checkpoint=runs/robot"]),
    ]


def main() -> None:
    """Times the steps and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("robot", type=Path, metavar="ROBOT.xml", help="MJCF file of a robot")
    parser.add_argument("--iterations", type=int, default=150, help="of each training")
    parser.add_argument("--python", default=sys.executable, help="what the environment is made with")
    args = parser.parse_args()
    environment = {name: value for name, value in os.environ.items() if name not in PREPARED}
    print("| step | command | s | processor s |\n|---|---|---|---|")
    total_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        environment["XDG_CACHE_HOME"] = f"{folder}/cache"  # nothing has been compiled
        clone = Path(folder, "ksim")
        clone.mkdir()
        for name, command in steps(args.robot.resolve(), args.iterations, args.python):
            before_s, start_s = processor_s(), time.perf_counter()
            if "run_mode=view" in command:
                see(command, clone, environment)
            else:
                subprocess.run(command, cwd=clone, env=environment, stdout=sys.stderr, check=True)
            step_s = time.perf_counter() - start_s
            total_s += step_s
            shown = shlex.join(command).replace(str(args.robot.resolve()), args.robot.name).replace(str(ROOT), "ksim")
            print(f"| {name} | `{shown}` | {step_s:.0f} | {processor_s() - before_s:.0f} |", flush=True)
    print(f"| all of it | | {total_s:.0f} | |")


if __name__ == "__main__":
    main()
