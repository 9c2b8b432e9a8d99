"""The keys of a method in a configuration that Hydra has composed."""

from __future__ import annotations

from collections.abc import Collection

from omegaconf import DictConfig, OmegaConf

from gcbench.core.conf import Config
from gcbench.core.method_files import bits_of, fill_compressor, to_floats_of_method


def fill(tree: DictConfig) -> Config:
    """Return the plain values of a configuration, with a compressor that has its method's keys."""
    plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    config = {str(key): value for key, value in plain.items()}
    fill_compressor(config)
    to_floats_of_method(config)
    return config


def settle_bits(tree: DictConfig, typed: Collection[str]) -> None:
    """Set `bits` to the number that the typed `levels` need: see `bits_of`."""
    # Levels that follow from bits say nothing of them.
    said = "levels" in tree and not OmegaConf.is_interpolation(tree, "levels")
    levels = {"levels": tree.levels} if said else {}
    own = {"bits": tree.get("bits"), "compressor": tree.compressor, **levels}
    if (bits := bits_of(own, typed)) is not None:
        tree.bits = bits
