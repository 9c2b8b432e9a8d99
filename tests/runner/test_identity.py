"""What makes two runs the same, and what does not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from nightly import each
from sentence import values_of

from gcbench.runner.differences import differences, format_differences, tell_apart
from gcbench.runner.identity import (
    BOOKKEEPING,
    EXECUTION,
    NEUTRAL,
    clear_folders,
    fingerprint,
    flatten_config,
    identify,
    leaves,
)
from gcbench.runner.kept_names import with_first_names, with_todays_names
from gcbench.runner.settings.config import GONE


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return values_of(
        *"model=resnet8 dataset=cifar10 compressor=signum +compressor.bucket_scope=tensor".split(),
        *"+compressor.min_ratio=0 +compressor.method.scale=mean +compressor.rotate=none".split(),
        *"+compressor.method.rounding=nearest +compressor.method.accumulate=wire".split(),
        *"+compressor.method.combine=mean optimizer=frozen_adam estimator=local_steps".split(),
        *"+compressor.method.warmup_steps=0 +compressor.adapt_every=null".split(),
    )


def without(node: Any, key: str) -> Any:
    if not isinstance(node, dict):
        return node
    return {name: without(value, key) for name, value in node.items() if name != key}


def with_value(node: Any, key: str, value: Any) -> Any:
    if not isinstance(node, dict):
        return node
    return {k: value if k == key else with_value(v, key, value) for k, v in node.items()}


@pytest.mark.parametrize("key", sorted(NEUTRAL))
def test_a_key_that_came_later_changes_nothing_at_the_value_of_before(
    config: dict[str, Any], key: str
) -> None:
    keys = [f".{name}" for name in leaves(config)]
    assert (f".{key}" in "".join(keys)) != (key in GONE), "a dead entry"
    neutral = with_value(config, key, NEUTRAL[key])
    assert identify(without(neutral, key)) == identify(neutral)
    assert not differences(without(neutral, key), neutral, BOOKKEEPING)


def test_seed_place_name_and_execution_are_no_part_of_it(config: dict[str, Any]) -> None:
    other = deepcopy(config)
    other |= {"seed": 2, "name": "x", "outputs": "y", "experiment": "a/b/c", "needs": "a GPU"}
    other["trainer"] |= dict.fromkeys((EXECUTION | BOOKKEEPING) - {"overlap"}, "other")
    other["dataset"]["root"] = "elsewhere"
    assert identify(other) == identify(config)


@pytest.mark.parametrize("key", ["optimizer.lr", "trainer.epochs", "model.widths", "momentum"])
def test_what_changes_numbers_changes_it(config: dict[str, Any], key: str) -> None:
    other = deepcopy(config)
    node, _, last = key.rpartition(".")
    (other[node] if node else other)[last] = 123
    assert identify(other) != identify(config)


@each("typed", ["dataset.root=/b", "dataset.download=true", "dataset.crop_padding=4"])
def test_keys_of_a_class_of_ones_own_may_change_numbers(typed: str) -> None:
    own = ["dataset._target_=mine.make_data", "dataset.root=/a"]
    config, other = values_of(*own), values_of(*(own if "root" not in typed else own[:1]), typed)
    assert identify(other) != identify(config)
    (key,) = differences(config, other, BOOKKEEPING)
    assert typed.startswith(key)
    assert clear_folders(config)["dataset"] == config["dataset"]


def test_whole_numbers_are_the_floats_that_they_mean() -> None:
    for typed in (
        ["error_feedback=true", "alpha=1", "beta=1.0"],
        ["compressor=signum", "momentum=0"],
        ["compressor=loco", "alpha=1"],
        ["clip_norm=2"],
    ):
        floats = [f"{one}.0" if one[-1] in "012" and "." not in one else one for one in typed]
        assert floats != typed
        assert identify(values_of(*typed)) == identify(values_of(*floats)), typed
    assert identify(values_of("error_feedback=true", "alpha=1")) == identify(
        values_of("error_feedback=true")
    )


def test_a_run_that_was_extended_is_another(config: dict[str, Any]) -> None:
    assert len({identify(config), identify(config, [3]), identify(config, [3, 5])}) == 3


def test_a_missing_key_reads_as_the_value_that_it_means(config: dict[str, Any]) -> None:
    other = deepcopy(config)
    other["schedule"]["warmup_start"] = 0.1
    before = without(config, "warmup_start")
    said = format_differences(differences(before, other, BOOKKEEPING))
    assert said == "schedule.warmup_start=null -> 0.1"


def test_peers_are_told_apart_by_the_knobs_in_which_any_two_differ() -> None:
    configs = [
        values_of(*overrides) for overrides in (["bits=2"], ["bits=4", "optimizer.lr=0.1"], [])
    ]
    flats = [flatten_config(config) for config in configs]
    lr = configs[0]["optimizer"]["lr"]
    assert tell_apart(flats) == [
        ["bits=2", f"optimizer.lr={lr}"],
        ["bits=4", "optimizer.lr=0.1"],
        ["bits=4", f"optimizer.lr={lr}"],  # the default, listed because it tells this run apart
    ]
    assert tell_apart(flats[:1]) == [[]]
    # 5 and 6 levels need the same number of bits.
    flats = [flatten_config(values_of(f"levels={levels}")) for levels in (5, 6)]
    assert tell_apart(flats) == [["levels=5"], ["levels=6"]]
    # A method's knobs are listed only for runs of this method.
    methods = ["compressor=qsgd", "compressor=powersgd rank=3"]
    qsgd, powersgd = tell_apart([flatten_config(values_of(*typed.split())) for typed in methods])
    assert "rank=3" in powersgd and not any(override.startswith("rank=") for override in qsgd)


NUMBERS = ("batch_size", "precision", "label_smoothing", "channels_last", "compile", "accumulate")
NUMBERS += ("double_buffering", "log_every", "eval_every", "eval_batch_size", "error_every")


@pytest.mark.parametrize("key", [*NUMBERS, "workers", "epochs", "max_steps", "checksum"])
def test_a_key_of_the_trainer_that_changes_numbers_changes_it(
    config: dict[str, Any], key: str
) -> None:
    """A run may be continued with other workers or another length; nothing else may change."""
    other = {**config, "trainer": {**config["trainer"], key: 123}}
    assert identify(other) != identify(config)
    may_continue = key in ("workers", "epochs", "max_steps")
    assert (fingerprint(other) == fingerprint(config)) == may_continue


def test_a_class_that_moved_twice_has_one_identity() -> None:
    """Results of three days name the files in which it stood then."""
    rooms = ("compressors.linear", "core.methods.linear", "core.methods.orq")
    nodes = [{"method": {"_target_": f"gcbench.{room}.Linear"}} for room in rooms]
    assert len({str(with_first_names(node)) for node in nodes}) == 1
    assert [with_todays_names(node) for node in nodes] == [nodes[-1]] * 3
