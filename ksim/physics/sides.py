"""Names that differ in their side alone: left and right, front and rear."""

import re

_SIDES = re.compile(r"left|right|front|rear|back|hind|mid|middle|[lr]|[frhbm][lr]|[lr][frhbm]|\d+", re.IGNORECASE)


def side_pattern(name: str) -> str:
    """A joint's name with a star for what tells sides: `*_knee` for `left_knee`, `hip_*` for `hip_1`."""
    parts = re.split(r"([_\-. ])", name)
    pattern = "".join("*" if _SIDES.fullmatch(part) else escaped(part) for part in parts)
    return re.sub(r"\*([_\-. ]\*)+", "*", pattern)


def escaped(name: str) -> str:
    """A name as a pattern that matches only it."""
    return re.sub(r"([\[*?])", r"[\1]", name)
