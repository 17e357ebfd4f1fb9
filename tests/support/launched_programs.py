"""Small programs to launch, which import nothing but the standard library, and what tests need to wait for them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from ksim.host.machine import process_state
from tests.support.processes import ROOT, wait_until

DEADLINE_S = 60

# Every program begins like this: its global id, and a way to tell the test of it.
HEAD = """
import os, signal, subprocess, sys, time
me = int(os.environ["KSIM_PROCESS_ID"])
def tell(name, text=""):
    with open(f"{name}.new{me}", "w") as file:
        file.write(str(text))
    os.rename(f"{name}.new{me}", name)
def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.005)
def sleep():
    while True:
        time.sleep(0.1)  # a signal that arrives just before a sleep is handled after it
def state_of(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
def wait_until_stopped(name):
    wait_for(name)
    while state_of(int(open(name).read())) != "T":
        time.sleep(0.005)
"""


def write_program(text, name="program.py"):
    Path(name).write_text(HEAD + text)
    return name


def wait_for_number(name):
    wait_until(Path(name).exists)
    return int(Path(name).read_text())


def is_alive(pid):
    return process_state(pid) not in (None, "Z", "X")


class Launcher:
    """`python -m ksim.launch` in a process of its own, as tests that send signals need it."""

    def __init__(self, *arguments):
        # Under nohup the tests themselves ignore it, and a child would inherit that.
        ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ksim.launch", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        )
        signal.signal(signal.SIGHUP, ignored)
        self._timer = threading.Timer(DEADLINE_S, self.process.kill)
        self._timer.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self._timer.cancel()

    def finish(self):
        out, err = self.process.communicate()
        return self.process.returncode, out, err

    def send(self, number=signal.SIGTERM):
        self.process.send_signal(number)
