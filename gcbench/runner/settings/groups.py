"""The keys of a run and of a benchmark, group by group, with their ranges, defaults and marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import CoreSchema, core_schema
from typing_extensions import Self

from gcbench.core.fields import (
    Count,
    Natural,
    Needs,
    Neutral,
    NonNegative,
    Positive,
    Seed,
    Settings,
    Share,
    Text,
    example,
)


@dataclass(frozen=True)
class OneOf:
    """A mark of a text that is one of some, which are known only when the program runs."""

    choices: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.literal_schema([*self.choices])


@dataclass(frozen=True)
class Role:
    """A mark of a key that does not say what a run computes."""

    about: str


EXECUTION = Role("how and where a run executes")
BOOKKEEPING = Role("what a run writes and how it is monitored")
LENGTH = Role("changes when a run is extended")
ELSEWHERE = Role("where results go and what they are called")


# Keys that mean the same for any `_target_`; the class itself checks all others.
OF_ANY_TARGET = ("lr", "groups", "match", "hidden", "lr_scale", "interval")


def is_ours(target: Any) -> bool:
    """Return whether a class is gcbench's; keys of any other mean what only that class knows."""
    return target is None or str(target).startswith("gcbench.")


class OpenSettings(Settings):
    """The base class of groups that may have a `_target_`, and with it more keys than its fields.

    Of a class that is not gcbench's only the keys in OF_ANY_TARGET are checked. Without a
    `_target_` a `closed` group has only its fields.
    """

    model_config = ConfigDict(extra="allow")
    closed: ClassVar[bool] = True

    @property
    def target(self) -> str | None:
        """Return the name of the class, or None where `kind` names one."""
        return (self.model_extra or {}).get("_target_")

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, node: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(node, Mapping):
            return handler(node)
        if not is_ours(node.get("_target_")):
            handler({key: node[key] for key in OF_ANY_TARGET if key in node})
            return cls.of(node)
        made = handler(node)
        if cls.closed and made.target is None and made.model_extra:
            name, value = next(iter(made.model_extra.items()))
            problem: Any = {"type": "extra_forbidden", "loc": (name,), "input": value}
            raise ValidationError.from_exception_data(cls.__name__, [problem])
        return made


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


OTHER_NAMES = {"trainer.gpus": "trainer.workers"}  # what keys may be called, too


