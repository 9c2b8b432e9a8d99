"""Rates and times of links, read from text such as `1gbit` and `50us`."""

from __future__ import annotations

import re
from typing import Any

from gcbench.config.errors import Config, ConfigError

BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def emulated_link(network: Config) -> dict[str, float] | None:
    """Return `bits_per_second` and `latency_seconds` of a network, or None if none is emulated.

    Raises ConfigError for a text that is not a rate or a time.
    """
    if not network:
        return None
    bandwidth, latency = (
        _number(network[k], u) for k, u in (("bandwidth", BITS_PER_SECOND), ("latency", SECONDS))
    )
    if not bandwidth:
        raise ConfigError(
            f"network.bandwidth={network['bandwidth']}: type a rate with its unit, "
            "as in network.bandwidth=1gbit"
        )
    if latency is None:
        raise ConfigError(
            f"network.latency={network['latency']}: type a time with its unit, "
            "as in network.latency=50us"
        )
    return {"bits_per_second": bandwidth, "latency_seconds": latency}


def _number(text: Any, units: dict[str, float]) -> float | None:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(units)})", str(text))
    return float(match[1]) * units[match[2]] if match else None
