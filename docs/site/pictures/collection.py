"""All pictures by term, and their files."""

from pathlib import Path

import matplotlib

from docs.site.pictures import (
    commands,
    events_and_actions,
    motion,
    noise,
    observations,
    observations_over_time,
    physics,
    randomizers,
    resets,
    rewards,
    rewards_over_time,
    terminations,
)
from docs.site.pictures.files import file_name
from docs.site.pictures.panels import Draw

MODULES = (
    observations,
    observations_over_time,
    noise,
    rewards,
    rewards_over_time,
    commands,
    terminations,
    resets,
    events_and_actions,
    randomizers,
    physics,
    motion,
)
PICTURES: dict[type, Draw] = {cls: draw for module in MODULES for cls, draw in module.PICTURES.items()}
"""The function that draws the picture of each term."""

STYLE = {
    "svg.fonttype": "none",  # text as text: smaller, and found by a search in the page
    "svg.hashsalt": "ksim",
    "font.size": 8.5,
    "axes.edgecolor": "#7b858e",
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
}


def save(out_dir: Path, *, part: int = 0, num_parts: int = 1) -> None:
    """Draws pictures into a directory, a file for each term.

    Args:
        out_dir: Made if missing.
        part: Index of the share to draw, in [0, num_parts): for several processes.
        num_parts: Number of shares.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for cls, draw in list(PICTURES.items())[part::num_parts]:
            draw().savefig(out_dir / file_name(cls), metadata={"Date": None}, facecolor="white")
