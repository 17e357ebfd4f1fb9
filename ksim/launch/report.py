"""Reports of the launcher about a group: its start and its failure."""

import os
import signal
from collections.abc import Sequence

from ksim.launch.member import Member
from ksim.launch.options import LaunchOptions


def signal_name(number: int) -> str:
    """The name of a signal, as in SIGTERM for 15."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(return_code: int) -> int:
    """The exit code as shells report it: 128 + n for a return code of -n (signal n)."""
    return return_code if return_code >= 0 else 128 - return_code


def describe_end(return_code: int) -> str:
    """The end of a process in words, as in 'was killed by SIGKILL'."""
    if return_code < 0:
        return f"was killed by {signal_name(-return_code)}"
    if return_code > 128 and return_code - 128 in set(signal.Signals):
        return f"ended with exit code {return_code} (128 + {signal_name(return_code - 128)})"
    return f"ended with exit code {return_code}"


def describe_start(options: LaunchOptions) -> str:
    """A line about the started processes."""
    first, num_local, total = options.first_process_id, options.nproc_per_node, options.num_processes
    here = f"process {first}" if num_local == 1 else f"processes {first} to {first + num_local - 1}"
    log = "" if options.log_dir is None else f" Their output: {options.log_dir}{os.sep}process_N.out."
    return (
        f"Node {options.node_rank} of {options.nnodes} starts {here} of {total}, coordinator "
        f"{options.coordinator_address}.{log}"
    )


def describe_failure(first: Member, ended: Sequence[Member], options: LaunchOptions) -> str:
    """A report of the first failure: the process, its exit, its last lines, and the ends of the others.

    `ended` holds all processes, in the order of their ends.
    """
    stopped = [member for member in ended if member.was_stopped]
    where = "" if options.nnodes == 1 else f" of node {options.node_rank}"
    parts = [f"Process {first.process_id} failed first{where}: it {describe_end(first.return_code)}."]
    if first.return_code == -signal.SIGKILL:
        parts.append("Linux does that to a process when memory runs out: see dmesg.")
    for member in stopped:
        parts.append(
            f"Process {member.process_id} was stopped then (by SIGSTOP or a debugger), and processes that wait for it "
            "fail: look there first."
        )
    if options.nnodes > 1:
        parts.append("Check the launchers of the other nodes too: one failed process ends all.")
    lines = [" ".join(parts)]
    lines += [_describe_rest(member, options.grace_s) for member in ended if member is not first]
    last = first.output.last_lines()
    lines.append(f"Last lines of process {first.process_id}:" if last else f"Process {first.process_id} wrote nothing.")
    lines += [f"    {line}" for line in last]
    if first.output.path is not None:
        lines.append(f"All of them are in {first.output.path}.")
    return "\n".join(lines)


def _describe_rest(member: Member, grace_s: float) -> str:
    if member.was_killed:
        return f"Process {member.process_id} had not ended {grace_s:g} s after SIGTERM, and was killed."
    if exit_code(member.return_code) == 128 + signal.SIGTERM:
        return f"Process {member.process_id} ended at SIGTERM."
    return f"Process {member.process_id} {describe_end(member.return_code)}."
