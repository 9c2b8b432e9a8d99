"""Seconds and rates as text, with the unit that suits them."""

from __future__ import annotations


def format_seconds(value: float) -> str:
    """Return a time such as 1.5 s, 20 ms or 3 us."""
    if value >= 1:
        scaled, unit = value, "s"
    elif value >= 1e-3:
        scaled, unit = 1e3 * value, "ms"
    else:
        scaled, unit = 1e6 * value, "us"
    return f"{scaled:.3g} {unit}" if scaled < 1000 else f"{scaled:,.0f} {unit}"


def format_rate(bits_per_second: float) -> str:
    """Return a rate such as 9.5 Gbit/s."""
    for factor, unit in ((1e-12, "Tbit/s"), (1e-9, "Gbit/s"), (1e-6, "Mbit/s")):
        if bits_per_second * factor >= 1:
            return f"{bits_per_second * factor:.3g} {unit}"
    return f"{bits_per_second:.3g} bit/s"
