"""The arguments of `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gcbench.config import Arguments, ConfigError, near, read_arguments, refuse_unread
from gcbench.console import FORMATS
from gcbench.settings.marks import OneOf

COMMANDS = ("pays", "measure", "compare", "links", "devices")
SCENARIO = set(
    "model shapes dataset compressor network latency inside workers workers_per_node batch_size "
    "seconds every overlap device format".split()
)
READS = {  # the keys that each command reads
    "": SCENARIO | {"samples"},
    "pays": SCENARIO | {"picture", "target", "results"},
    "measure": {"device", "title", "format"},
    "compare": {"network", "latency", "format"},
    "links": {"format"},
    "devices": {"format"},
}


class Predict(Arguments):
    """Predicts steps on clusters: their seconds, samples per second, and where compression pays.
    Other keys are knobs of the compressors (rank=2, bits=4, exchange=scatter; several values are
    separated by commas, for example rank=1,2,4)."""

    usage = f"gcbench predict [{' | '.join(COMMANDS)}] [key=value ...]"
    examples = """
gcbench predict model=resnet18 compressor=powersgd rank=2 network=10gbit workers=2,4,8,16
gcbench predict model=resnet50_imagenet compressor=all network=25gbit workers=64 workers_per_node=8
gcbench predict pays model=resnet18 compressor=all network=1gbit,10gbit every=1,8    what to take
gcbench predict pays target=27 model=gpt_tiny seconds=0.07 batch_size=16 network=1gbit    to a score
gcbench predict model=resnet18 compressor=none,qsgd every=1,8,32 network=1gbit    local steps
gcbench predict shapes=mine.yaml compressor=powersgd rank=1,2,4     a model without its code
gcbench predict measure outputs device=mine.yaml     a device, from what ran below a folder
gcbench predict compare outputs/RUN network=1gbit    a run's times beside the prediction
"""
    takes_other_keys = True

    model: str = "resnet18"
    """a choice of conf/model"""
    shapes: str | None = None
    """a yaml file in place of a model: shapes: [[64, 3, 3, 3], ...], of experts [8, 64, 64], of 1-D
    convolutions [64, 3, 5, 1], and seconds: {128: 0.1}"""
    dataset: str | None = None
    """for the model's shapes and an epoch's samples; by default what it is trained on"""
    compressor: tuple[str, ...] = ("none", "qsgd", "powersgd", "top_k", "signum")
    """methods, separated by commas, or all"""
    network: tuple[str, ...] = ("10gbit",)
    """between nodes: rates (10gbit, 2.5gbit), or names that gcbench predict links has"""
    latency: str | None = None
    """of a message between nodes, as in 50us; by default the link's"""
    inside: str = "nvlink2"
    """the link inside a node"""
    workers: tuple[int, ...] = (2, 4, 8, 16)
    """numbers, separated by commas"""
    workers_per_node: int = 1
    """that share a node's link"""
    batch_size: int | None = None
    """samples of a worker; by default the device's"""
    seconds: float | None = None
    """of forward and backward of that batch, in place of the device's"""
    samples: int | None = None
    """of an epoch; by default the data set's"""
    every: tuple[int, ...] = (1,)
    """steps from one exchange to the next (estimator=local_steps), separated by commas"""
    overlap: bool = False
    """true: the exchange of a bucket hides under the backward pass"""
    device: str = "v100"
    """a name that gcbench predict devices has, or a yaml file; with measure: the file to write"""
    title: str | None = None
    """of the device that measure writes"""
    format: Annotated[str, OneOf(FORMATS)] = Field("terminal", description=", ".join(FORMATS))
    picture: str | None = None
    """a file without its ending: pays draws picture=NAME.svg and NAME.png"""
    target: float | None = None
    """with pays: a score; who reaches it first, by the kept curves of the nearest model"""
    results: tuple[str, ...] = ("outputs",)
    """with target=: folders or files of kept runs, separated by commas"""

    @property
    def command(self) -> str:
        return self.plain[0] if self.plain else ""

    @property
    def paths(self) -> tuple[str, ...]:
        return self.plain[1:]


def read_predict(typed: Sequence[str]) -> Predict:
    """Return the arguments that were typed; raise ConfigError for a mistyped one."""
    arguments = read_arguments(Predict, typed)
    unknown = (
        ()
        if arguments.command in ("measure", "compare")
        else arguments.plain[arguments.command in COMMANDS :]
    )
    for argument in unknown:
        raise ConfigError(
            f"{argument}: type {near(argument, COMMANDS) or ', '.join(COMMANDS)}, or key=value"
        )
    refuse_unread(arguments, "gcbench predict", arguments.command, READS)
    if arguments.others and "compressor" not in READS[arguments.command]:
        raise ConfigError(
            f"{arguments.others[0]}: gcbench predict {arguments.command} has no such key; leave it "
            "out"
        )
    if arguments.shapes and (idle := [k for k in ("model", "dataset") if k in arguments.given]):
        raise ConfigError(
            f"{idle[0]}={getattr(arguments, idle[0])}: shapes={arguments.shapes} gives the "
            "model; type only one of them"
        )
    if arguments.seconds is not None and arguments.batch_size is None and arguments.shapes is None:
        raise ConfigError(
            f"seconds={arguments.seconds:g}: type batch_size=N too, the batch that takes so long"
        )
    if "results" in arguments.given and arguments.target is None:
        raise ConfigError(
            f"results={','.join(arguments.results)}: kept curves are read for a target; type "
            "target=27 too, or leave it out"
        )
    if arguments.target is not None and arguments.picture:
        raise ConfigError(
            f"target={arguments.target:g} picture={arguments.picture}: the picture shows steps "
            "only; leave one of them out"
        )
    if arguments.overlap and max(arguments.every) > 1:
        raise ConfigError(
            f"overlap=true every={','.join(map(str, arguments.every))}: local steps are exchanged "
            "between two steps, not under a backward pass; type overlap=false, or every=1"
        )
    return arguments
