"""The arguments of the forms of `gcbench predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gcbench.core.errors import ConfigError, near
from gcbench.runner.arguments import Arguments, Forms, Option, read_arguments
from gcbench.runner.console import FORMATS
from gcbench.runner.settings.groups import OneOf

Format = Annotated[str, OneOf(FORMATS), Field(description=", ".join(FORMATS))]


class Predict(Arguments):
    """The arguments of every form of `gcbench predict`."""

    format: Format = "terminal"

    @property
    def paths(self) -> tuple[str, ...]:
        return self.plain[1:]


class OnClusters(Predict):
    """The arguments of predicted steps: methods on a model, a device and a cluster."""

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
    every: tuple[int, ...] = (1,)
    """steps from one exchange to the next (estimator=local_steps), separated by commas"""
    delay: int = 0
    """steps during which such an exchange is under way (estimator.delay)"""
    overlap: bool = False
    """true: the exchange of a bucket hides under the backward pass"""
    device: str = "v100"
    """a name that gcbench predict devices has, or a yaml file"""
    config_dir: Annotated[str | None, Option()] = None
    """a folder with your compressor/NAME.yaml"""

    def check(self) -> None:
        """Raise ConfigError for two models, and for local steps under a backward pass."""
        if self.shapes and (idle := [k for k in ("model", "dataset") if k in self.given]):
            raise ConfigError(
                f"{idle[0]}={getattr(self, idle[0])}: shapes={self.shapes} gives the model; type "
                "only one of them"
            )
        if self.seconds is not None and self.batch_size is None and self.shapes is None:
            raise ConfigError(
                f"seconds={self.seconds:g}: type batch_size=N too, the batch that takes so long"
            )
        if self.delay and self.delay >= min(self.every):
            raise ConfigError(
                f"delay={self.delay}: the next exchange begins every={min(self.every)} steps "
                f"later; type delay={min(self.every) - 1} or less"
            )
        if self.overlap and max(self.every) > 1:
            raise ConfigError(
                f"overlap=true every={','.join(map(str, self.every))}: local steps are exchanged "
                "between two steps, not under a backward pass; type overlap=false, or every=1"
            )


class Steps(OnClusters):
    """Predicts steps on clusters: their seconds, samples per second, and where compression pays.
    Other keys are knobs of the compressors (rank=2, bits=4, exchange=scatter; several values are
    separated by commas, for example rank=1,2,4)."""

    usage = "gcbench predict [pays | machine | measure | compare | links | devices] [key=value ...]"
    examples = """
gcbench predict model=resnet18 compressor=powersgd rank=2 network=10gbit workers=2,4,8,16
gcbench predict model=resnet50_imagenet compressor=all network=25gbit workers=64 workers_per_node=8
gcbench predict pays model=resnet18 compressor=all network=1gbit,10gbit every=1,8    what to take
gcbench predict pays profile=job.json network=1gbit workers=64    your own loop: gcbench.profile
gcbench predict pays target=27 model=gpt_tiny seconds=0.07 batch_size=16 network=1gbit    to a score
gcbench predict model=resnet18 compressor=none,qsgd every=1,8,32 network=1gbit     local steps
gcbench predict shapes=mine.yaml compressor=powersgd rank=1,2,4     a model without its code
gcbench predict --config-dir my_conf compressor=mine,qsgd     a method of your own
gcbench predict machine device=mine.yaml     this machine, measured now: coding and computation
gcbench predict measure outputs device=mine.yaml     a device, from what ran below a folder
gcbench predict compare outputs/RUN network=1gbit    a run's times beside the prediction
"""

    samples: int | None = None
    """of an epoch; by default the data set's"""


