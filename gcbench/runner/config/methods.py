"""The keys of a method in a configuration that Hydra has composed."""

from __future__ import annotations

from collections.abc import Collection

from gcbench.core.conf import Config
from gcbench.core.method_files import bits_of, fill_compressor, to_floats_of_method
from gcbench.runner.config.composed import resolve_references


def fill(tree: Config) -> Config:
    """Return the values of a configuration, with a compressor that has its method's keys."""
    config = resolve_references(tree)
    fill_compressor(config)
    to_floats_of_method(config)
    return config


def settle_bits(tree: Config, typed: Collection[str]) -> None:
    """Set `bits` to the number that the typed `levels` need: see `bits_of`."""
    # Levels that follow from bits, as they are a reference, say nothing of them.
    if (bits := bits_of(tree, typed)) is not None:
        tree["bits"] = bits
