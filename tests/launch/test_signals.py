"""The launcher in a process of its own, and signals to it and to its children."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ksim.host.machine import process_state
from tests.support.launched_programs import Launcher, is_alive, wait_for_number, write_program
from tests.support.processes import wait_until

# Counts SIGTERMs and SIGINTs; ends as a training does, when the test lets it.
PATIENT = """
caught = []
def stop(number, _):
    caught.append(number)
    tell(f"caught{me}_{len(caught)}", number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGUSR1, lambda *_: tell(f"warned{me}"))
tell(f"pid{me}", os.getpid())
wait_for("end")
sys.exit(128 + caught[0] if caught else 0)
"""


def patient(*options):
    return Launcher("--nproc-per-node", 2, *options, write_program(PATIENT))


def wait_for_pids():
    return [wait_for_number(f"pid{i}") for i in range(2)]


# A terminal that is lost sends SIGHUP, and the processes must save.
@pytest.mark.parametrize(
    ("number", "passed"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        pytest.param(signal.SIGINT, signal.SIGINT, marks=pytest.mark.long),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_signal_is_passed_on_once_and_gives_the_exit_code(number, passed):
    with patient() as launcher:
        wait_for_pids()
        launcher.send(number)
        assert [wait_for_number(f"caught{i}_1") for i in range(2)] == [passed, passed]
        Path("end").touch()
        code, _, err = launcher.finish()
    assert code == 128 + number
    assert f"{number.name} is passed on to 2 of the processes" in err
    assert "failed" not in err
    assert not list(Path().glob("caught*_2"))


def test_second_signal_kills_all():
    with patient() as launcher:
        pids = wait_for_pids()
        launcher.send()
        for i in range(2):
            wait_for_number(f"caught{i}_1")
        launcher.send()
        code, _, err = launcher.finish()
    assert code == 128 + signal.SIGTERM
    assert "failed" not in err
    assert not any(map(is_alive, pids))


def test_failure_while_stopping_is_a_failure():
    program = write_program("""
def stop(*_):
    sys.exit(3 if me else 128 + 15)
signal.signal(signal.SIGTERM, stop)
tell(f"pid{me}", os.getpid())
sleep()
""")
    with Launcher("--nproc-per-node", 2, program) as launcher:
        wait_for_pids()
        launcher.send()
        code, _, err = launcher.finish()
    assert code == 3
    assert "Process 1 failed first" in err


@pytest.mark.long
def test_warning_is_passed_on_and_ends_nothing():
    with patient() as launcher:
        wait_for_pids()
        launcher.send(signal.SIGUSR1)
        for i in range(2):
            wait_until(Path(f"warned{i}").exists)
        Path("end").touch()
        code, _, _ = launcher.finish()
    assert code == 0


@pytest.mark.parametrize("ends", [(0, 75), *(pytest.param((code, code), marks=pytest.mark.long) for code in (75, 138))])
def test_stop_that_was_planned_here_or_elsewhere_is_no_failure(ends):
    with Launcher("--nproc-per-node", 2, write_program(f"sys.exit({ends}[me])")) as launcher:
        code, _, err = launcher.finish()
    assert code == max(ends)
    assert "failed" not in err


@pytest.mark.long
def test_warning_does_not_end_a_process_that_has_no_handler_for_it():
    program = write_program("tell('pid', os.getpid()); wait_for('end')")
    with Launcher(program) as launcher:
        os.kill(wait_for_number("pid"), signal.SIGUSR1)
        launcher.send(signal.SIGUSR1)
        Path("end").touch()
        assert launcher.finish()[0] == 0


def test_signal_sent_to_a_process_by_someone_else_is_a_failure():
    with patient("--grace-s", 0.5) as launcher:
        pids = wait_for_pids()
        os.kill(pids[1], signal.SIGTERM)
        wait_for_number("caught1_1")
        Path("end").touch()
        code, _, err = launcher.finish()
    assert code == 143
    assert "Process 1 failed first: it ended with exit code 143 (128 + SIGTERM)." in err


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="without pidfds the order is not kept by the kernel")
@pytest.mark.parametrize(("first", "second"), [(0, 1), pytest.param(1, 0, marks=pytest.mark.long)])
def test_the_process_that_ended_first_is_named_even_if_the_launcher_slept_meanwhile(first, second):
    with patient() as launcher:
        pids = wait_for_pids()
        launcher.send(signal.SIGSTOP)
        wait_until(lambda: process_state(launcher.process.pid) == "T")
        for i, number in ((first, signal.SIGKILL), (second, signal.SIGABRT)):
            os.kill(pids[i], number)
            wait_until(lambda i=i: process_state(pids[i]) == "Z")
        launcher.send(signal.SIGCONT)
        code, _, err = launcher.finish()
    assert code == 128 + signal.SIGKILL
    assert f"Process {first} failed first: it was killed by SIGKILL." in err
    assert f"Process {second} was killed by SIGABRT." in err


def test_launcher_that_is_killed_leaves_neither_children_nor_theirs():
    program = write_program("""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell(f"grandchild{me}", child.pid)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
tell(f"pid{me}", os.getpid())
sleep()
""")
    with Launcher("--nproc-per-node", 2, program) as launcher:
        pids = [*wait_for_pids(), *(wait_for_number(f"grandchild{i}") for i in range(2))]
        assert all(map(is_alive, pids))
        launcher.send(signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)))


def test_program_is_not_begun_by_a_child_whose_launcher_is_gone_already():
    child = Path(__file__).parents[2] / "ksim" / "launch" / "child.py"
    gone = os.getpid() + 1  # anyone but its parent
    command = [sys.executable, "-I", "-S", str(child), str(gone), "", sys.executable, "-c", "print('begun')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_reader_of_the_output_may_go_away():
    program = write_program("tell('pid', os.getpid()); wait_for('gone'); print('x' * 1_000_000); tell('written')")
    with Launcher(program) as launcher:
        wait_for_number("pid")
        launcher.process.stdout.close()
        Path("gone").touch()
        assert launcher.process.wait() == 0
        launcher.process.stdout = None
    assert Path("written").exists()
