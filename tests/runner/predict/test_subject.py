"""Predictions are for the shapes that a run trains."""

from __future__ import annotations

import pytest
from needed import skip
from nightly import slow_but
from sentence import config_of

from gcbench.core.errors import ConfigError
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.data_facts import facts_of, has_timed_samples
from gcbench.runner.launch.instantiate import make_data
from gcbench.runner.predict.arguments import Steps
from gcbench.runner.predict.devices import read_device
from gcbench.runner.predict.scenario import find_model
from gcbench.runner.predict.subject import flops_of, shapes_of_model

REAL = [
    ("digits", []),
    ("mnist", []),
    ("cifar10", ["model=resnet8"]),
    ("cifar100", ["model=resnet8"]),
    ("wikitext2", ["model=lstm", "model.vocabulary=28869"]),
    ("wikitext2", ["model=gpt_tiny", "model.vocabulary=28869"]),
    ("an4", ["model=an4_lstm"]),
    ("wikitext2_bytes", ["model=gpt_bytes"]),
    ("linux_doc", ["model=gpt_bytes"]),
]


@pytest.mark.parametrize(("name", "overrides"), slow_but([REAL[0], REAL[4], REAL[5]], REAL))
def test_facts_are_those_of_the_data(name: str, overrides: list[str]) -> None:
    config = config_of(f"dataset={name}", *overrides)
    if config.dataset.download:  # tests do not write to the user's data folder
        here = config.dataset.model_copy(update={"download": False})
        config = config.model_copy(update={"dataset": here})
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


def test_a_model_that_a_device_does_not_know_takes_its_share_of_a_known_ones_flops() -> None:
    device = read_device("v100")
    found = find_model(Steps(model="resnet20"), device)
    assert "estimated from vgg16" in found.estimate
    share = flops_of("resnet20") / flops_of("vgg16")
    known = device.compute("vgg16", None)
    assert found.compute.seconds == pytest.approx(known.seconds * share)
    assert found.compute.batch_size == known.batch_size and 0.05 < share < 0.3
    assert flops_of("mlp") == 2 * sum(a * b for a, b in shapes_of_mlp())
    assert find_model(Steps(model="resnet18"), device).estimate == ""


def shapes_of_mlp() -> list[tuple[int, ...]]:
    node = resolve(compose_overrides(["model=mlp", "dataset=digits"])).model.as_dict()
    return [s for s in shapes_of_model(node, facts_of("mlp", None)).values() if len(s) == 2]