class Pays(OnClusters):
    """Predicts at which rates of a link each method has shorter steps than none, and how many times
    sooner it is than bf16 with overlap (sigma / rho), or which reaches a score first. Other keys
    are knobs of the compressors."""

    usage = "gcbench predict pays [key=value ...]"

    profile: str | None = None
    """a file that gcbench.profile wrote in a training loop: its model, its methods, and their
    seconds on its device, in place of model, compressor and device"""
    picture: str | None = None
    """a file without its ending: draws NAME.svg and NAME.png"""
    target: float | None = None
    """a score; who reaches it first, by the kept curves of the nearest model"""
    results: tuple[str, ...] = ("outputs",)
    """folders of kept runs, separated by commas: of their curves with target=, else of rho"""
    length: Annotated[float, Field(gt=0)] = 1.0
    """T, at which rho is asked: tokens a parameter of dense training, in units of 20"""

    def check(self) -> None:
        """Raise ConfigError for keys that a target does not go with, or that need one."""
        super().check()
        taken = ("model", "shapes", "dataset", "compressor", "seconds", "device", "overlap")
        if self.profile and (idle := [key for key in (*taken, "target") if key in self.given]):
            raise ConfigError(
                f"{idle[0]}={getattr(self, idle[0])}: profile={self.profile} has that of its loop; "
                "leave one of them out"
            )
        if self.profile and self.others:
            raise ConfigError(
                f"{self.others[0]}: the methods of profile={self.profile} have their knobs; type "
                "them in gcbench.profile(model, methods=[...])"
            )
        if "length" in self.given and self.target is not None:
            raise ConfigError(
                f"length={self.length:g} target={self.target:g}: a target has the lengths of the "
                "kept runs; leave one of them out"
            )
        if self.target is not None and self.picture:
            raise ConfigError(
                f"target={self.target:g} picture={self.picture}: the picture shows steps only; "
                "leave one of them out"
            )


class Measure(Predict):
    """Writes a device from what ran below folders: benchmarks of codecs, and runs with times."""

    usage = "gcbench predict measure FOLDER ... device=FILE.yaml [key=value ...]"

    device: str | None = None
    """the yaml file to write"""
    title: str | None = None
    """of the device; by default the file's name"""


class ThisMachine(Predict):
    """Measures this machine, one thread of it: a device file with the coding of every method, and
    computation. ATEN_CPU_CAPABILITY=avx2 before it: as a processor without AVX-512 has it."""

    usage = "gcbench predict machine device=FILE.yaml [key=value ...]"

    device: str | None = None
    """the yaml file to write, or to write anew if this command made it"""
    compressor: tuple[str, ...] = ("all",)
    """methods, separated by commas"""
    sizes: tuple[int, ...] = (100_000, 1_000_000, 4_000_000)
    """values of the gradients"""
    rounds: int = 5
    """repetitions, in each of three turns; the file has the least of the turns' medians"""
    title: str | None = None
    """of the device; by default the processor"""


class Compare(Predict):
    """Compares the exchange of runs with its prediction."""

    usage = "gcbench predict compare RUN ... [key=value ...]"

    network: str | None = None
    """between the runs' hosts; by default the link that a result names"""
    latency: str | None = None
    """of a message between hosts, as in 50us; by default the link's"""


class Links(Predict):
    """Lists links for network= and inside=."""

    usage = "gcbench predict links [format=csv]"


class Devices(Predict):
    """Lists devices for device=."""

    usage = "gcbench predict devices [format=csv]"


COMMANDS: dict[str, type[Predict]] = {
    "": Steps,
    "pays": Pays,
    "measure": Measure,
    "machine": ThisMachine,
    "compare": Compare,
    "links": Links,
    "devices": Devices,
}
FORMS: Forms = {f"gcbench predict {name}".strip(): kind for name, kind in COMMANDS.items()}


def read_predict(typed: Sequence[str]) -> Predict:
    """Return the arguments of the form that was typed; raise ConfigError for a mistyped one."""
    first = next((one for one in typed if "=" not in one and not one.startswith("-")), "")
    arguments = read_arguments(COMMANDS.get(first, Steps), typed, FORMS)
    takes_paths = isinstance(arguments, Measure | Compare)
    if unknown := () if takes_paths else arguments.plain[first in COMMANDS and first != "" :]:
        names = [name for name in COMMANDS if name]
        raise ConfigError(
            f"{unknown[0]}: type {near(unknown[0], names) or ', '.join(names)}, or key=value"
        )
    return arguments
