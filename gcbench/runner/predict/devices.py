"""Devices and links by name, from conf/, by their rate, or from files of your own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

import gcbench
from gcbench.core.conf import choices_in, conf_directory, read_yaml
from gcbench.core.errors import ConfigError, near
from gcbench.core.fields import refusal
from gcbench.runner.conf_files import CHECKED, build_checked
from gcbench.runner.network import Link
from gcbench.runner.predict.model import CodecSeconds, Compute
from gcbench.runner.settings.groups import Latency, NetworkSettings, Rate


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


PAYLOAD = 0.95  # the part of an Ethernet link's rate that is left for payload
LATENCY = "50us"


def read_presets() -> dict[str, dict[str, Any]]:
    """Return conf/links.yaml: bits_per_second, latency_seconds and their source, by name."""
    return _read_presets(conf_directory() / "links.yaml")


@cache  # as a report asks for them at every run
def _read_presets(path: Path) -> dict[str, dict[str, Any]]:
    presets: dict[str, dict[str, Any]] = read_yaml(path)
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


DEVICE_FILES = (".yaml", ".yml")  # file name extensions of devices of your own
OTHER = "other"  # the codec of methods without an entry of their own

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
SecondsBySize = Annotated[dict[Positive, NotNegative], Field(min_length=1)]
SecondsByBatch = Annotated[dict[Positive, Positive], Field(min_length=1)]  # steps are over these


@dataclass(frozen=True, config=CHECKED)
class Codec:
    """Times of a codec: seconds by number of values, or else a number of copies of the gradient."""

    aggregate_seconds: SecondsBySize | None = None  # encoding, and decoding one message
    decode_seconds: SecondsBySize | None = None  # decoding each further message
    aggregate_copies: NotNegative | None = None
    decode_copies: NotNegative = 0.0
    source: str | None = None

    def __post_init__(self) -> None:
        if self.aggregate_seconds is None and self.aggregate_copies is None:
            raise ValueError("type aggregate_seconds or aggregate_copies; 0 where it takes none")


@dataclass(frozen=True, config=CHECKED)
class ModelSeconds:
    """Seconds of a step's computation by batch size per worker."""

    seconds: SecondsByBatch
    source: str | None = None


DENSE = {"none": Codec(aggregate_copies=0.0)}  # the gradient itself is all-reduced


@dataclass(frozen=True, config=CHECKED)
class Device:
    """A device: seconds of models by batch size, and times of codecs."""

    name: str
    title: str
    copy_bytes_per_second: Positive
    backward_share: Annotated[float, Field(ge=0, le=1)]  # part of the seconds of a model
    codecs: dict[str, Codec]
    models: dict[str, ModelSeconds]
    processor: str | None = None  # for which the codecs were compiled
    measured: str | None = None  # the day
    sources: str | None = None  # `sources_of_codecs` when its codecs were timed

    @property
    def is_old(self) -> bool:
        """Return whether its codecs were timed before they were changed."""
        return self.sources not in (None, sources_of_codecs())

    def compute(self, model: str, batch_size: int | None, seconds: float | None = None) -> Compute:
        """Return a step's computation, which takes `seconds` or by default the device's own time.

        The latter is interpolated linearly between known batch sizes and proportional beyond
        them; `batch_size` is per worker, and by default the largest known one. Raises ConfigError
        if the device has no seconds for the model.
        """
        if seconds is None:
            if model not in self.models:
                known = ", ".join(self.models) or "none"
                raise ConfigError(
                    f"device={self.name} has no seconds of model={model} (it has {known}); type "
                    "seconds=0.1, those of forward and backward of a batch"
                )
            by_batch = self.models[model].seconds
            batch_size = batch_size or int(max(by_batch))
            seconds = interpolate(by_batch, batch_size)
        assert batch_size is not None
        return Compute(seconds, seconds * self.backward_share, batch_size)

    def codec(self, compressor: str, values: int) -> CodecSeconds:
        """Return the seconds of a choice of conf/compressor for a gradient of `values` values.

        Raises ConfigError if the device has none.
        """
        entry = self._codec(compressor)
        if entry is None:
            others = f"type one of {', '.join(self.codecs)}, or measure it: " if self.codecs else ""
            raise ConfigError(
                f"device={self.name} has no codec seconds of compressor={compressor}; {others}type "
                f"gcbench bench compressor={compressor}, and then gcbench predict measure outputs "
                "device=FILE"
            )
        return CodecSeconds(
            self._seconds(entry.aggregate_seconds, entry.aggregate_copies or 0.0, values),
            self._seconds(entry.decode_seconds, entry.decode_copies, values),
        )

    def times(self, compressor: str) -> bool:
        """Return whether the device has codec seconds for that choice, or for any other method."""
        return self._codec(compressor) is not None

    def _codec(self, compressor: str) -> Codec | None:
        return self.codecs.get(compressor) or self.codecs.get(OTHER) or DENSE.get(compressor)

    def _seconds(
        self, by_values: Mapping[float, float] | None, copies: float, values: int
    ) -> float:
        if by_values is not None:
            return interpolate(by_values, values)
        return copies * 4 * values / self.copy_bytes_per_second


