"""python -m ksim.launch [OPTIONS] (-m MODULE | FILE) [ARGUMENT ...]."""

import sys

from ksim.launch.command import main

if __name__ == "__main__":
    sys.exit(main())
