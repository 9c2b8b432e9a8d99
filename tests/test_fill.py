"""Arguments of a compressor are filled from the keys of its method."""

from __future__ import annotations

import re
from inspect import signature
from typing import Any

import pytest
from nightly import each

from gcbench.compressors.build import build
from gcbench.config import ConfigError, compose_methods, conf_directory, method_keys
from gcbench.config.resolve import BUILD, OF_BUILD, SET_LEVELS, fill_compressor
from gcbench.identity import iterate_leaves
from gcbench.settings.compressor import MethodSettings


def test_build_takes_what_its_keys_fill_and_no_other_key_of_methods() -> None:
    taken = set(signature(build).parameters) & set(MethodSettings.model_fields)
    assert set(OF_BUILD) == taken - {"momentum"}  # of an optimizer, which a file reads from there


def test_every_key_of_a_method_reaches_an_argument() -> None:
    """A key that nothing takes would change a run's name and identity, but not the run."""
    for choice, (node, knobs) in compose_methods(list(method_keys())).items():
        arguments = {path.rpartition(".")[2] for path, _ in iterate_leaves(node)}
        assert set(knobs) - set(SET_LEVELS) <= arguments, choice
        assert {"bits", "convolution_bits"} & set(knobs) == set() or "levels" in arguments, choice


def test_no_file_copies_a_key_by_hand() -> None:
    for file in (conf_directory() / "compressor").rglob("*.yaml"):
        assert not re.search(r"\b(\w+): \$\{\1\}", file.read_text(encoding="utf-8")), file


@each(
    ("node", "expected"),
    [
        ({"method": {"_target_": "gcbench.A"}}, {"method.rank": 2, "alpha": 0.5}),
        ({"method": {"_target_": "mine.A"}}, {"alpha": 0.5}),  # which may call it otherwise
        ({"method": {"_target_": "mine.A", "rank": None}}, {"method.rank": 2, "alpha": 0.5}),
        (
            {"method": {"_target_": "gcbench.A", "inner": {"_target_": "mine.B", "rank": None}}},
            {"method.inner.rank": 2, "alpha": 0.5},
        ),
        (
            {"method": {"_target_": "gcbench.A", "alpha": None}},
            {"method.rank": 2, "method.alpha": 0.5},
        ),
    ],
)
def test_a_value_goes_where_a_file_leaves_it_open(
    node: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = {
        "rank": 2,
        "alpha": 0.5,
        "bits": 4,
        "seed": 1,
        "compressor": {"_target_": BUILD, **node},
    }
    fill_compressor(config)
    filled = dict(iterate_leaves(config["compressor"]))
    assert {k: v for k, v in filled.items() if not k.endswith("_target_")} == expected


def test_an_argument_that_differs_from_its_key_is_refused() -> None:
    method = {"_target_": "mine.A", "rank": 3}
    with pytest.raises(ConfigError, match=r"^compressor\.method\.rank=3: type rank=3$"):
        fill_compressor({"rank": 2, "compressor": {"_target_": BUILD, "method": method}})
