"""The types of result.json, which holds the configuration and the outcome of a run.

`Result` is checked strictly when it is read, as files come from other machines and other people:
a bool is not taken for a number, nor a number for text, and errors name what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, computed_field

from gcbench.runner.kept_names import with_todays_names

SCHEMA_VERSION: Final = 2
BITS_PER_MIB: Final = 8 * 2**20

# The phases that reports read by name.
PHASES = ("data", "forward", "backward", "encode", "exchange", "wait", "decode", "update", "step")

Status = Literal["done", "diverged", "interrupted", "failed"]
Number = float | None  # None: not finite, which JSON cannot represent


class Record(BaseModel):
    """The base class of all parts of a result: immutable, with strictly checked types."""

    model_config = ConfigDict(strict=True, frozen=True, protected_namespaces=())


def _check_targets(config: dict[str, Any]) -> dict[str, Any]:
    for key, target in _targets("config", config):
        if not isinstance(target, str):
            raise ValueError(f"its {key} is {target!r:.60}")
    return config


def _targets(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield all `_target_` in a configuration, with their keys."""
    for name, part in node.items() if isinstance(node, dict) else enumerate(node):
        if name == "_target_":
            yield f"{key}.{name}", part
        elif isinstance(part, dict | list):
            yield from _targets(f"{key}.{name}", part)


Configuration = Annotated[dict[str, Any], AfterValidator(_check_targets)]


def in_todays_names(data: Any) -> Any:
    """Return a record, which has the names of the day when it was kept, with those of today."""
    if not isinstance(data, Mapping) or not isinstance(config := data.get("config"), dict):
        return data
    return {**data, "config": with_todays_names(config)}


class _Optimizer(Record):
    lr: float


class _Trainer(Record):
    workers: int
    batch_size: int


class _Configuration(Record):
    seed: int
    name: str | None = None
    model: dict[str, Any]
    dataset: dict[str, Any]
    compressor: dict[str, Any]
    optimizer: _Optimizer
    trainer: _Trainer


class _Choices(Record):
    model: str
    dataset: str
    compressor: str
    budget: str


class ReadByName(Record):
    """The keys that reports read by name from the two open dictionaries of a result."""

    choices: _Choices
    config: _Configuration


def first_problem(error: ValidationError) -> str:
    """Return the first thing that is missing or has another type."""
    problem = error.errors()[0]
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "value_error" and key == "config":
        return str(problem["ctx"]["error"])
    if problem["type"] == "missing" or problem["input"] is None:
        return f"without {key}"
    return f"its {key} is {problem['input']!r:.60}"


def _check_time(text: str) -> str:
    datetime.fromisoformat(text)
    return text


Time = Annotated[str, AfterValidator(_check_time)]  # UTC, ISO 8601


class Bits(Record):
    """Bits that one worker sent, or that went over its link."""

    per_worker: float  # mean over workers, whole run
    per_worker_max: float
    per_step: float  # mean over all steps, including those without an exchange
    per_epoch_mib: float
    dense_per_step: float  # what fp32 gradients would take
    ratio: Number  # dense_per_step / per_step; None: nothing was sent
    bf16_ratio: Number = None  # the same of bf16 gradients, which take half of dense_per_step


class BitsBetweenNodes(Record):
    """Bits that all workers of a node together sent to other nodes."""

    per_node: float  # mean over nodes, whole run
    per_step: float
    ratio: Number  # compared with one fp32 gradient per node


class Collective(Record):
    """Traffic of one kind of collective over the whole run, means over workers."""

    level: str
    collective: str
    workers: int
    messages: int
    sent_bits: float
    received_bits: float
    wire_bits: float


class Phase(Record):
    """Seconds of one phase of a step."""

    mean: float
    max: float  # of the slowest process


class Target(Record):
    """When a run first reached `trainer.target`, between two tests, and what it had spent."""

    score: str
    value: float
    step: Number = None  # None: never reached
    epoch: Number = None
    received_bits: Number = None  # by a worker from others, as in bits_wire
    seconds: Number = None  # None: not timed, too


class CompressionError(Record):
    """Distance of what workers got, y, from the mean x of what they coded; over sampled steps."""

    relative: Number  # |y - x| / |x| in 2-norms
    vnmse: Number = None  # |y - x|^2 / |x|^2, the vector-normalized mean squared error
    cosine: Number  # of x and y
    samples: int
    direction: bool = False  # the update has no scale, as signs have none, and thus no errors


