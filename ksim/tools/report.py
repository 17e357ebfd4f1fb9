"""Writes the report of one run, or of several beside each other, as one HTML page.

python -m ksim.tools.report RUN_DIR [RUN_DIR ...] --out report.html
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ksim.errors import ConfigError
from ksim.evaluate.html_report import write_page
from ksim.host.terminal import print_line
from ksim.tools import exit_code_of, make_parser


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Writes the report."""
    parser = make_parser("report", __doc__)
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="directories of runs")
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="FILE.html", help="page to write")
    options = parser.parse_args(argv)
    if options.out.suffix.lower() != ".html":
        raise ConfigError(f"--out ({options.out}) must end in .html.")
    try:
        write_page(options.run_dirs, options.out)
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be written: {error.strerror}. Set --out.") from error
    print_line(f"Wrote {options.out}.")


if __name__ == "__main__":
    sys.exit(main())
