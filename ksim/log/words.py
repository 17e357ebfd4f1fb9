"""Readable names of metrics."""

from collections.abc import Iterable

_UNITS = {"_m_s": "m/s", "_rad_s": "rad/s", "_rad": "rad", "_m": "m", "_n": "N", "_s": "s"}
_QUANTITIES = {"lin_vel": "velocity"}


def quantity_and_unit(name: str) -> tuple[str, str]:
    """Quantity and unit of a metric `error/<command>/<quantity>_<unit>`, such as `yaw rate` and `rad/s`.

    The unit is empty if it is unknown.
    """
    last = name.rpartition("/")[2]
    suffix = next((suffix for suffix in _UNITS if last.endswith(suffix)), "")
    quantity = last.removesuffix(suffix)
    return _QUANTITIES.get(quantity, quantity.replace("_", " ")), _UNITS.get(suffix, "")


def error_names(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Error names and units by metric, such as `velocity error` and `m/s`. Equal names get the command appended."""
    said = {name: quantity_and_unit(name) for name in names}
    alike = list(said.values())
    return {
        name: (f"{said[name][0]} error" + (f" ({name.split('/')[1]})" if alike.count(said[name]) > 1 else ""), unit)
        for name, (_, unit) in said.items()
    }


def error_words(names: Iterable[str]) -> dict[str, str]:
    """Error labels by metric, such as `velocity error, m/s`."""
    return {name: ", ".join(filter(None, parts)) for name, parts in error_names(names).items()}
