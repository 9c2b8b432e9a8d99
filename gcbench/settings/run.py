"""The keys of conf/config.yaml, of conf/bench.yaml, and of the groups that say where results go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gcbench.settings.fields import Count, Settings, Text, example
from gcbench.settings.marks import ELSEWHERE


class RunSettings(Settings):
    """The keys at the top of conf/config.yaml."""

    seed: Annotated[int, Field(ge=0, lt=2**63), example(1)]
    """seed of initial weights, order of samples, augmentation, dropout and rounding"""
    name: Annotated[Text | None, ELSEWHERE]
    """name of the run's directory; null: made of the choices"""
    outputs: Annotated[Text, example("outputs"), ELSEWHERE]
    """folder for run directories"""
    directory: Annotated[Text | None, ELSEWHERE]
    """directory of this run, or of a shorter one to extend; null: outputs/NAME+TYPED-sSEED-HASH"""
    rerun: Annotated[bool, ELSEWHERE]
    """true: run again what has a result already"""


class ResumeSettings(Settings):
    """The keys of conf/resume."""

    mode: Literal["auto", "never"] = "auto"
    """continue from the directory's checkpoint where it has one, or start anew"""
    workers: Literal["refuse", "merge"] = "refuse"
    """if the number of workers has changed: refuse, or give each worker the mean residual of those
    that it replaces"""


class LoggerSettings(Settings):
    """The keys of conf/logger."""

    kind: Literal["wandb", "tensorboard", "csv", "none"] = "wandb"
    """where metrics go besides metrics.jsonl: Weights & Biases, event files of TensorBoard, a table
    of comma-separated values, or nowhere; the other keys are of W&B"""
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
    """The keys of conf/bench.yaml."""

    sizes: Annotated[
        list[Annotated[float, Field(ge=1)]], Field(min_length=1, examples=[[1000000, 10000000]])
    ]
    """values of the tensors to time on"""
    draws: Annotated[list[Literal["normal", "laplace", "student"]], example(["normal", "student"])]
    """distribution of the values; []: only steps between processes, on normal values"""
    recorded: Text | None
    """a file that trainer.record_gradients wrote, instead of draws"""
    rounds: Annotated[Count, example(15)]
    """pairs of a copy and the work; results are medians"""
    threads: Annotated[Count, example(1)]
    """threads of each process"""
    device: Literal["auto", "cpu", "cuda"]
    """where to time"""
    codec_backend: Literal["compiled", "eager"]
    """codecs in C++ on a CPU and torch.compile on a GPU, or as they are"""
    workers: Annotated[list[Count], example([2, 4])]
    """numbers of processes between which whole steps are timed, beside dense ones, by gloo, or by
    NCCL with one per GPU; under torchrun or scripts/netlab, those that it started"""
