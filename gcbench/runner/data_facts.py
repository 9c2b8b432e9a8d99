"""What is known of data sets that are not here: shapes, classes, samples."""

from __future__ import annotations

from typing import NamedTuple

from gcbench.core.conf import read_yaml
from gcbench.core.errors import ConfigError
from gcbench.runner.conf_files import file_of


class Facts(NamedTuple):
    """The facts of a data set that a prediction needs."""

    sample: tuple[int, ...]  # the shape of a sample
    outputs: int
    samples: int  # in an epoch


TOKENS = {  # in a training text: words, or bytes
    "wikitext2": 2_088_628,
    "wikitext2_bytes": 10_797_148,
    "linux_doc": 37_499_623,
}
WINDOW = 30  # words in a sample, unless the model sets a context
DATASETS = {
    "digits": Facts((1, 8, 8), 10, 1437),
    "mnist": Facts((1, 28, 28), 10, 60_000),
    "cifar10": Facts((3, 32, 32), 10, 50_000),
    "cifar100": Facts((3, 32, 32), 100, 50_000),
    "imagenet": Facts((3, 224, 224), 1000, 1_281_167),
    "wikitext2": Facts((), 28_869, TOKENS["wikitext2"] // WINDOW),
    "wikitext2_bytes": Facts((), 256, TOKENS["wikitext2_bytes"] // WINDOW),
    "linux_doc": Facts((), 256, TOKENS["linux_doc"] // WINDOW),
    "an4": Facts((64, 40), 34, 4_468),  # segments of 64 frames
}
DATASET_OF = {
    **dict.fromkeys(("alexnet", "vgg19", "densenet161", "bn_inception"), "imagenet"),
    **dict.fromkeys(("lstm", "lstm_small", "gpt_small", "gpt_tiny"), "wikitext2"),
    "gpt_bytes": "wikitext2_bytes",
    "mlp": "digits",
    **dict.fromkeys(("an4_lstm", "an4_lstm_small"), "an4"),
}


def dataset_of(model: str) -> str:
    """Return the data set on which a model is usually trained."""
    return "imagenet" if model.endswith("_imagenet") else DATASET_OF.get(model, "cifar10")


def facts_of(model: str, dataset: str | None) -> Facts:
    """Return the facts of a data set, by default the one on which the model is usually trained."""
    name = dataset or dataset_of(model)
    if name not in DATASETS:
        raise ConfigError(
            f"dataset={name}: its shapes are not known; type one of {', '.join(DATASETS)}, or "
            "shapes=FILE"
        )
    facts = DATASETS[name]
    return facts._replace(samples=TOKENS[name] // window_of(model)) if name in TOKENS else facts


def has_timed_samples(model: str, dataset: str) -> bool:
    """Return whether a data set has samples of the shape with which devices time the model."""
    usual = DATASETS[dataset_of(model)]
    return dataset in DATASETS and DATASETS[dataset].sample == usual.sample


def window_of(model: str) -> int:
    """Return the words, or bytes, of a sample of a model of text."""
    file = file_of("model", model)
    node = read_yaml(file) if file.is_file() else {}
    window: int = node.get("context", WINDOW)
    return window
