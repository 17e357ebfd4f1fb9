import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from ksim import ConfigError
from ksim.parallel import multihost
from ksim.parallel.multihost import Peers, fail_together, gather_rows, gather_texts

HOST = socket.gethostname()


def child_that(code):
    return subprocess.Popen([sys.executable, "-c", code])


def test_without_a_job_there_is_one_process_that_agrees_with_itself():
    assert (multihost.num_processes(), multihost.process_index(), multihost.is_main_process()) == (1, 0, True)
    np.testing.assert_array_equal(gather_rows(np.arange(3)), [[0, 1, 2]])
    assert gather_texts("text") == ["text"]
    multihost.wait_for_all()
    with pytest.raises(ConfigError, match="mine"), fail_together():
        raise ConfigError("mine")


def test_lost_process_is_named_by_what_became_of_it():
    child = child_that("import time; time.sleep(60)")
    try:
        peers = Peers((HOST, HOST, "elsewhere"), (os.getpid(), child.pid, 1))
        assert peers.describe_lost() == "one on elsewhere"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet reaped
        assert peers.describe_lost() == f"process 1 (pid {child.pid} on {HOST}) has ended"
    finally:
        child.kill()
        child.wait()
    assert "has ended" in peers.describe_lost()


def test_lost_process_that_is_about_to_end_is_waited_for():
    with child_that("import time; time.sleep(0.3)") as child:
        lost = Peers((HOST, HOST), (os.getpid(), child.pid)).describe_lost()
    assert lost == f"process 1 (pid {child.pid} on {HOST}) has ended"


def test_stopped_process_is_named():
    child = child_that("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    try:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        lost = Peers((HOST, HOST), (os.getpid(), child.pid)).describe_lost()
        assert lost == f"process 1 (pid {child.pid} on {HOST}) is stopped (SIGSTOP)"
    finally:
        child.kill()
        child.wait()
