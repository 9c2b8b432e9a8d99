"""The typed nodes of the configuration; standard library only, so that every room may read them.

Defaults live in conf/, beside a comment that says what the number means; the fields here are the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

MISSING = "???"  # OmegaConf's mark of a value that conf/ must give


class Launcher(Enum):
    auto = "auto"
    local = "local"
    torchrun = "torchrun"
    slurm = "slurm"
    virtual = "virtual"


class Device(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Backend(Enum):
    auto = "auto"
    nccl = "nccl"
    gloo = "gloo"


class CodecBackend(Enum):
    auto = "auto"
    eager = "eager"
    compiled = "compiled"


class Precision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class LogMode(Enum):
    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


class ScheduleKind(Enum):
    constant = "constant"
    steps = "steps"
    cosine = "cosine"


class OptimizerKind(Enum):
    sgd = "sgd"
    powersgd = "powersgd"


class ResumeMode(Enum):
    auto = "auto"
    never = "never"


class ResumeWorkers(Enum):
    refuse = "refuse"
    merge = "merge"


@dataclass
class TrainerSettings:
    gpus: int = MISSING  # type: ignore[assignment]
    nodes: int = 1
    batch_size: int = MISSING  # type: ignore[assignment]
    epochs: float = MISSING  # type: ignore[assignment]
    max_steps: int | None = None
    launcher: Launcher = Launcher.auto
    device: Device = Device.auto
    backend: Backend = Backend.auto
    processes: int | None = None
    threads: int | None = None
    codec_backend: CodecBackend = CodecBackend.auto
    precision: Precision = Precision.fp32
    channels_last: bool = True
    compile: bool = False
    accumulate: int = 1
    overlap: bool = False
    bucket_mib: float = 25.0
    double_buffering: bool = False
    log_every: int = 50
    eval_every: int | None = 1
    eval_batch_size: int = 256
    error_every: int | None = None
    record_gradients: list[int] | None = None
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = None
    checkpoint_keep: int = 2
    keep_weights: bool | None = None
    max_restarts: int = 0
    timeout_seconds: float = 600.0
    drift_every: int | None = 100
    checksum: bool = False


@dataclass
class OptimizerSettings:
    kind: OptimizerKind = MISSING  # type: ignore[assignment]
    lr: float = MISSING  # type: ignore[assignment]
    momentum: float = MISSING  # type: ignore[assignment]
    nesterov: bool = False
    weight_decay: float = 0.0


@dataclass
class ScheduleSettings:
    kind: ScheduleKind = MISSING  # type: ignore[assignment]
    milestones: list[float] | None = None
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    warmup_start: float | None = None
    scale_by_workers: bool = False


@dataclass
class LoggerSettings:
    mode: LogMode = MISSING  # type: ignore[assignment]
    project: str = "gcbench"
    entity: str | None = None
    group: str | None = None
    tags: list[str] | None = None


@dataclass
class ResumeSettings:
    mode: ResumeMode = MISSING  # type: ignore[assignment]
    workers: ResumeWorkers = ResumeWorkers.refuse