class Network(Record):
    """The network of the collectives; an emulated one has the keys of its configuration too."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")
    emulated: bool
    link: str | None = None  # the name of a real one, from GCBENCH_LINK


class Git(Record):
    """Commit of gcbench at the first start; None where there is no repository."""

    commit: str | None
    dirty: bool | None  # whether there were uncommitted changes at any start
    date: str | None = None  # of the commit; None where an older gcbench recorded none
    later_commits: list[str] = []  # other commits with which the run was continued


class Extended(Record):
    """The end of a shorter run that became this one."""

    from_step: int
    from_epoch: float


class Resharded(Record):
    """The step from which a run continued with another number of workers."""

    from_step: int
    workers: int  # their number up to that step


class Logged(Record):
    """The place where a logger has put the run's numbers, besides the run's own files."""

    logger: Literal["wandb", "tensorboard", "csv"]
    id: str | None = None  # of the W&B run, the same when a run is continued
    url: str | None = None  # of the W&B run; None: offline
    path: str | None = None  # relative to result.json; offline W&B has a folder per start


class Machine(Record):
    """The machine of the first process."""

    hostname: str | None = None
    platform: str | None = None
    cpu: str | None = None
    cpu_capability: str | None = None  # the instruction set that torch uses, such as AVX2
    aten_cpu_capability: str | None = None  # what ATEN_CPU_CAPABILITY asks for
    cores: int | None = None
    memory_gib: float | None = None
    gpus: list[str] = []


class Environment(Record):
    """The machine, the software and the time of a measurement."""

    versions: dict[str, str | None] = {}  # package to version; None: not installed
    git: Git | None = None
    machine: Machine | None = None
    device: str | None = None  # cpu or cuda; None: unknown
    finished: Time


class _Trained(Record):
    """The fields that a result has if its workers wrote it."""

    workers: int
    processes: int
    launcher: str
    device: str
    parameters: int
    steps: int
    steps_per_epoch: int
    bits_sent: Bits


class Result(Environment):
    """The content of result.json; fields after `config` are None if unknown or not applicable."""

    schema_version: Literal[2] = SCHEMA_VERSION
    identity: str  # equal for runs of the same computation, whatever seed, name and machine
    status: Status
    reason: str | None
    experiment: str | None
    choices: dict[str, str]  # group to choice
    config: Configuration

    workers: int | None = None  # None: no worker could write a result
    processes: int | None = None
    launcher: str | None = None
    backend: str | None = None
    codec_backend: str | None = None
    compiled_from_step: int | None = None  # in an older gcbench, the first with compiled codecs
    codec_sums: str | None = None  # by eager | native | compiled code, or "native, then eager"
    # With trainer.overlap=auto: a step's seconds with overlap over those without, in the trial.
    overlap_ratio: Number = None
    network: Network | None = None
    threads: int | None = None
    oversubscribed: bool = False  # more processes than cores
    parameters: int | None = None
    steps: int | None = None
    epochs: float | None = None
    steps_per_epoch: int | None = None
    test: dict[str, Number] | None = None  # last scores, and the best
    target: Target | None = None  # None: no trainer.target
    bits_sent: Bits | None = None  # the payload that a worker hands to collectives
    bits_wire: Bits | None = None  # what it receives for that, and in the mean sends or passes on
    bits_between_nodes: BitsBetweenNodes | None = None
    collectives: list[Collective] = []
    shannon_bits_per_step: Number = None
    analytic_ratio: Number = None  # by the count of the method's paper
    compressed_share: Number = None  # the part of the gradient's values that is compressed
    seconds: dict[str, Phase] | None = None  # per step, by phase; None: not timed
    compression_error: CompressionError | None = None
    tokens_per_sample: int | None = None  # of a text
    peak_mib: Number = None  # memory of the process that took most; on a GPU, of its tensors
    state_mib: Number = None  # of a worker, in which the compressor remembers
    estimator: dict[str, Any] | None = None
    extended: list[Extended] = []
    resharded: list[Resharded] = []
    weights: str | None = None  # file beside result.json
    logged: Logged | None = None
    started: Time
    resumed_step: int = 0  # the step from which it continued at `started`

    @classmethod
    def parse(cls, data: Any) -> Result:
        """Return the result in `data`, from JSON or W&B.

        Raises ValueError that says what is wrong.
        """
        if not isinstance(data, Mapping) or "schema_version" not in data:
            raise ValueError("not the result of a gcbench run")
        if (version := data["schema_version"]) != SCHEMA_VERSION:
            raise ValueError(
                f"schema_version {version} is not what this gcbench reads ({SCHEMA_VERSION})"
            )
        data = in_todays_names(data)
        try:
            ReadByName.model_validate(data)
            if data.get("workers") is not None:
                _Trained.model_validate(data)
            result = cls.model_validate(data)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
        timed = result.seconds
        if timed is not None and (missing := [p for p in PHASES if p not in timed]):
            raise ValueError(f"without seconds.{missing[0]}")
        return result

    @computed_field  # type: ignore[prop-decorator]
    @property
    def samples_per_second(self) -> float | None:
        """Return the samples of all workers in a second of steps; None if these are not timed."""
        if self.seconds is None or self.workers is None:
            return None
        batch: int = self.config["trainer"]["batch_size"]
        return self.workers * batch / self.seconds["step"].mean

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_second(self) -> float | None:
        """Return the tokens of these samples; None if they are no text."""
        rate, tokens = self.samples_per_second, self.tokens_per_sample
        return rate * tokens if rate and tokens else None

    @property
    def has_virtual_workers(self) -> bool:
        """Return whether processes had several workers each, in which case nothing is timed."""
        return (self.workers or 0) > (self.processes or 0)

    @property
    def has_emulated_times(self) -> bool:
        """Return whether it was timed on an emulated network, which follows the cost model."""
        return bool(self.seconds and self.network and self.network.emulated)

    @property
    def finished_minute(self) -> str:
        """Return when it ended, for example 2026-01-31 12:34."""
        return self.finished.replace("T", " ")[:16]

    @property
    def cores(self) -> int:
        """Return the number of cores that computed, or of processes if each has a GPU."""
        threads = self.threads if self.device == "cpu" else 1
        return (self.processes or 1) * (threads or 1)

    @property
    def duration(self) -> float:
        """Return seconds from the start, or from the last continuation, to the end."""
        start, end = (datetime.fromisoformat(time) for time in (self.started, self.finished))
        return (end - start).total_seconds()

    @property
    def steps_taken(self) -> int:
        """Return the number of steps since `started`."""
        return (self.steps or 0) - self.resumed_step
