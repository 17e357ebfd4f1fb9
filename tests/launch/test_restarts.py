"""Restarts after failures, of programs that only say what they were started with."""

import json
import os
import signal
from pathlib import Path

import pytest

from examples.point_mass import PointMassConfig
from ksim.launch.__main__ import main
from ksim.task.overrides import parse_overrides
from tests.support.launched_programs import Launcher, is_alive, wait_for_number, write_program
from tests.support.processes import wait_until

# Each process leaves a file per life, and waits until the others of its start have. `life` counts those of its number,
# `num` the processes of this start.
MORTAL = """
import json
num, life = int(os.environ["KSIM_NUM_PROCESSES"]), 0
while os.path.exists(f"life{me}_{life}"):
    life += 1
environ = {key: os.environ[key] for key in os.environ if key.startswith(("KSIM_", "CUDA_VISIBLE"))}
cores = sorted(os.sched_getaffinity(0))
tell(f"life{me}_{life}", json.dumps({**environ, "argv": sys.argv[1:], "cores": cores}))
port = os.environ["KSIM_COORDINATOR_ADDRESS"].rpartition(":")[2]
tell(f"born_{port}_{me}")
for i in range(num):
    wait_for(f"born_{port}_{i}")
def note_run_dir(text):
    with open(os.environ["KSIM_RUN_DIR_FILE"], "w") as file:
        file.write(text)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def lives(process_id=0):
    """The recorded start of a process, for each time that it was started."""
    paths = sorted(Path().glob(f"life{process_id}_*"), key=lambda path: int(path.name.partition("_")[2]))
    return [json.loads(path.read_text()) for path in paths]


def launch(text, *options, num=2):
    return main(["--nproc-per-node", str(num), *options, write_program(MORTAL + text), "num_envs=64"])


def test_killed_process_restarts_all_from_the_newest_checkpoint_of_the_noted_run(capfd, tmp_path):
    run_dir = tmp_path / "it's #1: a run"
    (run_dir / "checkpoints" / "40").mkdir(parents=True)
    (run_dir / "checkpoints" / "best").mkdir()
    program = f"""
if life == 0 and me == 0:
    note_run_dir({str(run_dir)!r})
    tell("noted")
    sleep()
if life == 0:
    wait_for("noted")
    die()
"""
    assert launch(program, "--max-restarts", "3") == 0
    err = capfd.readouterr().err
    assert "Process 1 failed first: it was killed by SIGKILL." in err
    assert f"Restart 1 of 3 in 2 processes, from the checkpoint of iteration 40 in {run_dir}." in err
    for process_id in range(2):
        first, second = lives(process_id)
        assert first["argv"] == ["num_envs=64"]
        assert second["argv"][0] == "num_envs=64"
        assert second["KSIM_NUM_PROCESSES"] == second["KSIM_NUM_LOCAL_PROCESSES"] == "2"
        config = parse_overrides(PointMassConfig(), second["argv"])
        assert (config.run_dir, config.resume) == (str(run_dir), "auto")
    assert not Path(lives()[0]["KSIM_RUN_DIR_FILE"]).exists()
    assert [life["KSIM_LAUNCHED_S"] for life in lives()] == [lives()[0]["KSIM_LAUNCHED_S"]] * 2


def test_failure_before_the_run_has_a_directory_starts_the_same_command_again(capfd):
    assert launch("sys.exit(0 if life else 1)", "--max-restarts", "1", num=1) == 0
    assert [life["argv"] for life in lives()] == [["num_envs=64"]] * 2
    assert "in 1 process, from the beginning: the run had no directory yet." in capfd.readouterr().err


def test_note_of_the_run_may_be_removed_by_a_cleaner_of_temporary_files(capfd, tmp_path):
    program = f"""
if life == 0:
    note_run_dir({str(tmp_path)!r})
    os.unlink(os.environ["KSIM_RUN_DIR_FILE"])
    sys.exit(5)
"""
    assert launch(program, "--max-restarts", "1", num=1) == 0
    assert f"from the beginning: there is no checkpoint yet in {tmp_path}" in capfd.readouterr().err


def test_failure_before_the_first_checkpoint_starts_over_in_the_same_directory(capfd, tmp_path):
    assert launch("note_run_dir(os.getcwd()); sys.exit(0 if life else 134)", "--max-restarts", "1", num=1) == 0
    assert lives()[1]["argv"][1:] == [f"run_dir={tmp_path}", "resume=auto"]


def test_restart_replaces_the_options_of_the_first_start_that_say_where_to_begin(capfd, tmp_path):
    program = write_program(MORTAL + "note_run_dir(os.getcwd()); sys.exit(0 if life else 134)")
    assert main(["--max-restarts", "1", program, "resume=old #1", "run_dir=new", "seed=1"]) == 0
    assert [life["argv"] for life in lives()] == [
        ["resume=old #1", "run_dir=new", "seed=1"],
        ["seed=1", f"run_dir={tmp_path}", "resume=auto"],
    ]
    assert f"from the beginning: there is no checkpoint yet in {tmp_path}." in capfd.readouterr().err


def test_given_address_is_kept_and_a_free_one_chosen_again():
    address = ["--coordinator-address", "127.0.0.1:8476"]
    assert launch("sys.exit(0 if life else 1)", "--max-restarts", "1", *address, num=1) == 0
    assert [life["KSIM_COORDINATOR_ADDRESS"] for life in lives()] == ["127.0.0.1:8476"] * 2


@pytest.mark.parametrize("code", [1, 70, 134])
def test_last_failure_gives_the_exit_code_when_restarts_are_used_up(code, capfd):
    assert launch(f"sys.exit({code} if life == 2 else 9)", "--max-restarts", "2", num=1) == code
    err = capfd.readouterr().err
    assert [f"Restart {i} of 2 " in err for i in (1, 2, 3)] == [True, True, False]
    assert "There is no restart left of 2 (--max-restarts)." in err
    assert len(lives()) == 3


@pytest.mark.parametrize("code", [0, 2, 75, 130, 138, 143])
def test_end_that_was_asked_for_and_invalid_input_are_no_reason_to_restart(code, capfd):
    assert launch(f"sys.exit({code})", "--max-restarts", "3", num=1) == code
    assert len(lives()) == 1
    err = capfd.readouterr().err
    assert "Restart" not in err
    assert ("There is no restart after exit code 2" in err) == (code == 2)


def test_without_restarts_nothing_is_said_of_them(capfd):
    assert launch("sys.exit(1)", num=1) == 1
    assert "restart" not in capfd.readouterr().err
    assert not {"KSIM_RUN_DIR_FILE", "KSIM_LAUNCHED_S"} & set(lives()[0])


def test_process_that_failed_is_left_out_down_to_the_least_number(capfd):
    # 3 processes, then 2, then 2 again.
    program = """
