"""Links and clusters by name: conf/link/presets.yaml, or an Ethernet by its rate."""

from __future__ import annotations

from typing import Any

import yaml

from gcbench.comm.network import Link
from gcbench.config import ConfigError, conf_directory, emulated_link, near

PAYLOAD = 0.95  # of an Ethernet's rate
LATENCY = "50us"


def presets() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(
        (conf_directory() / "link/presets.yaml").read_text(encoding="utf-8")
    )
    return found


def link(key: str, name: str, latency: str | None = None) -> Link:
    """`key` is what was typed: network or inside."""
    known = presets()
    if name in known:
        preset = known[name]
        seconds = (
            preset["latency_seconds"]
            if latency is None
            else _ethernet(key, "1gbit", latency).latency_seconds
        )
        return Link(float(preset["bits_per_second"]), float(seconds))
    try:
        return _ethernet(key, name, latency or LATENCY)
    except ConfigError as error:
        if "latency" in str(error):
            raise
        named = near(name, known) or ", ".join(known)
        raise ConfigError(
            f"{key}={name}: type a rate as in {key}=10gbit, or one of {named}"
        ) from None


def _ethernet(key: str, rate: str, latency: str) -> Link:
    try:
        found = emulated_link({"bandwidth": rate, "latency": latency})
    except ConfigError as error:
        raise ConfigError(str(error).replace("network.latency", "latency")) from None
    assert found is not None
    return Link(PAYLOAD * found["bits_per_second"], found["latency_seconds"])
