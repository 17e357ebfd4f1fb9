import signal

import pytest

from tests.support.processes import finish, start

PROGRAM = """
import os, signal, threading, time
from ksim.host import signals

def send_again():
    time.sleep(0.2)
    os.kill(os.getpid(), number)

number = signal.Signals[{name!r}]
with signals.stop_on_signal() as request:
    threading.Thread(target=send_again).start()
    os.kill(os.getpid(), number)
    time.sleep(0.5)
    print("goes on", request.exit_code, flush=True)
    os.kill(os.getpid(), number)
"""


@pytest.mark.parametrize(("name", "goes_on"), [("SIGTERM", True), ("SIGINT", False)])
def test_sigterm_that_comes_twice_within_a_second_is_one_request_and_ctrl_c_is_two(name, goes_on, tmp_path):
    code, output = finish(start("-c", PROGRAM.format(name=name), cwd=tmp_path))
    assert code == -signal.Signals[name]
    assert ("goes on 143" in output) == goes_on
    assert output.count("once more to stop at once") == 1
