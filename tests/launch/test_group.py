"""The launcher called in this process, where no signals are sent to it."""

import json
import os
from pathlib import Path

import pytest

from ksim.launch import events
from ksim.launch.__main__ import main
from tests.support.launched_programs import is_alive, write_program
from tests.support.processes import wait_until

NODE = ["--nnodes", "2", "--node-rank", "1", "--coordinator-address", "10.0.0.1:8476"]
PRINT_ENVIRONMENT = """
import json
keys = [key for key in os.environ if key.startswith(("KSIM_", "CUDA_VISIBLE", "PYTHONUNBUF"))]
cores = sorted(os.sched_getaffinity(0))
tell(f"seen{me}", json.dumps({**{key: os.environ[key] for key in keys}, "argv": sys.argv, "cores": cores}))
"""


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


def launch(text, *options, num=2):
    """The exit code of a program in several processes."""
    return main(["--nproc-per-node", str(num), *options, write_program(text)])


def seen(process_id):
    return json.loads(Path(f"seen{process_id}").read_text())


def test_each_process_of_one_node_is_told_its_place():
    assert main(["--nproc-per-node", "2", write_program(PRINT_ENVIRONMENT), "a=1", "--", "-m"]) == 0
    for i in range(2):
        assert seen(i)["KSIM_PROCESS_ID"] == seen(i)["KSIM_LOCAL_PROCESS_ID"] == str(i)
        assert seen(i)["KSIM_NUM_PROCESSES"] == seen(i)["KSIM_NUM_LOCAL_PROCESSES"] == "2"
        assert seen(i)["PYTHONUNBUFFERED"] == "1"
        assert seen(i)["argv"] == ["program.py", "a=1", "--", "-m"]
    assert seen(0)["KSIM_COORDINATOR_ADDRESS"] == seen(1)["KSIM_COORDINATOR_ADDRESS"]
    assert seen(0)["KSIM_COORDINATOR_ADDRESS"].startswith("127.0.0.1:")


def test_each_process_of_the_second_node_is_told_its_place_in_the_whole_job():
    assert launch(PRINT_ENVIRONMENT, *NODE) == 0
    for local in range(2):
        environment = seen(2 + local)
        assert environment["KSIM_LOCAL_PROCESS_ID"] == str(local)
        assert environment["KSIM_NUM_LOCAL_PROCESSES"] == "2"
        assert environment["KSIM_NUM_PROCESSES"] == "4"
        assert environment["KSIM_COORDINATOR_ADDRESS"] == "10.0.0.1:8476"


def test_module_is_run_as_python_would_run_it(monkeypatch):
    Path("package").mkdir()
    Path("package/__init__.py").touch()
    write_program(PRINT_ENVIRONMENT, "package/task.py")
    assert main(["-m", "package.task", "-m", "b"]) == 0
    assert seen(0)["argv"] == [str(Path("package/task.py").absolute()), "-m", "b"]


@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="needs two cores to divide")
def test_processes_are_bound_to_cores_of_their_own():
    assert launch(PRINT_ENVIRONMENT) == 0
    assert sorted(seen(0)["cores"] + seen(1)["cores"]) == sorted(os.sched_getaffinity(0))


def test_processes_see_gpus_of_their_own(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert launch(PRINT_ENVIRONMENT) == 0
    assert [seen(i)["CUDA_VISIBLE_DEVICES"] for i in range(2)] == ["GPU-a", "GPU-b"]
    assert [seen(i)["cores"] for i in range(2)] == [sorted(os.sched_getaffinity(0))] * 2


def test_single_process_is_left_all_gpus_and_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert launch(PRINT_ENVIRONMENT, num=1) == 0
    assert seen(0)["CUDA_VISIBLE_DEVICES"] == "0,1,2"
    assert seen(0)["cores"] == sorted(os.sched_getaffinity(0))


def test_lines_get_their_process_as_a_prefix_on_the_stream_they_were_written_to(capfd):
    program = "print('out', me); print('err', me, file=sys.stderr); sys.stdout.write('no end')"
    assert launch(program) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] no end", "[0] out 0", "[1] no end", "[1] out 1"]
    assert sorted(line for line in err.splitlines() if line[0] == "[") == ["[0] err 0", "[1] err 1"]


@pytest.mark.long
def test_tables_of_processes_fit_a_terminal_beside_the_prefix(monkeypatch, capfd):
    program = "from ksim.host.terminal import standard_output; print(standard_output().width)"
    assert launch(program, num=1) == 0
    assert capfd.readouterr().out == "[0] 120\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))
    assert launch(program, num=1) == 0
    assert capfd.readouterr().out == "[0] 76\n"


def test_lines_of_many_writers_are_never_mixed(capfd):
    program = "for i in range(2000): sys.stdout.write(str(me)); print(str(me) * 99)"
    assert launch(program) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"[0] {'0' * 100}"] * 2000 + [f"[1] {'1' * 100}"] * 2000


