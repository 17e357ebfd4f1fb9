"""Files of the pictures, drawn anew when the code has changed."""

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ("ksim/mdp", "ksim/physics", "docs/site/pictures")
"""The sources that pictures depend on."""

NUM_PROCESSES = 2


def file_name(cls: type) -> str:
    """The name of the file of a term's picture."""
    return f"{cls.__module__}.{cls.__name__}.svg"


def draw_all(out_dir: Path) -> None:
    """Draws all pictures, in two processes, unless the directory holds those of the current code.

    Raises:
        RuntimeError: A process failed.
    """
    stamp, digest = out_dir / "sources.sha256", _digest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    command = [sys.executable, "-m", "docs.site.pictures", str(out_dir)]
    parts = [
        subprocess.Popen([*command, str(part), str(NUM_PROCESSES)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for part in range(NUM_PROCESSES)
    ]
    errors = [part.communicate()[1] for part in parts]
    if any(part.returncode for part in parts):
        raise RuntimeError("The pictures of the terms could not be drawn:\n" + "\n".join(errors))
    stamp.write_text(digest)


def _digest() -> str:
    content = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            content.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return content.hexdigest()