class TrainerSettings(Settings):
    """The keys of conf/trainer, with their defaults."""

    workers: Count = 2
    """workers over all nodes, also typed trainer.gpus; if more than there are devices, they run as
    virtual workers"""
    nodes: Annotated[Count, EXECUTION] = 1
    """nodes that share the workers evenly, what a Slurm job asks for; 1: under srun and torchrun,
    as many as these start on"""
    batch_size: Count = 32
    """samples per worker and step; for text, columns"""
    epochs: Annotated[Positive, LENGTH] = 20.0
    """passes over the data; 0.5 for half of one"""
    max_steps: Annotated[Count | None, example(100), LENGTH] = None
    """stop after so many steps; null: after `epochs`"""
    launcher: Annotated[Literal["auto", "local", "torchrun", "slurm", "virtual"], EXECUTION] = (
        "auto"
    )
    """where workers run: processes here (local), those that torchrun or srun (slurm) started, or
    all in one process (virtual)"""
    device: Annotated[Literal["auto", "cpu", "cuda"], EXECUTION] = "auto"
    """where tensors are; auto: GPUs where there are some"""
    backend: Annotated[Literal["auto", "nccl", "gloo"], EXECUTION] = "auto"
    """library of the collectives"""
    processes: Annotated[Count | None, example(2), EXECUTION] = None
    """processes that share the workers evenly; null: one per worker (virtual: one)"""
    threads: Annotated[Count | None, example(1), EXECUTION] = None
    """threads of each process on the CPU; null: cores / processes"""
    codec_backend: Annotated[Literal["auto", "eager", "compiled"], EXECUTION] = "auto"
    """codecs as they are, or compiled: C++ on a CPU, torch.compile on a GPU; auto: compiled where
    there is a compiler"""
    precision: Literal["fp32", "bf16"] = "fp32"
    """type of forward and backward (autocast); gradients, compression and updates stay fp32"""
    label_smoothing: Annotated[Share, example(0.1), Neutral(0.0)] = 0.0
    """share of a target that is spread over all classes, in training (not in tests) [Szegedy et
    al., CVPR 2016]"""
    channels_last: bool = True
    """true: convolutions in the channels-last memory layout"""
    compile: bool = False
    """true: torch.compile the model"""
    accumulate: Count = 1
    """micro-batches into which a worker's batch is split"""
    overlap: Annotated[bool | Literal["auto"], EXECUTION, Neutral(False)] = False
    """true: exchange under the backward pass, bucket by bucket (methods of scope tensor, one
    process per worker); auto: where that is possible and takes less time, by a trial"""
    bucket_mib: Annotated[Positive, EXECUTION, Needs("trainer.overlap", (True, "auto"))] = 25.0
    """MiB of gradients that an overlapped exchange takes at a time"""
    double_buffering: Annotated[bool, Neutral(False)] = False
    """true: exchange under the next step, with every update one step late (any method)"""
    log_every: Count = 50
    """steps between lines of metrics.jsonl"""
    eval_every: Count | None = 1
    """epochs between tests, and one at the end; null: no test at all"""
    eval_batch_size: Annotated[Count, Needs("trainer.eval_every", (1,))] = 256
    """samples of a test batch; of text, columns in which it is read"""
    tta: Annotated[bool, BOOKKEEPING] = False
    """true: at the end also scores by test-time augmentation, tta_accuracy and tta_loss: outputs
    are means over six views of an image, mirrored and shifted by a pixel [Jordan,
    arXiv:2404.00498]"""
    target: Annotated[float | None, example(95), BOOKKEEPING] = None
    """accuracy or, without one, perplexity or loss: the result says at which epoch, step, received
    bits and seconds tests first reached it, interpolated between two tests; the run goes on;
    null: none"""
    stop_at: Annotated[
        float | None,
        example(95),
        LENGTH,
        Neutral(None),
        Needs("trainer.eval_every", (1,)),
    ] = None
    """a target at which the run ends, by the first test that reaches it; the schedule stays that of
    the whole length; null: none"""
    error_every: Count | None = 50
    """steps between samples of the compression error, not counted in any time; null: none"""
    record_gradients: Annotated[list[Natural] | None, example([0, 100, 500]), EXECUTION] = None
    """steps whose gradients are written to gradients/ for gcbench bench; null: none"""
    checkpoint_steps: Annotated[Count | None, example(500), BOOKKEEPING] = None
    """steps between checkpoints; null: none by steps"""
    checkpoint_minutes: Annotated[Positive | None, BOOKKEEPING] = 10.0
    """minutes between checkpoints; null: none by time. SIGINT, SIGTERM, SIGHUP and SIGQUIT leave
    one too"""
    checkpoint_keep: Annotated[Count, BOOKKEEPING] = 2
    """checkpoints kept"""
    keep_weights: Annotated[bool | None, BOOKKEEPING] = None
    """weights.pt of a finished run, and the checkpoint at its end, from which it can be extended;
    null: each where it is below 200 MB"""
    max_restarts: Annotated[Natural, example(3), BOOKKEEPING] = 0
    """how often all processes of launcher=local start again from the last checkpoint after one has
    died"""
    timeout_seconds: Annotated[Positive, BOOKKEEPING] = 600.0
    """seconds that an exchange waits for a worker before the run fails, and says where it hangs"""
    drift_every: Annotated[Count | None, BOOKKEEPING] = 100
    """steps between checks that all replicas hold the same parameters, to the bit; null: none"""
    checksum: Annotated[bool, Neutral(False)] = False
    """true: 32 bits more a message, which name the worker whose bits were altered"""

    @property
    def goal(self) -> float | None:
        """Return the score of which a result says when it was first reached."""
        return self.stop_at if self.target is None else self.target


class OptimizerSettings(OpenSettings):
    """All keys of conf/optimizer; each file has the subset that its optimizer takes."""

    total = False

    kind: Literal["sgd", "powersgd", "adam", "adamw", "frozen_adam", "dion", "muon"]
    """torch.optim.SGD, Adam, AdamW or Muon, PowerSGD's (momentum after aggregation, x <- x - lr (d
    + m)), or that of 1-bit Adam or of Dion"""
    lr: Annotated[Positive, example(0.05)]
    """learning rate before the schedule; of a single worker with schedule.scale_by_workers"""
    momentum: Annotated[Share, example(0.9)] = 0.0
    """weight of the old momentum in the new; 0: none"""
    nesterov: bool = False
    """true: the step looks ahead, as in torch.optim.SGD"""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2, examples=[[0.9, 0.999]])]
    """decay rates of the running averages of the aggregated gradient and of its square"""
    eps: Annotated[Positive, example(1e-08)]
    """added to the root of the second moment"""
    weight_decay: Annotated[NonNegative, example(0.0001)]
    """share of a weight that is added to its gradient after aggregation (adamw, frozen_adam, dion
    and muon: times lr, taken off the weight); none on batch normalization"""
    freeze_steps: Annotated[Count, example(100)]
    """steps after which the variance is frozen; with onebit_adam, gradients are sent uncompressed
    in these steps"""
    updates_per_interval: Annotated[Count | None, example(16), Neutral(None)]
    """updates of the variance after which the steps from one to the next double; null: it moves in
    every step until it stands still [0/1 Adam, section 5]"""
    bias_correction: Annotated[bool, Neutral(True)]
    """frozen_adam: true: moments are divided by 1 - beta^t, as in Adam; 1-bit Adam and 0/1 Adam
    have none [1-bit Adam, equation 1; 0/1 Adam, algorithm 1]"""
    adjust_lr_fn: Literal["original", "match_rms_adamw"]
    """what the rate of an n x m matrix is multiplied by: sqrt(max(1, n / m)) [Jordan et al., 2024],
    or 0.2 sqrt(max(n, m)), so that rates of AdamW fit [Liu et al., arXiv:2502.16982]"""
    ns_steps: Annotated[int, Field(ge=1, lt=100, examples=[5])]
    """steps of Newton-Schulz's iteration, which makes a matrix about orthogonal"""
    groups: Annotated[
        list[dict[str, Any]],
        example([{"match": "bias|norm", "weight_decay": 0}]),
        Neutral([]),
    ] = []
    """parameters with options of their own: `match`, a regular expression in their names, `hidden`,
    whether they are matrices other than an embedding and the output layer, lr_scale, and any option
    of the optimizer, or `kind` (or _target_) of another one and its options; the first match
    counts"""