if (num, me, life) in ((3, 2, 0), (2, 0, 1)):
    die()
if (num, life) != (2, 2):
    sleep() if me == 0 or num == 3 else None
"""
    assert launch(program, "--max-restarts", "2", "--min-nproc", "2", num=3) == 0
    assert [life["KSIM_NUM_PROCESSES"] for life in lives()] == ["3", "2", "2"]
    assert (len(lives(1)), len(lives(2))) == (3, 1)
    err = capfd.readouterr().err
    assert "Restart 1 of 2 in 2 processes" in err
    assert "Restart 2 of 2 in 2 processes" in err


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="needs two cores to divide")
def test_last_process_left_gets_all_cores():
    assert launch("die() if me == 1 else sleep() if num == 2 else None", "--max-restarts", "1", "--min-nproc", "1") == 0
    first, second = lives()
    assert set(first["cores"]) < set(second["cores"]) == os.sched_getaffinity(0)


def test_process_that_stood_still_is_left_out_with_its_gpus(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    program = """
if num == 2:
    sys.exit(0)
if me == 1:
    tell("stopping", os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
if me == 2:
    sleep()
wait_until_stopped("stopping")
os.abort()
"""
    assert launch(program, "--max-restarts", "1", "--min-nproc", "1", "--grace-s", "0.5", num=3) == 0
    assert [lives(i)[1]["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["GPU-a", "GPU-c"]


def test_numbers_that_the_program_refuses_are_passed_over_and_count_as_no_restart(capfd):
    program = "sys.exit({4: 5, 3: 2, 2: 0}[num])"
    assert launch(program, "--max-restarts", "1", "--min-nproc", "1", num=4) == 0
    assert [life["KSIM_NUM_PROCESSES"] for life in lives()] == ["4", "3", "2"]
    err = capfd.readouterr().err
    assert "The program refused to go on in 3 processes; the next attempt is with 2." in err
    assert "Restart 2" not in err


def test_program_that_refuses_every_number_that_may_be_left_ends_with_its_code():
    assert launch("sys.exit(5 if num == 3 else 2)", "--max-restarts", "3", "--min-nproc", "2", num=3) == 2
    assert [life["KSIM_NUM_PROCESSES"] for life in lives()] == ["3", "2"]


def test_number_that_was_running_before_and_is_refused_now_is_invalid_input():
    assert launch("sys.exit(2 if life else 5)", "--max-restarts", "3", "--min-nproc", "2") == 2
    assert len(lives()) == 2


def test_what_processes_left_behind_is_gone_before_the_restart():
    program = """
if life == 0:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    tell("grandchild", child.pid)
    die()
tell("state", state_of(int(open("grandchild").read())))
"""
    assert launch(program, "--max-restarts", "1", num=1) == 0
    assert Path("state").read_text() in ("gone", "Z", "X")


def test_files_of_output_are_gone_on_with(capfd):
    assert launch("print('life', life); sys.exit(3)", "--max-restarts", "1", "--log-dir", "logs", num=1) == 3
    assert Path("logs/process_0.out").read_text() == "life 0\nlife 1\n"
    first, second = capfd.readouterr().err.split("Restart 1 of 1")
    assert "    life 0\n" in first
    assert "    life 0\n" not in second
    assert "    life 1\n" in second


def test_signal_while_a_failed_group_ends_stops_all():
    program = """
if me == 0:
    signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
    tell("deaf", os.getpid())
    sleep()
wait_for("deaf")
die()
"""
    arguments = "--nproc-per-node", 2, "--max-restarts", 3, "--grace-s", 600
    with Launcher(*arguments, write_program(MORTAL + program)) as launcher:
        pid = wait_for_number("deaf")
        wait_until(Path("asked").exists)
        launcher.send()
        code, _, err = launcher.finish()
    assert code == 128 + signal.SIGKILL
    assert "There is no restart, because the launcher or the process was asked to stop." in err
    assert len(lives()) == 1
    assert not is_alive(pid)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_after_a_restart_is_passed_on_and_ends_restarts(number):
    program = """
if life == 0:
    sys.exit(1)
for wanted in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(wanted, lambda number, _: sys.exit(128 + 15 if number == signal.SIGTERM else 1))
tell("ready")
sleep()
"""
    with Launcher("--max-restarts", 3, write_program(MORTAL + program)) as launcher:
        wait_until(Path("ready").exists)
        launcher.send(number)
        code, _, err = launcher.finish()
    assert code == (143 if number == signal.SIGTERM else 1)
    assert len(lives()) == 2
    assert ("There is no restart, because" in err) == (number == signal.SIGUSR1)
