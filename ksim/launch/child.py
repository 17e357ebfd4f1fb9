"""A program that replaces itself with another: `child.py LAUNCHER_PID CORES PROGRAM [ARGUMENT ...]`.

It runs by its path, before the real program replaces it, and needs only the standard library. Code between fork and
exec would do the same, but may deadlock if the launcher has threads.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(launcher_pid: int, cores: set[int], program: list[str]) -> None:
    """Ends this process with the launcher, binds it to its cores (empty for all), and executes the program.

    `program` is the interpreter's path and its arguments.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != launcher_pid:  # the launcher ended before prctl took effect
        sys.exit(1)
    # SIGUSR1 is a warning, but kills a process without a handler.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, cores)
    os.execv(program[0], program)


if __name__ == "__main__":
    become(int(sys.argv[1]), {int(core) for core in sys.argv[2].split(",") if core}, sys.argv[3:])
