"""Writes the report of one run, or of several beside each other, as one HTML page.

python -m ksim.tools.report RUN_DIR [RUN_DIR ...] --out report.html
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ksim.errors import ConfigError
from ksim.evaluate.html_report import write_page
from ksim.host.terminal import print_line


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the report. Returns the exit code, 2 for invalid input."""
    parser = argparse.ArgumentParser(prog="python -m ksim.tools.report", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="directories of runs")
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="page to write")
    options = parser.parse_args(argv)
    try:
        if options.out.suffix.lower() != ".html":
            raise ConfigError(f"--out ({options.out}) must end in .html.")
        write_page(options.run_dirs, options.out)
    except OSError as error:
        print_line(f"Error: {error.filename} cannot be written: {error.strerror}. Set --out.")
        return 2
    except ConfigError as error:
        print_line(f"Error: {error}")
        return 2
    print_line(f"Wrote {options.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