class ParameterGroup(OptimizerSettings):
    """The keys of an entry of optimizer.groups, beside the options of the group's optimizer."""

    closed = False  # its optimizer refuses an option that it lacks

    match: Annotated[str, Field(title="a text in quotes, as in match:'1'")]
    """a regular expression in the names of the group's parameters"""
    hidden: bool
    """whether they are matrices other than an embedding and the output layer"""
    lr_scale: NonNegative
    """factor of the optimizer's rate"""


class ScheduleSettings(OpenSettings):
    """The keys of conf/schedule, with their defaults."""

    kind: Literal["constant", "steps", "cosine", "linear"] = "constant"
    """the rate stays, falls at milestones, along half a cosine to zero, or along a line to
    end_factor"""
    milestones: Annotated[
        list[Annotated[float, Field(gt=0, lt=1)]] | None,
        example([0.5, 0.75]),
        Needs("schedule.kind", ("steps",)),
    ] = None
    """fractions of the run after which the rate is multiplied by gamma"""
    gamma: Annotated[NonNegative, Needs("schedule.kind", ("steps",))] = 0.1
    """factor of the rate at each milestone"""
    end_factor: Annotated[
        NonNegative, example(0.07), Needs("schedule.kind", ("linear",)), Neutral(0.0)
    ] = 0.0
    """share of the rate to which the line of kind=linear falls, from the end of the warm-up to that
    of the run"""
    warmup_epochs: Annotated[NonNegative, example(5)] = 0.0
    """epochs in which the rate rises linearly"""
    warmup_start: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        example(0.1),
        Needs("schedule.warmup_epochs", (5,)),
        Neutral(None),
    ] = None
    """fraction of the full rate at step 0; null: the rate of a single worker with scale_by_workers,
    else about 0"""
    scale_by_workers: bool = False
    """true: the rate times the number of workers"""
    interval: Annotated[Literal["step", "epoch"], Neutral("step")] = "step"
    """when the rate changes, or step() of schedule._target_ is called: after every update, or every
    epoch"""


class EstimatorSettings(OpenSettings):
    """All keys of conf/estimator; each file has the subset that its estimator takes."""

    total = False

    epoch_steps: Annotated[Count | None, example(100)]
    """steps T from one full gradient to the next; null: a pass over the data [QSGD, section 3.3]"""
    penalty: Annotated[NonNegative, example(0.01)]
    """weight of ||x||^2 / 2 in what is minimized; takes the place of optimizer.weight_decay"""
    every: Annotated[Count, example(8)] = 1
    """steps H that a worker takes by itself from one exchange of a parameter to the next [Douillard
    et al., arXiv:2311.08105]"""
    fragments: Annotated[Count, example(4)]
    """parts of the model, each exchanged every H steps at an offset of its own [Douillard et al.,
    arXiv:2501.18512]"""
    pattern: Annotated[Literal["sequential", "strided"], Neutral("sequential")]
    """fragments of consecutive tensors with about as many values, or layers dealt out in turn
    [Douillard et al., arXiv:2501.18512, section 2.2]"""
    delay: Annotated[Natural, example(1), Neutral(0)] = 0
    """steps tau that workers take while a fragment is exchanged [same, section 2.3]"""
    mixing: Annotated[Share, example(0.5), Neutral(0.0)]
    """weight alpha of a worker's own parameters where it takes the shared ones; 0: it takes these
    [same, section 2.3]"""
    outer_lr: Annotated[Positive, example(0.7)]
    """rate of the outer optimizer, which applies the aggregated differences"""
    outer_momentum: Annotated[Share, example(0.9)]
    """weight of the outer optimizer's old momentum in the new; 0: none"""
    outer_nesterov: bool
    """true: the outer step looks ahead, as in torch.optim.SGD; needs momentum"""
    clip_norm: Annotated[Positive | None, example(1)]
    """2-norm to which a worker scales its gradient down before its own step; null: none"""
    max_every: Annotated[Count, example(16)]
    """most steps H from one exchange to the next, once the variance is frozen [0/1 Adam, section
    5]"""
    double_steps: Annotated[Count, example(1000)]
    """steps with a frozen variance after which the steps between exchanges double [0/1 Adam,
    section 5]"""
