"""Times of a step's computation and coding by device: conf/devices, or a file of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gcbench.config import ConfigError, choices_in, conf_directory
from gcbench.predict.model import CodecSeconds, Compute

FILE_KEYS = {"title", "copy_bytes_per_second", "backward_share", "codecs", "models"}
OTHER = "other"  # the codec of methods that a device has no line for
DENSE = {"none": {"aggregate_copies": 0.0}}  # the all-reduce is on the gradient itself


@dataclass(frozen=True)
class Device:
    """Seconds of a device: of models by batch size, and of codecs by values or in copies."""

    name: str
    title: str
    copy_bytes_per_second: float
    backward_share: float  # of the seconds of a model
    codecs: Mapping[str, Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]

    def compute(self, model: str, batch_size: int | None, seconds: float | None = None) -> Compute:
        """Return the computation of a step, of `seconds` or of those that the device has.

        Between two known batch sizes the seconds lie on the line through them. Raises ConfigError
        where the device has no seconds of the model.
        """
        if seconds is None:
            if model not in self.models:
                known = ", ".join(self.models) or "none"
                raise ConfigError(
                    f"device={self.name} has no seconds of model={model} (it has {known}); type "
                    "seconds=0.1, those of forward and backward of a batch"
                )
            by_batch = _numbers(self.models[model]["seconds"])
            batch_size = batch_size or int(max(by_batch))
            seconds = interpolate(by_batch, batch_size)
        assert batch_size is not None
        return Compute(seconds, seconds * self.backward_share, batch_size)

    def codec(self, compressor: str, values: int) -> CodecSeconds:
        """Return the seconds of a choice of conf/compressor for a gradient of so many values."""
        entry = self._codec(compressor)
        if entry is None:
            raise ConfigError(
                f"device={self.name} has no codec seconds of compressor={compressor}; type one of "
                f"{', '.join(self.codecs)}, or add it with gcbench predict measure"
            )
        return CodecSeconds(
            self._seconds(entry, "aggregate", values), self._seconds(entry, "decode", values)
        )

    def times(self, compressor: str) -> bool:
        """Return whether seconds of that choice are known, or those of any other method."""
        return self._codec(compressor) is not None

    def _codec(self, compressor: str) -> Mapping[str, Any] | None:
        return self.codecs.get(compressor) or self.codecs.get(OTHER) or DENSE.get(compressor)

    def _seconds(self, entry: Mapping[str, Any], part: str, values: int) -> float:
        if f"{part}_seconds" in entry:
            return interpolate(_numbers(entry[f"{part}_seconds"]), values)
        return float(entry.get(f"{part}_copies", 0.0)) * 4 * values / self.copy_bytes_per_second


def _numbers(table: Mapping[Any, Any]) -> dict[float, float]:
    return {float(k): float(v) for k, v in table.items()}


def interpolate(seconds_by_size: Mapping[float, float], size: float) -> float:
    """Return the seconds of a size: between known ones on a line, beyond them in proportion."""
    sizes = sorted(seconds_by_size)
    if size <= sizes[0] or size >= sizes[-1]:
        nearest = sizes[0] if size <= sizes[0] else sizes[-1]
        return seconds_by_size[nearest] * size / nearest
    return float(np.interp(size, sizes, [seconds_by_size[s] for s in sizes]))


def device_names() -> list[str]:
    return choices_in("devices")


def read_device(name: str) -> Device:
    """Return a device of conf/devices, or of a yaml file; ConfigError where it is none."""
    from_file = name.endswith((".yaml", ".yml"))
    path = Path(name) if from_file else conf_directory() / "devices" / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"device={name}: there is no such device; type one of {', '.join(device_names())}, or "
            "a yaml file"
        )
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(node, dict) or set(node) != FILE_KEYS:
        raise ConfigError(
            f"{path}: a device has the keys {', '.join(sorted(FILE_KEYS))} and no others"
        )
    codecs = node["codecs"]
    return Device(
        name,
        node["title"],
        float(node["copy_bytes_per_second"]),
        node["backward_share"],
        read_device(codecs).codecs if isinstance(codecs, str) else codecs,
        node["models"] or {},
    )
