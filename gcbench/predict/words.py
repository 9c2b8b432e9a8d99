"""What is typed after `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gcbench.config import ConfigError, Words, key, near, read_words
from gcbench.console import FORMATS

COMMANDS = ("pays", "measure", "compare", "links", "profiles")


@dataclass
class Predict(Words):
    """Predicts steps on clusters: seconds, images a second, and where compression pays. Other keys are knobs of the
    compressors (rank=2, bits=4, exchange=scatter; several values as in rank=1,2,4)."""

    usage = f"gcbench predict [{' | '.join(COMMANDS)}] [key=value ...]"
    examples = """
gcbench predict model=resnet18 compressor=powersgd rank=2 network=10gbit workers=2,4,8,16
gcbench predict model=resnet50_imagenet compressor=all network=25gbit workers=64 workers_per_node=8 inside=nvlink2 overlap=true
gcbench predict pays model=resnet18 compressor=qsgd,powersgd exchange=scatter_coded picture=pays    from where on a method pays
gcbench predict shapes=mine.yaml compressor=powersgd rank=1,2,4       a model without code
gcbench predict measure outputs profile=mine.yaml    a profile from the bench.json and result.json below a folder
gcbench predict compare outputs/RUN network=1gbit    a run's times beside the prediction
gcbench predict table=ecqsgd/figure6                 the papers' predictions beside ours
"""
    takes_other_keys = True

    model: str = key("resnet18", "a choice of conf/model")
    shapes: str | None = key(
        None,
        "a yaml file in place of a model: shapes: [[64, 3, 3, 3], ...] and seconds: {128: 0.1}",
    )
    dataset: str | None = key(
        None,
        "whose shapes, classes and samples the model has, by default those it is mostly trained on",
    )
    compressor: tuple[str, ...] = key(
        ("none", "qsgd", "powersgd", "top_k", "signum"), "methods, separated by commas, or all"
    )
    network: str = key(
        "10gbit",
        "between nodes: a rate (10gbit, 2.5gbit), or a name that gcbench predict links has",
    )
    latency: str | None = key(None, "of a message between nodes, as in 50us; by default the link's")
    inside: str = key("nvlink2", "the link inside a node")
    workers: tuple[int, ...] = key((2, 4, 8, 16), "numbers, separated by commas")
    workers_per_node: int = key(1, "that share a node's link")
    batch_size: int | None = key(None, "images of a worker; by default the profile's")
    seconds: float | None = key(
        None, "of forward and backward of that batch, in place of the profile's"
    )
    samples: int | None = key(None, "of an epoch; by default the data set's")
    overlap: bool = key(False, "true: the exchange of a bucket hides under the backward pass")
    profile: str = key(
        "v100",
        "a device: a name that gcbench predict profiles has, or a yaml file; with measure: the file to write",
    )
    title: str | None = key(None, "of the profile that measure writes")
    format: str = key("terminal", ", ".join(FORMATS), choices=FORMATS)
    picture: str | None = key(
        None, "a file without its ending: pays draws picture=NAME.svg and NAME.png"
    )
    own: tuple[str, ...] = key(
        (),
        "with compare: classes of yours, separated by commas, that a run's model and method may be",
    )
    table: str | None = key(
        None,
        "a paper's: maxnorm/figure11 to 14, ecqsgd/figure6, powersgd/figure3, qsgd/figure2, qsgd/table1",
    )

    @property
    def command(self) -> str:
        return self.plain[0] if self.plain else ""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.plain[1:]


def read(typed: Sequence[str]) -> Predict:
    """Raises ConfigError with one sentence."""
    words = read_words(Predict, typed)
    unknown = (
        () if words.command in ("measure", "compare") else words.plain[words.command in COMMANDS :]
    )
    for word in unknown:
        raise ConfigError(
            f"{word}: type {near(word, COMMANDS) or ', '.join(COMMANDS)}, or key=value"
        )
    if words.seconds is not None and words.batch_size is None and words.shapes is None:
        raise ConfigError(
            f"seconds={words.seconds:g}: type batch_size=N too, whose seconds they are"
        )
    return words
