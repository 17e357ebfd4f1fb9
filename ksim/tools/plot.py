"""Draws the learning curves of several runs, such as seeds, over each other.

python -m ksim.tools.plot RUN_DIR [RUN_DIR ...] --out curves.png

It also writes the curves as JSON beside the image, averaged to few points so that the file stays small.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ksim.errors import ConfigError
from ksim.evaluate.curves import read_curves, run_names
from ksim.host.files import write_whole
from ksim.host.terminal import print_line
from ksim.tools import exit_code_of, make_parser


@exit_code_of
def main(argv: Sequence[str] | None = None) -> None:
    """Draws and writes the curves."""
    parser = make_parser("plot", __doc__)
    parser.add_argument("run_dirs", nargs="+", type=Path, metavar="RUN_DIR", help="directories of runs")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="image to write, as in curves.png")
    options = parser.parse_args(argv)
    runs = [read_curves(path, name) for path, name in zip(options.run_dirs, run_names(options.run_dirs), strict=True)]
    if options.out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ConfigError(f"--out ({options.out}) must end in .png, .pdf or .svg.")
    from ksim.evaluate.plots import plot_learning  # noqa: PLC0415 - matplotlib is slow to import

    plot_learning(runs, options.out)
    json_path = options.out.with_suffix(".json")
    write_whole(json_path, json.dumps({run.name: run.record() for run in runs}) + "\n")
    print_line(f"Wrote {options.out} and {json_path}.")


if __name__ == "__main__":
    sys.exit(main())
