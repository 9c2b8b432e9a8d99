"""Arguments of a compressor are filled from the keys of its method."""

from __future__ import annotations

import re
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from nightly import each, slow_but

import gcbench
from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import BUILD, SET_LEVELS, fill_compressor, read_method
from gcbench.core.method_keys import OF_LAYERS
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers.build import build
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.keys import method_keys, read_knobs
from gcbench.runner.config.resolve import resolve
from gcbench.runner.identity import leaves


def test_build_takes_every_key_that_no_method_takes() -> None:
    assert set(OF_LAYERS) < set(signature(build).parameters)
    with pytest.raises(TypeError, match="unexpected keyword argument 'aplha'"):
        build(QSGD(7), aplha=0.5)


def test_every_key_of_a_method_reaches_an_argument() -> None:
    """A key that nothing takes would change a run's name and identity, but not the run."""
    for choice, knobs in method_keys().items():
        node = read_method(choice)["compressor"]
        arguments = {path.rpartition(".")[2] for path, _ in leaves(node).items()}
        assert set(knobs) - set(SET_LEVELS) <= arguments, choice
        unfilled = {"bits", "convolution_bits"} & set(knobs) - arguments
        assert not unfilled or "levels" in arguments, choice


@pytest.mark.parametrize(
    "sentence",
    slow_but(
        ["powersgd min_ratio=2", "loco levels=3", "qsgd_by_kind", "onebit_adam"],
        ["powersgd min_ratio=2", "loco levels=3", *method_keys()],
    ),
)
def test_a_method_by_itself_is_that_of_a_run(sentence: str) -> None:
    name, *knobs = sentence.split()
    of_run = resolve(compose_overrides([f"compressor={name}", *knobs]))
    method = read_method(name, read_knobs(knobs))
    assert method.pop("compressor") == of_run.compressor
    assert method == {**of_run.method.as_dict(), "form": of_run.form}


def test_no_run_is_composed_for_a_method() -> None:
    entered: set[Path] = set()
    sys.setprofile(lambda frame, event, argument: entered.add(Path(frame.f_code.co_filename)))
    try:
        read_method("powersgd", {"rank": 2})
    finally:
        sys.setprofile(None)
    assert not any("hydra" in path.parts for path in entered)
    runner = Path(gcbench.__file__).parent / "runner"
    assert entered and not any(path.is_relative_to(runner) for path in entered)


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
    filled = leaves(config["compressor"])
    assert {k: v for k, v in filled.items() if not k.endswith("_target_")} == expected


def test_an_argument_that_differs_from_its_key_is_refused() -> None:
    method = {"_target_": "mine.A", "rank": 3}
    with pytest.raises(ConfigError, match=r"^compressor\.method\.rank=3: type rank=3$"):
        fill_compressor({"rank": 2, "compressor": {"_target_": BUILD, "method": method}})
