"""Seconds and rates in a suitable unit, and megabytes, as text."""

from __future__ import annotations


def format_seconds(value: float) -> str:
    """Return a time such as 1.5 s, 20 ms or 3 us."""
    if value >= 999.5:
        return f"{value:,.0f} s"
    return _scale(value, {"s": 1, "ms": 1e3, "us": 1e6})


def format_rate(bits_per_second: float) -> str:
    """Return a rate such as 9.5 Gbit/s."""
    return _scale(
        bits_per_second,
        {"Tbit/s": 1e-12, "Gbit/s": 1e-9, "Mbit/s": 1e-6, "kbit/s": 1e-3, "bit/s": 1},
    )


def format_megabytes(bits: float) -> str:
    """Return bits as a number of megabytes, such as 0.125 or 4,000."""
    megabytes = bits / 8e6
    return f"{megabytes:,.0f}" if megabytes >= 999.5 else f"{megabytes:.3g}"


def _scale(value: float, factors: dict[str, float]) -> str:
    """Return three digits in the first unit in which the value is at least 1, else in the last."""
    texts = {unit: f"{value * factor:.3g}" for unit, factor in factors.items()}
    unit = next((unit for unit, text in texts.items() if float(text) >= 1), [*texts][-1])
    return f"{texts[unit]} {unit}"
