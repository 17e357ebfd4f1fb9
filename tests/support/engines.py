"""Physics engines to parametrize tests by."""

import pytest

from ksim.physics.select import ENGINES as NAMES
from ksim.physics.warp import is_installed

BOTH = ("mjx", "mujoco")
"""The engines that are always installed."""
_NEEDS_WARP = pytest.mark.skipif(not is_installed(), reason="needs MuJoCo Warp: pip install -e '.[warp]'")
WARP = pytest.param("warp", marks=[pytest.mark.long, _NEEDS_WARP])
ENGINES = [WARP if name == "warp" else name for name in NAMES]
"""All engines. MuJoCo Warp compiles its kernels for each model, and is slow on a CPU."""
OTHERS = [param for param in ENGINES if param != "mujoco"]
"""The engines that are compared with native MuJoCo."""
