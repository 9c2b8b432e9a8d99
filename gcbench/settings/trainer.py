"""The keys of conf/trainer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from gcbench.knobs import Knob
from gcbench.settings.missing import MISSING


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


@dataclass
class TrainerSettings:
    gpus: Annotated[
        int,
        Knob(
            "workers over all nodes; if more than there are devices, they run as virtual workers",
            unit="a number of workers",
            at_least=1,
            example=2,
        ),
    ] = MISSING
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
            "samples per worker and step; for text, columns",
            unit="a number of samples",
            at_least=1,
            example=32,
        ),
    ] = MISSING
    epochs: Annotated[
        float,
        Knob("passes over the data; 0.5 for half of one", unit="a number", above=0, example=20),
    ] = MISSING
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
            "processes that share the workers evenly; null: one per worker (virtual: one)",
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
            "codecs as they are, or compiled: C++ on a CPU, torch.compile on a GPU; auto: compiled "
            "where there is a compiler"
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
            "one process per worker); auto: where that is possible and takes less time, by a trial",
            texts=("auto",),
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
    tta: Annotated[
        bool,
        Knob(
            "true: at the end also scores by test-time augmentation, tta_accuracy and tta_loss: "
            "outputs are means over six views of an image, mirrored and shifted by a pixel",
            source="Jordan, arXiv:2404.00498",
        ),
    ] = False
    target: Annotated[
        float | None,
        Knob(
            "accuracy or, without one, perplexity or loss: the result says at which epoch, step, "
            "received bits and seconds tests first reached it, interpolated between two tests; the "
            "run goes on; null: none",
            unit="a score",
            example=95,
        ),
    ] = None
    error_every: Annotated[
        int | None,
        Knob(
            "steps between samples of the compression error, not counted in any time; null: none",
            unit="a number of steps",
            at_least=1,
            example=50,
        ),
    ] = 50
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
    ] = 10.0
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
