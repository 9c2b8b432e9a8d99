"""Links by name: presets of conf/links.yaml, or Ethernet links by their rate."""

from __future__ import annotations

from typing import Any

import numpy as np

from gcbench.comm.network import Link
from gcbench.config import ConfigError, conf_directory, near, read_yaml
from gcbench.settings.fields import refusal
from gcbench.settings.run import Latency, NetworkSettings, Rate

PAYLOAD = 0.95  # the part of an Ethernet link's rate that is left for payload
LATENCY = "50us"


def read_presets() -> dict[str, dict[str, Any]]:
    """Return conf/links.yaml: bits_per_second, latency_seconds and their source, by name."""
    presets: dict[str, dict[str, Any]] = read_yaml(conf_directory() / "links.yaml")
    return presets


def read_link(key: str, name: str, latency: str | None = None) -> Link:
    """Return the link that was typed as key=name (network or inside).

    `latency` replaces the link's own. Raises ConfigError if there is no such link.
    """
    presets = read_presets()
    if name in presets:
        preset = presets[name]
        seconds = float(preset["latency_seconds"])
        if latency is not None:
            seconds = _ethernet("1gbit", latency).latency_seconds
        return Link(float(preset["bits_per_second"]), seconds)
    if refusal(key, name, Rate):
        names = near(name, presets) or ", ".join(presets)
        raise ConfigError(f"{key}={name}: type a rate as in {key}=10gbit, or one of {names}")
    return _ethernet(name, latency or LATENCY)


def ethernets() -> list[tuple[float, float]]:
    """Return the rates and the latencies of the Ethernets of conf/links.yaml, the slowest first."""
    presets = [preset for name, preset in read_presets().items() if name.endswith("gbit")]
    return [(float(p["bits_per_second"]) / PAYLOAD, float(p["latency_seconds"])) for p in presets]


def ethernet_latency(rate: float) -> float:
    """Return the latency at a rate, interpolated over log rates between known Ethernets."""
    rates, latencies = zip(*ethernets(), strict=True)
    return float(np.interp(np.log(rate), np.log(rates), latencies))


def emulated_link(rate: str, latency: str) -> Link:
    """Return a link that carries a rate of payload; raise ConfigError for what is no rate."""
    for key, text, hint in (("network", rate, Rate), ("latency", latency, Latency)):
        if sentence := refusal(key, text, hint):
            raise ConfigError(sentence)
    link = NetworkSettings(bandwidth=rate, latency=latency)
    return Link(link.bits_per_second, link.latency_seconds)


def _ethernet(rate: str, latency: str) -> Link:
    link = emulated_link(rate, latency)
    return Link(PAYLOAD * link.bits_per_second, link.latency_seconds)
