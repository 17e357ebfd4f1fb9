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


def error_names(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Errors and units by metric, as in `velocity error` and `m/s`; with the command where two are called alike."""
    said = {name: quantity_and_unit(name) for name in names}
    alike = list(said.values())
    return {
        name: (f"{said[name][0]} error" + (f" ({name.split('/')[1]})" if alike.count(said[name]) > 1 else ""), unit)
        for name, (_, unit) in said.items()
    }


def error_words(names: Iterable[str]) -> dict[str, str]:
    """Errors in words, by metric, as in `velocity error, m/s`."""
    return {name: ", ".join(filter(None, parts)) for name, parts in error_names(names).items()}