def interpolate(seconds_by_size: Mapping[float, float], size: float) -> float:
    """Return the seconds for `size`: linear between known sizes, proportional beyond them."""
    sizes = sorted(seconds_by_size)
    if size <= sizes[0] or size >= sizes[-1]:
        nearest = sizes[0] if size <= sizes[0] else sizes[-1]
        return seconds_by_size[nearest] * size / nearest
    return float(np.interp(size, sizes, [seconds_by_size[s] for s in sizes]))


NO_CODE = {  # comments, imports and docstrings; then spaces go
    ".py": r'^\s*from [\w.]+ import (\([^)]*\)|.*)$|^\s*import .*$|"""[\s\S]*?"""|^\s*#.*$|  #.*$',
    ".cpp": r"//.*$|^#include .*$",
    ".h": r"//.*$|^#include .*$",
}


@cache
def sources_of_codecs() -> str:
    """Return a hash of the code of codecs and methods, which comments and imports do not change."""
    core = Path(gcbench.__file__).parent / "core"
    files = [
        (path.name, path.read_text(encoding="utf-8"))
        for folder in ("codecs", "methods", "exchange", "wrappers")
        for path in (core / folder).iterdir()
        if path.suffix in NO_CODE
    ]
    code = [(name, code_of(Path(name).suffix, text)) for name, text in sorted(files)]
    return sha256(repr(code).encode()).hexdigest()[:12]


def code_of(suffix: str, text: str) -> str:
    """Return what a file does, without comments, imports and spaces."""
    return re.sub(r"\s+", "", re.sub(NO_CODE[suffix], "", text, flags=re.MULTILINE))


def device_names() -> list[str]:
    return choices_in("devices")


def read_device(name: str) -> Device:
    """Return a device from conf/devices or a yaml file; raise ConfigError if there is none."""
    path = _file_of(name)
    node = read_yaml(path)
    if isinstance(node, dict):
        node = {**node, "name": name}
        if isinstance(node.get("codecs"), str):
            node["codecs"] = _codecs_of(node["codecs"], path)
    return build_checked(Device, node, path)


def _file_of(name: str) -> Path:
    from_file = name.endswith(DEVICE_FILES)
    path = Path(name) if from_file else conf_directory() / "devices" / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"device={name}: there is no such device; type one of {', '.join(device_names())}, or "
            "a yaml file"
        )
    return path


def _codecs_of(name: str, path: Path) -> dict[str, Any]:
    """Return the codecs of the device `name`, which the file `path` uses in place of its own."""
    node = read_yaml(_file_of(name))
    codecs = node.get("codecs") if isinstance(node, dict) else None
    if not isinstance(codecs, dict):
        raise ConfigError(
            f"{path}: codecs={name}: that device has none of its own; type one that has"
        )
    return codecs
