"""Predictions are for the shapes that a run trains."""

from __future__ import annotations

import pytest
from needed import skip
from nightly import slow_but
from sentence import config_of

from gcbench.config import ConfigError
from gcbench.launch.instantiate import make_data
from gcbench.predict.subject import facts_of, has_timed_samples

REAL = [
    ("digits", []),
    ("mnist", []),
    ("cifar10", ["model=resnet8"]),
    ("cifar100", ["model=resnet8"]),
    ("wikitext2", ["model=lstm", "model.vocabulary=28869"]),
    ("wikitext2", ["model=gpt_tiny", "model.vocabulary=28869"]),
    ("an4", ["model=an4_lstm"]),
]


@pytest.mark.parametrize(("name", "overrides"), slow_but([REAL[0], REAL[4], REAL[5]], REAL))
def test_facts_are_those_of_the_data(name: str, overrides: list[str]) -> None:
    config = config_of(f"dataset={name}", *overrides)
    if "download" in config.dataset:
        config.dataset["download"] = False  # tests do not write to the user's data folder
    try:
        data = make_data(config)
    except ConfigError as error:
        skip("data", str(error))
    facts = facts_of(config.choices["model"], name)
    assert (data.shape, data.outputs) == (facts.sample, facts.outputs)
    assert abs(data.steps_per_epoch(1, 16) - facts.samples // 16) <= 1


@pytest.mark.parametrize(
    ("model", "dataset", "timed"),
    [
        ("mlp", "digits", True),
        ("mlp", "mnist", False),
        ("resnet18", "cifar100", True),
        ("resnet18", "imagenet", False),
        ("resnet18", "own", False),
    ],
)
def test_devices_time_a_model_on_samples_of_one_shape(
    model: str, dataset: str, timed: bool
) -> None:
    assert has_timed_samples(model, dataset) == timed