def test_output_goes_to_a_file_per_process_where_a_directory_is_given(capfd):
    program = "print('out', me); print('err', me, file=sys.stderr)"
    assert launch(program, "--log-dir", "deep/logs") == 0
    assert [Path(f"deep/logs/process_{i}.out").read_text() for i in range(2)] == ["out 0\nerr 0\n", "out 1\nerr 1\n"]
    assert capfd.readouterr().out == ""


def test_files_are_named_by_global_ids():
    assert launch("", *NODE, "--log-dir", "logs", num=1) == 0
    assert [path.name for path in Path("logs").iterdir()] == ["process_1.out"]


@pytest.mark.parametrize("log", [[], ["--log-dir", "logs"]])
def test_first_failure_ends_the_group_with_its_code_and_is_told_with_its_last_lines(log, capfd):
    program = """
if me == 0:
    tell("ready", os.getpid())
    sleep()
wait_for("ready")
for i in range(30):
    print("line", i)
sys.stderr.write("the reason\\n")
sys.exit(7)
"""
    assert launch(program, *log) == 7
    err = capfd.readouterr().err
    report = err[err.index("failed first") :]
    assert "Process 1 failed first: it ended with exit code 7." in err
    assert "Process 0 ended at SIGTERM." in report
    assert "    the reason" in report
    assert "    line 29" in report
    assert "    line 10\n" not in report
    assert ("All of them are in" in report) == bool(log)
    assert not is_alive(int(Path("ready").read_text()))


def test_failure_on_one_of_several_nodes_names_the_node_and_points_to_the_others(capfd):
    assert launch("sys.exit(5)", *NODE, num=1) == 5
    err = capfd.readouterr().err
    assert "Process 1 failed first of node 1: it ended with exit code 5." in err
    assert "launchers of the other nodes" in err
    assert "Process 1 wrote nothing." in err


def test_process_killed_by_a_signal_gives_128_and_the_signal(capfd):
    assert launch("os.kill(os.getpid(), 9) if me else sleep()") == 128 + 9
    err = capfd.readouterr().err
    assert "Process 1 failed first: it was killed by SIGKILL." in err
    assert "memory" in err


def test_process_that_ignores_sigterm_is_killed_after_the_grace_period(capfd):
    program = """
if me == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("deaf", os.getpid())
    sleep()
wait_for("deaf")
sys.exit(1)
"""
    assert launch(program, "--grace-s", "0.2") == 1
    assert "Process 0 had not ended 0.2 s after SIGTERM, and was killed." in capfd.readouterr().err
    assert not is_alive(int(Path("deaf").read_text()))


def test_others_are_waited_for_when_one_has_succeeded():
    program = """
if me == 0:
    tell("parent", os.getppid())
    sys.exit(0)
wait_for("parent")
# Gone for good once the launcher has seen its end.
import glob
def children():
    return [p for p in glob.glob("/proc/[0-9]*/environ") if b"KSIM_PROCESS_ID=0" in read(p)]
def read(path):
    try:
        return open(path, "rb").read()
    except OSError:
        return b""
while children():
    time.sleep(0.005)
tell("done")
"""
    assert launch(program) == 0
    assert Path("done").exists()


def test_stopped_process_is_named_as_the_cause_and_does_not_survive(capfd):
    program = """
if me == 1:
    tell("stopping", os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    sleep()
wait_until_stopped("stopping")
os.abort()
"""
    assert launch(program, "--grace-s", "0.5") == 128 + 6
    err = capfd.readouterr().err
    assert "Process 0 failed first: it was killed by SIGABRT." in err
    assert "Process 1 was stopped then" in err
    assert not is_alive(int(Path("stopping").read_text()))


def test_running_process_is_not_called_stopped(capfd):
    launch("sys.exit(1) if me else sleep()")
    assert "was stopped" not in capfd.readouterr().err


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(3)"])
def test_what_a_process_leaves_running_in_its_group_is_killed_when_it_ends(end):
    program = f"""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
tell("grandchild", child.pid)
{end}
"""
    launch(program, num=1)
    wait_until(lambda: not is_alive(int(Path("grandchild").read_text())))


def test_descendant_that_escaped_its_group_does_not_hold_up_the_end(capfd):
    program = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid)
os._exit(0)
"""
    assert launch(program, num=1) == 0
    os.kill(int(capfd.readouterr().out.removeprefix("[0] ")), 9)


def test_without_pidfds_failures_end_the_group_as_well(monkeypatch, capfd):
    monkeypatch.setattr(events, "_make_epoll", lambda: None)
    program = "sys.exit(4) if me == 1 else sleep()"
    assert launch(program, "--grace-s", "30", num=3) == 4
    assert "Process 1 failed first" in capfd.readouterr().err
    assert launch("", num=1) == 0
