"""Starting several processes as one job, for tests."""

import os
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREPARED = ("XLA_FLAGS", "PJRT_NPROC", "KSIM_PJRT_NPROC")
"""Variables that ksim sets when it is imported."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def xla_flags(num_devices):
    """Flags for so many host devices, and unless XLA is to optimize in full, for programs that compile quickly."""
    flags = [f"--xla_force_host_platform_device_count={num_devices}"]
    if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") != "0":
        flags += quick_flags()
    return " ".join(flags)


def quick_flags():
    """Flags for programs that compile quickly; XLA of later versions ends at a flag that it no longer has."""
    return ["--xla_cpu_use_fusion_emitters=false"] if metadata.version("jaxlib").startswith("0.10.") else []


def environment(num_devices=1, **changes):
    """The environment of a process with so many host devices, as if no test had touched it; None removes a variable."""
    env = {k: v for k, v in os.environ.items() if k not in PREPARED}
    env |= {"XLA_FLAGS": xla_flags(num_devices), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"} | changes
    return {name: value for name, value in env.items() if value is not None}


def run(*arguments, num_devices=1, cwd=None, check=True, **changes):
    """A program of Python that has ended, without an error if that is checked, and all that it has printed."""
    env = environment(num_devices, **changes)
    done = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=500, check=False
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def start(*arguments, cwd, num_devices=1, **changes):
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment(num_devices, **changes),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def start_job(*arguments, num_processes, cwd, num_devices=1, **changes):
    """Processes that find each other by their options."""
    address = f"coordinator_address=127.0.0.1:{free_port()}"
    return [
        start(
            *arguments,
            address,
            f"num_processes={num_processes}",
            f"process_id={i}",
            cwd=cwd,
            num_devices=num_devices,
            **changes,
        )
        for i in range(num_processes)
    ]


def finish(process, timeout=300):
    """Exit code and output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"Did not end within {timeout} s:\n{output}") from None
    return process.returncode, output


def exit_code(function, *arguments):
    """The code with which a function ends this process."""
    try:
        function(*arguments)
    except SystemExit as ended:
        return ended.code
    raise AssertionError("It returned.")


def read_until(process, words):
    """Output up to the line that holds the words."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return "".join(lines)
    raise AssertionError(f"Ended with {process.wait()} before {words!r}:\n{''.join(lines)}")


def wait_until(condition, timeout_s=60):
    """The first result that is true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "It did not happen in time."
        time.sleep(0.01)
    return found
