"""The keys of conf/trainer."""

from __future__ import annotations

from typing import Annotated, Literal

from gcbench.core.fields import (
    Count,
    Natural,
    Needs,
    Neutral,
    Positive,
    Settings,
    Share,
    example,
)
from gcbench.runner.settings.marks import BOOKKEEPING, EXECUTION, LENGTH

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
