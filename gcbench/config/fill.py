"""The arguments of a compressor, filled from the keys of its method."""

from __future__ import annotations

from collections.abc import Iterator

from gcbench.config.errors import Config, ConfigError
from gcbench.identity import format_value
from gcbench.settings.compressor import MethodSettings

BUILD = "gcbench.compressors.build"
# Keys of methods that BUILD takes; its method takes all others.
OF_BUILD = (
    *("align", "alpha", "beta", "bucket_scope", "clip_norm", "clip_sigma", "code", "dense_steps"),
    *("error_feedback", "exchange", "min_ratio", "min_size", "momentum_start", "reset_steps"),
    "workers_per_node",
)
SET_LEVELS = ("bits", "convolution_bits")  # keys that no compressor takes, only `levels`


def fill_compressor(config: Config) -> None:
    """Give `config["compressor"]` the values of the method's keys as arguments, in place.

    An argument that the file of the method lists with null gets the value there, also in nodes
    inside. Methods that are not gcbench's get only those. Raises ConfigError for an argument that
    has another value than its key, which is what reports show.
    """
    node = config.get("compressor")
    if not isinstance(node, dict) or node.get("_target_") != BUILD or "method" not in node:
        return
    for key in (key for key in MethodSettings.model_fields if key in config):
        places = list(_nodes_with(key, node, "compressor"))
        for path, place in places:
            if place[key] not in (None, config[key]):
                typed = f"{key}={format_value(place[key])}"
                raise ConfigError(f"{path}.{typed}: type {typed}")
            place[key] = config[key]
        if not places and key not in SET_LEVELS:
            taker = node if key in OF_BUILD else node["method"]
            if str(taker.get("_target_")).startswith("gcbench."):
                taker[key] = config[key]


def _nodes_with(key: str, node: Config, path: str) -> Iterator[tuple[str, Config]]:
    if key in node:
        yield path, node
    for name, inside in node.items():
        if isinstance(inside, dict):
            yield from _nodes_with(key, inside, f"{path}.{name}")
