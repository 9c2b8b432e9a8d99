"""Seconds and rates as text, with the unit that suits them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """With the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1 or unit == "us":
            return (
                f"{value * factor:.3g} {unit}"
                if value * factor < 1000
                else f"{value * factor:,.0f} {unit}"
            )
    raise AssertionError


def rate(bits_per_second: float) -> str:
    for factor, unit in ((1e-12, "Tbit/s"), (1e-9, "Gbit/s"), (1e-6, "Mbit/s")):
        if bits_per_second * factor >= 1:
            return f"{bits_per_second * factor:.3g} {unit}"
    return f"{bits_per_second:.3g} bit/s"
