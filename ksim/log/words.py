"""Names of metrics as people say them."""

from collections.abc import Iterable

_UNITS = {"_m_s": "m/s", "_rad_s": "rad/s", "_rad": "rad", "_m": "m", "_n": "N", "_s": "s"}
_QUANTITIES = {"lin_vel": "velocity"}


def quantity_and_unit(name: str) -> tuple[str, str]:
    """What a metric `error/<command>/<quantity>_<unit>` measures, as in `yaw rate` and `rad/s`; no unit if unknown."""
    last = name.rpartition("/")[2]
    suffix = next((suffix for suffix in _UNITS if last.endswith(suffix)), "")
    quantity = last.removesuffix(suffix)
    return _QUANTITIES.get(quantity, quantity.replace("_", " ")), _UNITS.get(suffix, "")


def error_words(names: Iterable[str]) -> dict[str, str]:
    """Errors in words, by name, as in `velocity error, m/s`; with the command where two would be called the same."""
    words = {}
    for name in names:
        quantity, unit = quantity_and_unit(name)
        words[name] = f"{quantity} error" + (f", {unit}" if unit else "")
    said = list(words.values())
    return {name: text if said.count(text) == 1 else f"{text} ({name.split('/')[1]})" for name, text in words.items()}
