"""Draws all pictures: `python -m docs.site.pictures OUT_DIR`."""

import sys
from pathlib import Path

from docs.site.pictures.collection import save

if __name__ == "__main__":
    out_dir, part, num_parts = Path(sys.argv[1]), *map(int, sys.argv[2:4] or (0, 1))
    save(out_dir, part=part, num_parts=num_parts)
