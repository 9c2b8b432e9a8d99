"""What was typed after `gcbench-model`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from gcbench.config import ConfigError

COMMANDS = ("pays", "measure", "compare", "links", "profiles")
KEYS = {
    "model": "a choice of conf/model (resnet18)",
    "shapes": "a yaml file in place of a model: shapes: [[64, 3, 3, 3], ...] and seconds: {128: 0.1}",
    "dataset": "whose shapes, classes and samples the model has, by default those it is mostly trained on",
    "compressor": "methods, separated by commas, or all (none,qsgd,powersgd,top_k,signum)",
    "network": "between nodes: a rate (10gbit, 2.5gbit), or a name that gcbench-model links has (10gbit)",
    "latency": "of a message between nodes, as in 50us; by default the link's",
    "inside": "the link inside a node (nvlink2)",
    "workers": "numbers, separated by commas (2,4,8,16)",
    "workers_per_node": "that share a node's link (1)",
    "batch_size": "images of a worker; by default the profile's",
    "seconds": "of forward and backward of that batch, in place of the profile's",
    "samples": "of an epoch; by default the data set's",
    "overlap": "true: the exchange of a bucket hides under the backward pass (false)",
    "profile": "a device: a name that gcbench-model profiles has, or a yaml file (v100); with measure: the file to write",
    "title": "of the profile that measure writes",
    "format": "terminal, markdown or csv (terminal)",
    "picture": "a file without its ending: pays draws picture=NAME.svg and NAME.png",
    "own": "with compare: classes of yours, separated by commas, that a run's model and method may be",
    "table": "a paper's: maxnorm/figure11 to 14, ecqsgd/figure6, powersgd/figure3, qsgd/figure2, qsgd/table1",
}
ABOUT = """\
gcbench-model model=resnet18 compressor=powersgd rank=2 network=10gbit workers=2,4,8,16
gcbench-model model=resnet50_imagenet compressor=all network=25gbit workers=64 workers_per_node=8 inside=nvlink2 overlap=true
gcbench-model pays model=resnet18 compressor=qsgd,powersgd exchange=scatter_coded picture=pays    from where on a method pays
gcbench-model shapes=mine.yaml compressor=powersgd rank=1,2,4       a model without code
gcbench-model measure outputs profile=mine.yaml    a profile from the bench.json and result.json below a folder
gcbench-model compare outputs/RUN network=1gbit    a run's times beside the prediction
gcbench-model table=ecqsgd/figure6                 the papers' predictions beside ours

"""


@dataclass
class Words:
    command: str = ""
    paths: list[str] = field(default_factory=list)
    knobs: list[str] = field(default_factory=list)  # of compressors
    model: str = "resnet18"
    shapes: str | None = None
    dataset: str | None = None
    compressor: str = "none,qsgd,powersgd,top_k,signum"
    network: str = "10gbit"
    latency: str | None = None
    inside: str = "nvlink2"
    workers: list[int] = field(default_factory=lambda: [2, 4, 8, 16])
    workers_per_node: int = 1
    batch_size: int | None = None
    seconds: float | None = None
    samples: int | None = None
    overlap: bool = False
    profile: str = "v100"
    title: str | None = None
    format: str = "terminal"
    picture: str | None = None
    own: list[str] = field(default_factory=list)
    table: str | None = None
    typed: set[str] = field(default_factory=set)


def _whole(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("a number above 0")
    return number


def _true(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


def _form(text: str) -> str:
    if text not in ("terminal", "markdown", "csv"):
        raise ValueError("terminal, markdown or csv")
    return text


READ: dict[str, Callable[[str], Any]] = {
    "workers": lambda text: [_whole(part) for part in text.split(",")],
    "workers_per_node": _whole,
    "batch_size": _whole,
    "seconds": _positive,
    "own": lambda text: text.split(","),
    "samples": _whole,
    "overlap": _true,
    "format": _form,
}


def read(typed: Sequence[str]) -> Words:
    words = Words()
    for word in typed:
        key, equals, value = word.partition("=")
        if not equals:
            _plain(words, word)
        elif not value:
            raise ConfigError(f"{word}: type {key}= and {KEYS.get(key, 'a value')}")
        elif key not in KEYS:
            words.knobs.append(word)
        else:
            try:
                setattr(words, key, READ.get(key, str)(value))
            except ValueError as error:
                raise ConfigError(f"{word}: type {error}, as in {key}={_example(key)}") from None
            words.typed.add(key)
    if {"batch_size", "seconds"} & words.typed == {"seconds"} and words.shapes is None:
        raise ConfigError(f"seconds={words.seconds:g}: type batch_size=N too, whose seconds they are")
    return words


def _plain(words: Words, word: str) -> None:
    if words.command in ("measure", "compare"):
        words.paths.append(word)
    elif word in COMMANDS and not words.command:
        words.command = word
    else:
        near = " or ".join(get_close_matches(word, [*COMMANDS, *KEYS])) or ", ".join(COMMANDS)
        raise ConfigError(f"{word}: type {near}, or key=value")


def _example(key: str) -> str:
    return {"workers": "2,4,8", "overlap": "true", "format": "csv", "seconds": "0.1"}.get(key, "4")


def parser() -> argparse.ArgumentParser:
    keys = "\n".join(f"  {key + '=':18}{what}" for key, what in KEYS.items())
    made = argparse.ArgumentParser(
        prog="gcbench-model",
        usage=f"gcbench-model [{' | '.join(COMMANDS)}] [key=value ...]",
        description=f"Predicts steps on clusters: seconds, images a second, and where compression pays.\n\n{ABOUT}"
        f"keys, and any knob of the compressors (rank=2, bits=4, exchange=scatter; several values as in rank=1,2,4):\n{keys}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return made
