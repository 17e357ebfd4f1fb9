"""Jobs of several processes, as a user starts them, and what becomes of them when one fails."""

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest

from examples.point_mass import PointMassConfig, PointMassTask
from ksim.log import jsonl
from ksim.task.overrides import parse_overrides
from tests.support.processes import finish, free_port, read_until, start, start_job, wait_until
from tests.support.scale import scale

SMALL = ("num_envs=16", "rollout_length=8", "tensorboard=false", "video=false", "plots=false", "eval_at_end=false")
POINT_MASS = ("-m", "examples.point_mass", *SMALL, "run_dir=run")
ENDLESS = ("max_iterations=null", "heartbeat_timeout_s=10")
LAYOUTS = ("pmap", *scale([], [pytest.param("shard_map", marks=pytest.mark.long)]))


@pytest.fixture
def launch(tmp_path):
    """Starts two processes by the launcher, and ends what is left of them."""
    launchers = []

    def run(*arguments, num_devices=1, **changes):
        command = ("-m", "ksim.launch", "--nproc-per-node", "2", "--grace-s", "5", *arguments)
        launchers.append(start(*command, cwd=tmp_path, num_devices=num_devices, **changes))
        return launchers[-1]

    yield run
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.kill()
            launcher.wait()


def torchrun(place, port, _):
    """The variables that torchrun sets in a process. Its own store listens at MASTER_PORT."""
    local = {"LOCAL_RANK": str(place), "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {"RANK": str(place), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **local}


def by_jax_variables(place, _, coordinator_port):
    address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{coordinator_port}"}
    return {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": str(place), **address}


@pytest.mark.long
@pytest.mark.parametrize("variables", scale([torchrun], [torchrun, by_jax_variables]))
def test_processes_that_another_launcher_started_train_as_one(variables, tmp_path):
    store = socket.create_server(("127.0.0.1", 0))
    ports = store.getsockname()[1], free_port()
    with store:
        job = [start(*POINT_MASS, "max_iterations=1", cwd=tmp_path, **variables(place, *ports)) for place in range(2)]
        for place, process in enumerate(job):
            code, output = finish(process)
            assert code == 0, output
            if place == 0:
                assert re.search(r"processes\s+│\s+2", output), output
    assert len(read_metrics(tmp_path / "run")) == 1
    assert {path.name for path in (tmp_path / "run").glob("*.log")} == {"process_0.log", "process_1.log"}


def read_metrics(run_dir):
    """Every line of metrics.jsonl, each whole."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def processes_of(launcher):
    """The pids of the job's processes, in their order."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ, command = (path / "environ").read_bytes(), (path / "cmdline").read_bytes()
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        number = re.search(rb"KSIM_PROCESS_ID=(\d+)", environ)
        if number and parent == launcher.pid and b"point_mass" in command:
            found[int(number[1])] = int(path.name)
    return [found[i] for i in sorted(found)]


def assert_ended(pids):
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 20)


def assert_nothing_half_written(run_dir, read=read_metrics):
    assert [m["iteration"] for m in read(run_dir)] == list(range(1, len(read(run_dir)) + 1))
    for path in run_dir.rglob("*"):
        assert "tmp" not in path.name, path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_job_writes_one_run_with_a_log_of_each_process_and_learns_what_one_process_does(layout, launch, tmp_path):
    options = ("max_env_steps=512", f"layout={layout}")
    job = launch(*POINT_MASS, *options, num_devices=2, KSIM_LOG_DIR=str(tmp_path / "logs"))
    code, output = finish(job)
    assert code == 0, output
    alone = parse_overrides(PointMassConfig(), [*SMALL, "run_dir=alone", "max_env_steps=512", "num_devices=4"])
    assert PointMassTask(alone).run().exit_code == 0
    written = [".lock", "checkpoints", "command.txt", "config.yaml", "metrics.jsonl"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == written
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["process_0.log", "process_1.log"]
    # Limits, environments and statistics are over all processes: 4 iterations of 128 steps.
    together, by_itself = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "alone")
    assert len(together) == len(by_itself) == 4
    for line, expected in zip(together, by_itself, strict=True):
        for name in ("rollout/reward", "episode/count", "episode/return", "loss/total", "env_steps"):
            # Null while no episode has ended.
            assert line[name] == (expected[name] and pytest.approx(expected[name], rel=1e-5)), name
    # Only process 0 prints, and once.
    assert output.count("Distributed setup") == output.count("iteration 4/") == 1
    assert "[1] iteration" not in output


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
def test_signal_to_one_process_stops_all_after_the_same_iteration_with_everything_saved(layout, tmp_path):
    job = start_job(*POINT_MASS, *ENDLESS, f"layout={layout}", num_processes=2, cwd=tmp_path)
    read_until(job[0], "iteration 3")
    job[1].send_signal(signal.SIGTERM)
    outputs = [finish(process) for process in job]
    assert [code for code, _ in outputs] == [128 + signal.SIGTERM] * 2, outputs
    assert_nothing_half_written(tmp_path / "run")
    done = len(read_metrics(tmp_path / "run"))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [str(done)]


LOST = {
    "worker killed": (1, signal.SIGKILL, 137, "Process 1 failed first: it was killed by SIGKILL"),
    "coordinator killed": (0, signal.SIGKILL, 137, "Process 0 failed first: it was killed by SIGKILL"),
    "worker stopped": (1, signal.SIGSTOP, 134, "Process 1 was stopped then"),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lost", scale(["coordinator killed"], LOST))
def test_lost_process_ends_the_job_in_time_with_its_name_and_leaves_nothing(lost, layout, launch, tmp_path):
    victim, number, code_expected, message = LOST[lost]
    job = launch(*POINT_MASS, *ENDLESS, f"layout={layout}")
    read_until(job, "iteration 3")
    pids = processes_of(job)
    assert len(pids) == 2
    os.kill(pids[victim], number)
    struck = time.monotonic()
    code, output = finish(job, timeout=120)
    # 10 s until a silent process counts as dead, 5 s of grace, and what a busy machine takes.
    assert time.monotonic() - struck < 60
    assert code == code_expected, output
    assert message in output
    assert_ended(pids)
    # The kernel may cut the write of a process that it kills. What was written before is whole, and is read.
    is_cut = number == signal.SIGKILL and victim == 0
    assert_nothing_half_written(tmp_path / "run", jsonl.read_metrics if is_cut else read_metrics)
    assert len(jsonl.read_metrics(tmp_path / "run")) >= 3


@pytest.mark.long
def test_survivor_without_a_launcher_ends_by_itself_and_says_which_process_is_gone(tmp_path):
    survivor, victim = start_job(*POINT_MASS, *ENDLESS, num_processes=2, cwd=tmp_path)
    read_until(survivor, "iteration 3")
    victim.kill()
    code, output = finish(survivor, timeout=60)
    victim.communicate()
    assert code == 1
    lost = rf"Error: Process 0 of 2 lost the others in iteration \d+: process 1 \(pid {victim.pid} on \S+\) has ended\."
    assert re.search(lost, output), output
    assert "lost the others" in (tmp_path / "run" / "process_0.log").read_text()


FAULTS = {
    "bad_state": (2, ("Error: Process 1: Term 'distance' is not finite", "Term 'distance' is not finite")),
    "leave": (1, ("Process 0 of 2 lost the others before the first iteration: process 1 (pid", "")),
    "raise": (1, ("Process 0 of 2 lost the others in iteration 4", "ZeroDivisionError: a fault of process 1")),
    "callback": (1, ("Error: Task.on_step_end failed at iteration 3: ZeroDiv", "Error: Process 0: Task.on_step_end")),
    "exit": ((3, 1), ("", "Error: Process 0: Task.on_step_end failed at iteration 3: SystemExit: 3")),
    "corrupt": (1, ("learner differ after iteration 4: replica 1 in .params", "replica 1 is")),
}


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", scale(["corrupt"], FAULTS))
def test_fault_of_one_process_ends_all_with_its_name(fault, layout, tmp_path):
    code, messages = FAULTS[fault]
    options = ("run_dir=run", *ENDLESS, "replica_check_interval=4", f"layout={layout}")
    faulty = ("-m", "tests.support.faulty_job", fault, *SMALL, *options)
    first, second = start_job(*faulty, num_processes=2, cwd=tmp_path)
    (code_second, output_second), (code_first, output_first) = finish(second, 120), finish(first, 120)
    codes = code if isinstance(code, tuple) else (code, code)
    assert (code_first, code_second) == codes, output_first + output_second
    assert messages[0] in output_first
    assert messages[1] in output_second
    if fault == "corrupt":
        assert "of process 1.)" in output_first
    if fault in ("bad_state", "leave"):
        assert not (tmp_path / "run").exists()
    else:
        assert_nothing_half_written(tmp_path / "run")
    if fault in ("callback", "exit"):
        assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["3"]


@pytest.mark.long
def test_main_process_can_make_a_copy_of_the_task_by_itself(tmp_path):
    copying = ("-m", "tests.support.faulty_job", "copy", *SMALL, "run_dir=run", "max_iterations=5")
    job = start_job(*copying, num_processes=2, cwd=tmp_path)
    outputs = [finish(process, 120) for process in job]
    assert [code for code, _ in outputs] == [0, 0], outputs
    assert len(read_metrics(tmp_path / "run")) == 5


def test_options_that_differ_between_processes_end_all_before_anything_is_written(tmp_path):
    by_hand = (f"coordinator_address=127.0.0.1:{free_port()}", "num_processes=2")
    job = [start(*POINT_MASS, *by_hand, f"process_id={i}", f"seed={i}", cwd=tmp_path) for i in range(2)]
    for code, output in map(finish, job):
        assert code == 2
        assert "process 1 differs from process 0: seed (1, 0)" in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_run_directory_that_holds_a_run_ends_all_processes(launch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    code, output = finish(launch(*POINT_MASS))
    assert code == 2
    assert "[0] Error: run_dir (run) already holds a run" in output
    assert "[1] Error: Process 0: run_dir (run) already holds a run" in output


@pytest.mark.long
def test_error_is_said_by_its_process_though_another_that_was_told_ends_first(launch):
    code, output = finish(launch("-m", "tests.support.faulty_job", "slow_error", *SMALL, "run_dir=run"))
    assert code == 2
    assert "[0] Error: This takes a while to say." in output
    assert "[1] Error: Process 0: This takes a while to say." in output


@pytest.mark.long
def test_log_that_one_process_cannot_write_ends_all_with_its_name(tmp_path):
    (tmp_path / "file").touch()
    by_hand = (f"coordinator_address=127.0.0.1:{free_port()}", "num_processes=2")
    job = [
        start(*POINT_MASS, *by_hand, f"process_id={i}", cwd=tmp_path, **log_dir)
        for i, log_dir in enumerate(({}, {"KSIM_LOG_DIR": str(tmp_path / "file")}))
    ]
    for (code, output), who in zip(map(finish, job), ("Process 1: ", ""), strict=True):
        assert code == 2
        assert f"Error: {who}The log ({tmp_path / 'file' / 'process_1.log'}) cannot be written" in output


@pytest.mark.parametrize(
    ("process_id", "words"),
    [
        (1, "Process 0 was not reached at {} within 1 s (connect_timeout_s)"),
        (0, "Waiting for 2 processes at {} for 1 s (connect_timeout_s) timed out"),
    ],
)
def test_processes_that_do_not_come_are_an_error_that_says_where_they_were_looked_for(process_id, words, tmp_path):
    address = f"127.0.0.1:{9 if process_id else free_port()}"
    by_hand = (f"coordinator_address={address}", "num_processes=2", f"process_id={process_id}", "connect_timeout_s=1")
    code, output = finish(start(*POINT_MASS, *by_hand, cwd=tmp_path), timeout=60)
    assert code == 2
    assert f"Error: {words.format(address)}" in output
    assert not (tmp_path / "run").exists()


def test_backend_that_started_before_the_task_is_an_error_that_says_why(tmp_path):
    code = (
        "import jax; jax.devices(); from examples.point_mass import PointMassConfig, PointMassTask\n"
        "job = dict(coordinator_address='127.0.0.1:9', num_processes=2, process_id=0)\n"
        "PointMassTask(PointMassConfig(**job))"
    )
    code, output = finish(start("-c", code, cwd=tmp_path), timeout=60)
    assert code == 1
    assert "ConfigError: JAX's backend had started before the processes were connected. Make the task before" in output
