"""The keys of conf/config.yaml, conf/bench.yaml, conf/dataset, and of groups of few keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from gcbench.core.fields import Count, Natural, Needs, Neutral, Seed, Settings, Text, example
from gcbench.runner.settings.marks import ELSEWHERE
from gcbench.runner.settings.open import OpenSettings


class RunSettings(Settings):
    """The keys at the top of a run's configuration, with their defaults."""

    seed: Seed = 1
    """seed of initial weights, order of samples, augmentation, dropout and rounding"""
    name: Annotated[Text | None, ELSEWHERE] = None
    """name of the run's directory; null: made of the choices"""
    outputs: Annotated[Text, example("outputs"), ELSEWHERE] = "outputs"
    """folder for run directories"""
    directory: Annotated[Text | None, ELSEWHERE] = None
    """directory of this run, or of a shorter one to extend; null: outputs/NAME+TYPED-sSEED-HASH"""
    rerun: Annotated[bool, ELSEWHERE] = False
    """true: run again what has a result already; its files are kept under other names"""
    verbose: Annotated[bool, ELSEWHERE] = False
    """true: a run prints all that was counted at its end, and a row of a sweep, too"""


BITS_PER_SECOND = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def _number(units: Mapping[str, float], text: str) -> float:
    match = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(units)})", text)
    if not match:
        raise ValueError
    return float(match[1]) * units[match[2]]


def _check_rate(text: str) -> str:
    if not _number(BITS_PER_SECOND, text):
        raise ValueError
    return text


def _check_latency(text: str) -> str:
    _number(SECONDS, text)
    return text


Rate = Annotated[
    str, AfterValidator(_check_rate), Field(title="a rate with its unit", examples=["1gbit"])
]
Latency = Annotated[
    str, AfterValidator(_check_latency), Field(title="a time with its unit", examples=["50us"])
]


class NetworkSettings(Settings):
    """The keys of conf/network/emulated.yaml."""

    bandwidth: Rate
    """payload rate of the emulated link in each direction"""
    latency: Latency
    """its time per message"""

    @property
    def bits_per_second(self) -> float:
        return _number(BITS_PER_SECOND, self.bandwidth)

    @property
    def latency_seconds(self) -> float:
        return _number(SECONDS, self.latency)


class DataSettings(Settings):
    """The keys of `data` in conf/config.yaml."""

    root: Text
    """folder with data sets"""


class ResumeSettings(Settings):
    """The keys of conf/resume."""

    mode: Literal["auto", "never"] = "auto"
    """continue from the directory's checkpoint where it has one, or start anew"""
    workers: Literal["refuse", "merge"] = "refuse"
    """if the number of workers has changed: refuse, or give each worker the mean residual, and with
    local steps the mean parameters and moments, of those that it replaces"""


class LoggerSettings(Settings):
    """The keys of conf/logger."""

    kind: Literal["wandb", "tensorboard", "csv", "none"] = "wandb"
    """where metrics go besides metrics.jsonl: Weights & Biases, event files of TensorBoard,
    a table of comma-separated values, or nowhere; the other keys are of W&B"""
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Weights & Biases; auto: WANDB_MODE or `wandb offline`, else online where an API key is
    configured for the user's own host, else offline"""
    project: Text | None = None
    """project of W&B; null: WANDB_PROJECT, else gcbench"""
    entity: Text | None = None
    """team or user of W&B; null: WANDB_ENTITY, else yours"""
    group: Text | None = None
    """group of W&B; null: WANDB_RUN_GROUP, else the name of the run"""
    tags: list[Text] | None = None
    """tags of W&B; null: WANDB_TAGS, else the choices and what was typed"""


class BenchSettings(Settings):
    """The keys at the top of a benchmark's configuration, with their defaults."""

    sizes: Annotated[
        list[Annotated[float, Field(ge=1)]], Field(min_length=1, examples=[[1000000, 10000000]])
    ] = [100000, 1000000, 10000000]
    """values of the tensors to time on; methods are made for up to 1e8"""
    draws: Annotated[
        list[Literal["normal", "laplace", "student"]], example(["normal", "student"])
    ] = ["normal", "student"]
    """distribution of the values (student: with three degrees of freedom); []: only steps between
    processes, on normal values"""
    recorded: Text | None = None
    """a file that trainer.record_gradients wrote, instead of draws"""
    shape: Annotated[list[Count], Field(min_length=1, examples=[[3, 32, 32]])] = [3, 32, 32]
    """with model=..., of the samples; where its file leaves that open"""
    classes: Count = 10
    """with model=..., numbers that it puts out"""
    vocabulary: Count = 28869
    """with a model of text, different words"""
    rounds: Count = 15
    """pairs of a copy and the work; results are medians"""
    threads: Count = 1
    """threads of each process"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where to time"""
    codec_backend: Literal["compiled", "eager"] = "compiled"
    """codecs in C++ on a CPU and torch.compile on a GPU, or as they are"""
    workers: Annotated[list[Count], example([2, 4])] = []
    """numbers of processes between which whole steps are timed, beside dense ones, by gloo, or by
    NCCL with one per GPU; on the last size and the first draw, or each on one recorded worker;
    under torchrun or scripts/netlab, those that it started"""
    name: Text | None = None
    """name of the folder; null: the compressor's"""
    outputs: Annotated[Text, example("outputs")] = "outputs"
    """folder in which benchmarks have theirs"""


Split = Literal["test", "valid"]
CropPadding = Natural
CropFill = Literal["zeros", "reflect"]
Flip = Literal["random", "alternating"]

AUGMENTED = Needs("dataset.augment", (True,))


class ModelSettings(OpenSettings):
    """Keys of conf/model: all are those of the class that its `_target_` names."""

    closed = False


class DatasetSettings(OpenSettings):
    """Keys of conf/dataset; each file has the subset that its data set takes, besides others."""

    total, closed = False, False

    root: Annotated[Text, ELSEWHERE]
    """folder with the files of data sets"""
    download: Annotated[bool, ELSEWHERE]
    """true: files are fetched when they are missing"""
    split: Split
    """the part of the data that scores the model"""
    augment: bool
    """true: random crops and flips of training images"""
    crop_padding: Annotated[CropPadding, AUGMENTED, Neutral(4)]
    """pixels by which a crop may lie off center"""
    crop_fill: Annotated[CropFill, AUGMENTED, Neutral("zeros")]
    """values outside an image: black, or the image mirrored at its border"""
    flip: Annotated[Flip, AUGMENTED, Neutral("random")]
    """half of the time at random, or in every other epoch (Jordan, arXiv:2404.00498)"""
