"""The keys of a configuration: what each means, its range, and where it comes from.

Defaults lie in conf/. Standard library only, so that every room may read them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

from gcbench.knobs import Knob

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


class LoggerKind(Enum):
    wandb = "wandb"
    tensorboard = "tensorboard"
    csv = "csv"
    none = "none"


class LogMode(Enum):
    auto = "auto"
    online = "online"
    offline = "offline"
    disabled = "disabled"


class ScheduleKind(Enum):
    constant = "constant"
    steps = "steps"
    cosine = "cosine"
    linear = "linear"


class Interval(Enum):
    step = "step"
    epoch = "epoch"


class OptimizerKind(Enum):
    sgd = "sgd"
    powersgd = "powersgd"
    adam = "adam"
    adamw = "adamw"
    frozen_adam = "frozen_adam"
    dion = "dion"


class ResumeMode(Enum):
    auto = "auto"
    never = "never"


class ResumeWorkers(Enum):
    refuse = "refuse"
    merge = "merge"


@dataclass
class RunSettings:
    """The keys at the top of conf/config.yaml."""

    seed: Annotated[
        int,
        Knob(
            "seed of initial weights, order of samples, augmentation, dropout and rounding",
            unit="a seed",
            at_least=0,
            below=2**63,
            example=1,
        ),
    ]
    name: Annotated[
        str | None,
        Knob("name of the run's directory; null: made of the choices", unit="a name"),
    ]
    outputs: Annotated[str, Knob("folder for run directories", unit="a folder", example="outputs")]
    directory: Annotated[
        str | None,
        Knob(
            "directory of this run, or of a shorter one to extend; "
            "null: outputs/NAME+TYPED-sSEED-HASH",
            unit="a folder",
        ),
    ]
    rerun: Annotated[bool, Knob("true: run again what has a result already")]


@dataclass
class BenchSettings:
    """The keys of conf/bench.yaml."""

    sizes: Annotated[
        list[float],
        Knob(
            "values of the tensors to time on",
            unit="numbers of values",
            at_least=1,
            filled=True,
            example=[1000000, 10000000],
        ),
    ]
    draws: Annotated[
        list[Literal["normal", "laplace", "student"]],
        Knob("what the values are drawn from", example=["normal", "student"]),
    ]
    recorded: Annotated[
        str | None,
        Knob("a file that trainer.record_gradients wrote, instead of draws", unit="a file"),
    ]
    rounds: Annotated[
        int,
        Knob(
            "pairs of a copy and the work; medians count", unit="a number", at_least=1, example=15
        ),
    ]
    threads: Annotated[int, Knob("threads of each process", unit="a number", at_least=1, example=1)]
    device: Annotated[Device, Knob("where to time")]
    codec_backend: Annotated[
        Literal["compiled", "eager"], Knob("codecs fused by torch.compile, or not")
    ]
    workers: Annotated[
        list[float],
        Knob(
            "processes to time a whole step between, beside a dense one, by gloo, or NCCL and one "
            "a GPU; under torchrun or scripts/netlab, between those that it started",
            unit="numbers of processes",
            at_least=1,
            example=[2, 4],
        ),
    ]


@dataclass
class TrainerSettings:
    gpus: Annotated[
        int,
        Knob(
            "workers over all nodes; more than there are devices run as virtual workers",
            unit="a number of workers",
            at_least=1,
            example=2,
        ),
    ] = MISSING  # type: ignore[assignment]
    nodes: Annotated[
        int,
        Knob(
            "nodes that share the workers evenly, what a Slurm job asks for; 1: under srun and "
            "torchrun, as many as these start on",
            unit="a number of nodes",
            at_least=1,
            example=1,
        ),
    ] = 1
    batch_size: Annotated[
        int,
        Knob(
            "samples (columns of text, for language) a worker and step",
            unit="a number of samples",
            at_least=1,
            example=32,
        ),
    ] = MISSING  # type: ignore[assignment]
    epochs: Annotated[
        float,
        Knob("passes over the data; 0.5 for half of one", unit="a number", above=0, example=20),
    ] = MISSING  # type: ignore[assignment]
    max_steps: Annotated[
        int | None,
        Knob(
            "stop after so many steps; null: after `epochs`",
            unit="a number of steps",
            at_least=1,
            example=100,
        ),
    ] = None
    launcher: Annotated[
        Launcher,
        Knob(
            "where workers run: processes here (local), those that torchrun or srun (slurm) "
            "started, or all in one process (virtual)"
        ),
    ] = Launcher.auto
    device: Annotated[Device, Knob("where tensors are; auto: GPUs where there are some")] = (
        Device.auto
    )
    backend: Annotated[Backend, Knob("library of the collectives")] = Backend.auto
    processes: Annotated[
        int | None,
        Knob(
            "processes that share the workers evenly; null: one a worker (virtual: one)",
            unit="a number of processes",
            at_least=1,
            example=2,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Knob(
            "threads of each process on the CPU; null: cores / processes",
            unit="a number of threads",
            at_least=1,
            example=1,
        ),
    ] = None
    codec_backend: Annotated[
        CodecBackend,
        Knob(
            "codecs as they are, or fused by torch.compile; auto: compiled on a GPU, and on a CPU "
            "as soon as that is done in the background, where 30 s of coding or more are ahead"
        ),
    ] = CodecBackend.auto
    precision: Annotated[
        Precision,
        Knob(
            "type of forward and backward (autocast); gradients, compression and updates stay fp32"
        ),
    ] = Precision.fp32
    label_smoothing: Annotated[
        float,
        Knob(
            "share of a target that is spread over all classes, in training (not in tests)",
            unit="a share",
            at_least=0,
            below=1,
            example=0.1,
            source="Szegedy et al., CVPR 2016",
        ),
    ] = 0.0
    channels_last: Annotated[
        bool, Knob("true: convolutions in the channels-last memory layout")
    ] = True
    compile: Annotated[bool, Knob("true: torch.compile the model")] = False
    accumulate: Annotated[
        int,
        Knob(
            "micro-batches into which a worker's batch is split",
            unit="a number of micro-batches",
            at_least=1,
            example=4,
        ),
    ] = 1
    overlap: Annotated[
        bool | str,
        Knob(
            "true: exchange under the backward pass, bucket by bucket (methods of scope tensor, "
            "a process a worker); auto: where that is possible and takes less time, by a trial",
            words=("auto",),
        ),
    ] = False
    bucket_mib: Annotated[
        float,
        Knob(
            "MiB of gradients that an overlapped exchange takes at a time",
            unit="a number of MiB",
            above=0,
            example=25,
        ),
    ] = 25.0
    double_buffering: Annotated[
        bool,
        Knob("true: exchange under the next step, with every update one step late (any method)"),
    ] = False
    log_every: Annotated[
        int,
        Knob(
            "steps between lines of metrics.jsonl", unit="a number of steps", at_least=1, example=50
        ),
    ] = 50
    eval_every: Annotated[
        int | None,
        Knob(
            "epochs between tests, and one at the end; null: no test at all",
            unit="a number of epochs",
            at_least=1,
            example=1,
        ),
    ] = 1
    eval_batch_size: Annotated[
        int,
        Knob(
            "samples of a test batch; of text, columns in which it is read",
            unit="a number of samples",
            at_least=1,
            example=256,
        ),
    ] = 256
    error_every: Annotated[
        int | None,
        Knob(
            "steps between samples of the compression error, not counted in any time; null: none",
            unit="a number of steps",
            at_least=1,
            example=50,
        ),
    ] = None
    record_gradients: Annotated[
        list[int] | None,
        Knob(
            "steps whose gradients are written to gradients/ for gcbench bench; null: none",
            unit="steps",
            at_least=0,
            example=[0, 100, 500],
        ),
    ] = None
    checkpoint_steps: Annotated[
        int | None,
        Knob(
            "steps between checkpoints; null: none by steps",
            unit="a number of steps",
            at_least=1,
            example=500,
        ),
    ] = None
    checkpoint_minutes: Annotated[
        float | None,
        Knob(
            "minutes between checkpoints; null: none by time. SIGINT, SIGTERM, SIGHUP and SIGQUIT "
            "leave one too",
            unit="a number of minutes",
            above=0,
            example=10,
        ),
    ] = None
    checkpoint_keep: Annotated[
        int,
        Knob("checkpoints kept", unit="a number of checkpoints", at_least=1, example=2),
    ] = 2
    keep_weights: Annotated[
        bool | None,
        Knob(
            "weights.pt of a finished run, and the checkpoint at its end, from which it can be "
            "extended; null: each where it is below 200 MB"
        ),
    ] = None
    max_restarts: Annotated[
        int,
        Knob(
            "how often all processes of launcher=local start again from the last checkpoint after "
            "one has died",
            unit="a number of restarts",
            at_least=0,
            example=3,
        ),
    ] = 0
    timeout_seconds: Annotated[
        float,
        Knob(
            "seconds that an exchange waits for a worker before the run fails, and says where it "
            "hangs",
            unit="a number of seconds",
            above=0,
            example=600,
        ),
    ] = 600.0
    drift_every: Annotated[
        int | None,
        Knob(
            "steps between checks that all replicas hold the same parameters, to the bit; "
            "null: none",
            unit="a number of steps",
            at_least=1,
            example=100,
        ),
    ] = 100
    checksum: Annotated[
        bool,
        Knob("true: 32 bits more a message, which name the worker whose bits were altered"),
    ] = False


@dataclass
class OptimizerSettings:
    """The keys that the files of conf/optimizer bring, each file those that its class takes."""

    kind: Annotated[
        OptimizerKind,
        Knob(
            "torch.optim.SGD, Adam or AdamW, PowerSGD's (momentum after aggregation, "
            "x <- x - lr (d + m)), or that of 1-bit Adam or of Dion"
        ),
    ]
    lr: Annotated[
        float,
        Knob(
            "learning rate before the schedule; of a single worker with schedule.scale_by_workers",
            unit="a rate",
            above=0,
            example=0.05,
        ),
    ]
    momentum: Annotated[
        float,
        Knob(
            "weight of the old momentum in the new; 0: none",
            unit="a weight",
            at_least=0,
            example=0.9,
        ),
    ]
    nesterov: Annotated[bool, Knob("true: the step looks ahead, as in torch.optim.SGD")]
    betas: Annotated[
        list[float],
        Knob(
            "weights of the old moments of the aggregated gradient and of its square in the new",
            unit="two weights",
            at_least=0,
            below=1,
            example=[0.9, 0.999],
        ),
    ]
    eps: Annotated[
        float,
        Knob(
            "added to the root of the second moment", unit="a small number", above=0, example=1e-8
        ),
    ]
    weight_decay: Annotated[
        float,
        Knob(
            "share of a weight that is added to its gradient after aggregation (adamw, "
            "frozen_adam and dion: times lr, taken off the weight); none on batch normalization",
            unit="a weight",
            at_least=0,
            example=0.0001,
        ),
    ]
    freeze_steps: Annotated[
        int,
        Knob(
            "steps after which the variance stands still; with onebit_adam those that travel whole",
            unit="a number of steps",
            at_least=1,
            example=100,
        ),
    ]
    updates_per_interval: Annotated[
        int | None,
        Knob(
            "updates of the variance after which the steps from one to the next double; null: it "
            "moves in every step until it stands still",
            unit="a number of updates",
            at_least=1,
            example=16,
            source="0/1 Adam, section 5",
        ),
    ]
    groups: Annotated[
        list[dict[str, Any]],
        Knob(
            "parameters with options of their own: `match`, a regular expression in their names, "
            "lr_scale, and any option of the optimizer; the first match counts",
            unit="groups",
            example=[{"match": "bias|norm", "weight_decay": 0}],
        ),
    ]


EpochSteps = Annotated[
    int | None,
    Knob(
        "steps T from one full gradient to the next; null: a pass over the data",
        unit="a number of steps",
        at_least=1,
        example=100,
        source="QSGD, section 3.3",
    ),
]
Penalty = Annotated[
    float,
    Knob(
        "weight of ||x||^2 / 2 in what is minimized; takes the place of optimizer.weight_decay",
        unit="a weight",
        at_least=0,
        example=0.01,
    ),
]
Every = Annotated[
    int,
    Knob(
        "steps H that a worker takes by itself from one exchange of a parameter to the next",
        unit="a number of steps",
        at_least=1,
        example=8,
        source="Douillard et al., arXiv:2311.08105",
    ),
]
Fragments = Annotated[
    int,
    Knob(
        "parts of the model, each exchanged every H steps at an offset of its own",
        unit="a number of fragments",
        at_least=1,
        example=4,
        source="Douillard et al., arXiv:2501.18512",
    ),
]
OuterLr = Annotated[
    float,
    Knob(
        "rate of the outer optimizer, which applies the aggregated differences",
        unit="a rate",
        above=0,
        example=0.7,
    ),
]
OuterMomentum = Annotated[
    float,
    Knob(
        "weight of the outer optimizer's old momentum in the new; 0: none",
        unit="a weight",
        at_least=0,
        example=0.9,
    ),
]
OuterNesterov = Annotated[
    bool, Knob("true: the outer step looks ahead, as in torch.optim.SGD; needs momentum")
]
InnerClipNorm = Annotated[
    float | None,
    Knob(
        "2-norm to which a worker scales its gradient down before its own step; null: none",
        unit="a norm",
        above=0,
        example=1,
    ),
]


MaxEvery = Annotated[
    int,
    Knob(
        "most steps H from one exchange to the next, once the variance is frozen",
        unit="a number of steps",
        at_least=1,
        example=16,
        source="0/1 Adam, section 5",
    ),
]
DoubleSteps = Annotated[
    int,
    Knob(
        "steps with a frozen variance after which the steps between exchanges double",
        unit="a number of steps",
        at_least=1,
        example=1000,
        source="0/1 Adam, section 5",
    ),
]


@dataclass
class EstimatorSettings:
    """The keys that the files of conf/estimator bring, each file those that its class takes."""

    epoch_steps: EpochSteps
    penalty: Penalty
    every: Every
    fragments: Fragments
    outer_lr: OuterLr
    outer_momentum: OuterMomentum
    outer_nesterov: OuterNesterov
    clip_norm: InnerClipNorm
    max_every: MaxEvery
    double_steps: DoubleSteps


@dataclass
class ScheduleSettings:
    kind: Annotated[
        ScheduleKind,
        Knob(
            "the rate stays, falls at milestones, along half a cosine to zero, or along a line to "
            "end_factor"
        ),
    ] = MISSING  # type: ignore[assignment]
    milestones: Annotated[
        list[float] | None,
        Knob(
            "fractions of the run after which the rate is multiplied by gamma",
            unit="fractions of the run",
            above=0,
            below=1,
            example=[0.5, 0.75],
        ),
    ] = None
    gamma: Annotated[
        float,
        Knob("factor of the rate at each milestone", unit="a factor", at_least=0, example=0.1),
    ] = 0.1
    end_factor: Annotated[
        float,
        Knob(
            "share of the rate to which the line of kind=linear falls, from the end of the "
            "warm-up to that of the run",
            unit="a share of the rate",
            at_least=0,
            example=0.07,
        ),
    ] = 0.0
    warmup_epochs: Annotated[
        float,
        Knob(
            "epochs in which the rate rises linearly",
            unit="a number of epochs",
            at_least=0,
            example=5,
        ),
    ] = 0.0
    warmup_start: Annotated[
        float | None,
        Knob(
            "fraction of the full rate at step 0; null: the rate of a single worker with "
            "scale_by_workers, else about 0",
            unit="a fraction of the full rate",
            at_least=0,
            at_most=1,
            example=0.1,
        ),
    ] = None
    scale_by_workers: Annotated[bool, Knob("true: the rate times the number of workers")] = False
    interval: Annotated[
        Interval,
        Knob(
            "when the rate changes, or step() of schedule._target_ is called: after every update, "
            "or every epoch"
        ),
    ] = Interval.step


@dataclass
class LoggerSettings:
    kind: Annotated[
        LoggerKind,
        Knob(
            "where metrics go besides metrics.jsonl: Weights & Biases, event files of TensorBoard, "
            "a table of comma-separated values, or nowhere; the other keys are of W&B"
        ),
    ] = MISSING  # type: ignore[assignment]
    mode: Annotated[
        LogMode,
        Knob("Weights & Biases; auto: online where an API key is configured, else offline"),
    ] = MISSING  # type: ignore[assignment]
    project: Annotated[str, Knob("project of W&B", unit="a name")] = "gcbench"
    entity: Annotated[str | None, Knob("team or user of W&B; null: yours", unit="a name")] = None
    group: Annotated[str | None, Knob("group of W&B; null: the name of the run", unit="a name")] = (
        None
    )
    tags: Annotated[
        list[str] | None, Knob("tags of W&B; null: the choices and what was typed", unit="names")
    ] = None


@dataclass
class ResumeSettings:
    mode: Annotated[
        ResumeMode,
        Knob("continue from the directory's checkpoint where it has one, or start anew"),
    ] = MISSING  # type: ignore[assignment]
    workers: Annotated[
        ResumeWorkers,
        Knob(
            "with another number of workers than before: refuse, or each takes the mean residual "
            "of those whose place it has"
        ),
    ] = ResumeWorkers.refuse
