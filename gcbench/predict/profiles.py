"""What devices need for a step's computation and coding: conf/profile, or a file of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gcbench.config import ConfigError, conf_directory
from gcbench.predict.model import Codec, Compute

FILE_KEYS = {"title", "copy_bytes_per_second", "backward_share", "codecs", "models"}
OTHER = "other"
NOTHING = {
    "none": {"aggregate_copies": 0.0}
}  # where a profile does not say: the all-reduce is on the gradient itself


@dataclass(frozen=True)
class Profile:
    name: str
    title: str
    copy_bytes_per_second: float
    backward_share: float
    codecs: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]

    def compute(self, model: str, batch_size: int | None, seconds: float | None = None) -> Compute:
        """`seconds` are the user's own for the batch. Between two known batches it is on the line through them."""
        if seconds is None:
            if model not in self.models:
                known = ", ".join(self.models) or "none"
                raise ConfigError(
                    f"profile={self.name} has no seconds of model={model} (it has {known}); type seconds=0.1, those of forward "
                    "and backward of a batch"
                )
            by_batch = _numbers(self.models[model]["seconds"])
            batch_size = batch_size or int(max(by_batch))
            seconds = at(by_batch, batch_size)
        assert batch_size is not None
        return Compute(seconds, seconds * self.backward_share, batch_size)

    def codec(self, family: str, values: int) -> Codec:
        """Of a gradient of so many values."""
        entry = self.codecs.get(family) or self.codecs.get(OTHER) or NOTHING.get(family)
        if entry is None:
            raise ConfigError(
                f"profile={self.name} has no codec seconds of compressor={family}; type one of {', '.join(self.codecs)}, or "
                "add it with gcbench predict measure"
            )
        return Codec(
            self._seconds(entry, "aggregate", values), self._seconds(entry, "decode", values)
        )

    def _seconds(self, entry: Mapping[str, Any], part: str, values: int) -> float:
        if f"{part}_seconds" in entry:
            return at(_numbers(entry[f"{part}_seconds"]), values)
        return float(entry.get(f"{part}_copies", 0.0)) * 4 * values / self.copy_bytes_per_second


def _numbers(table: Mapping[Any, Any]) -> dict[float, float]:
    return {float(k): float(v) for k, v in table.items()}


def at(known: Mapping[float, float], x: float) -> float:
    """Seconds for a size, from those of other sizes."""
    sizes = sorted(known)
    if x <= sizes[0] or x >= sizes[-1]:
        nearest = sizes[0] if x <= sizes[0] else sizes[-1]
        return known[nearest] * x / nearest
    return float(np.interp(x, sizes, [known[s] for s in sizes]))


def profile(name: str) -> Profile:
    """Of conf/profile, or a yaml file."""
    path = (
        Path(name)
        if name.endswith((".yaml", ".yml"))
        else conf_directory() / "profile" / f"{name}.yaml"
    )
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in (conf_directory() / "profile").glob("*.yaml")))
        raise ConfigError(
            f"profile={name}: there is no such profile; type one of {known}, or a yaml file"
        )
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(node, dict) or set(node) != FILE_KEYS:
        raise ConfigError(
            f"{path}: a profile has the keys {', '.join(sorted(FILE_KEYS))} and no others"
        )
    if isinstance(node["codecs"], str):
        node["codecs"] = profile(node["codecs"]).codecs
    return Profile(
        name,
        node["title"],
        float(node["copy_bytes_per_second"]),
        node["backward_share"],
        node["codecs"],
        node["models"] or {},
    )
