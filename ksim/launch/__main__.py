"""python -m ksim.launch [OPTIONS] (-m MODULE | FILE) [ARGUMENT ...]."""

import os
import sys
from collections.abc import Sequence

from ksim.errors import ConfigError
from ksim.launch.devices import divide_devices
from ksim.launch.options import parse_options
from ksim.launch.restarts import run_to_the_end


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the processes of this node to their end, with restarts.

    Args:
        argv: Options, then the program and its arguments; None for `sys.argv[1:]`.

    Returns:
        0 if every process succeeded; 2 for invalid options, with nothing started; after a failure, the exit code of the
        process that failed first in the last restart, 128 + n if signal n killed it; or 128 + n if signal n stopped
        the launcher.
    """
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv)
        return run_to_the_end(options, divide_devices(options.nproc_per_node, os.environ))
    except ConfigError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
