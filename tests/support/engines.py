"""Physics engines to parametrize tests by."""

import pytest

from ksim.physics.select import ENGINES as NAMES
from ksim.physics.warp import is_installed

BOTH = ("mjx", "mujoco")
"""The engines that are always installed."""
_NEEDS_WARP = pytest.mark.skipif(not is_installed(), reason="needs MuJoCo Warp: pip install -e '.[warp]'")
WARP = pytest.param("warp", marks=[pytest.mark.long, _NEEDS_WARP])
MJX = pytest.param("mjx", marks=pytest.mark.long)
ENGINES = [{"mjx": MJX, "warp": WARP}.get(name, name) for name in NAMES]
"""All engines. MJX and Warp compile a program for each model, which takes long."""
