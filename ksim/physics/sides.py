"""Joint names that differ only in their side: left and right, front and rear."""

import re

_SIDES = re.compile(r"left|right|front|rear|back|hind|mid|middle|[lr]|[frhbm][lr]|[lr][frhbm]|\d+", re.IGNORECASE)


def side_pattern(name: str) -> str:
    """A joint's name with its side replaced by a star: `*_knee` for `left_knee`, `hip_*` for `hip_1`."""
    parts = re.split(r"([_\-. ])", name)
    pattern = "".join("*" if _SIDES.fullmatch(part) else escaped(part) for part in parts)
    return re.sub(r"\*([_\-. ]\*)+", "*", pattern)


def escaped(name: str) -> str:
    """A pattern that matches only this name."""
    return re.sub(r"([\[*?])", r"[\1]", name)
