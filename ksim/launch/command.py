"""The launcher's command: options, then the group, then an exit code."""

import os
import sys
from collections.abc import Sequence

from ksim.errors import ConfigError
from ksim.launch.devices import divide_devices
from ksim.launch.group import Group
from ksim.launch.options import LaunchOptions, parse_options
from ksim.launch.output import say


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the processes of this node to their end.

    Args:
        argv: Options, then the program and its arguments; default those of the process.

    Returns:
        0 if every process succeeded; 2 for invalid options, with nothing started; the exit code of the process that
        failed first, 128 + n if signal n killed it; or 128 + n if signal n stopped the launcher.
    """
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv)
        device_shares = divide_devices(options.nproc_per_node, os.environ)
        group = Group(options, device_shares)
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    say(f"{_describe_group(options)} {device_shares.describe()}")
    return group.run()


def _describe_group(options: LaunchOptions) -> str:
    """A line about what is started."""
    first, num_local, total = options.first_process_id, options.nproc_per_node, options.num_processes
    here = f"process {first}" if num_local == 1 else f"processes {first} to {first + num_local - 1}"
    log = "" if options.log_dir is None else f" Their output: {options.log_dir}{os.sep}process_N.out."
    return (
        f"Node {options.node_rank} of {options.nnodes} starts {here} of {total}, coordinator "
        f"{options.coordinator_address}.{log}"
    )
