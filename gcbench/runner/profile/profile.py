"""`gcbench.profile`: two lines around a training loop that say whether compression pays in it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _DEFAULT_FIRST_BUCKET_BYTES
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import Self

from gcbench.core.comm.ddp import DdpHook
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import use_codecs
from gcbench.core.library.fsdp import is_carried
from gcbench.runner.predict.job import Bucket, Job, MethodOnJob, make
from gcbench.runner.profile.coding import METHODS, code
from gcbench.runner.profile.probe import probe
from gcbench.runner.profile.table import table_of
from gcbench.runner.profile.watch import DdpWatch, FsdpWatch, Times
from gcbench.runner.records.environment import describe_machine

log = logging.getLogger("gcbench")


def profile(module: nn.Module, methods: Sequence[str] = METHODS) -> Profile:
    """Measure a training loop, and predict in which steps compression would shorten it.

        with gcbench.profile(ddp) as profile:
            for inputs, targets in islice(loader, 20):
                ...  # the loop as it is
        print(profile)
        profile.save("job.json")  # gcbench predict pays profile=job.json network=1gbit workers=64

    In the loop, hooks note when gradients are ready and when a step is over, and copy the gradients
    of a few steps. After it, the group's collectives are timed with short messages, and each method
    codes the copied gradients on this device, without sending them. No gradient is changed, and the
    module is left as it was, also if the loop raises an exception.

    Args:
        module: a DistributedDataParallel, or a model on which `fully_shard` was called.
        methods: as they are typed, `"powersgd rank=2"`; `none` and `bf16` are always among them.

    Returns:
        A context manager. After its block, `str(profile)` is the table, `profile.job` has the
        numbers, and `profile.save(file)` keeps them.

    Raises:
        ConfigError: if the module is neither, or has another hook; if there is no process group;
            after the block, if it took fewer than five steps, or workers took different numbers.
    """
    return Profile(module, methods)


class Profile:
    """The profile of a loop: see `profile`."""

    job: Job

    def __init__(self, module: nn.Module, methods: Sequence[str]) -> None:
        _refuse(module)
        self._module = module
        self._methods = [*dict.fromkeys(("none", "bf16", *methods))]
        for typed in self._methods:
            make(typed)  # refuses a mistyped one before the loop

    def __enter__(self) -> Self:
        fsdp = isinstance(self._module, FSDPModule)
        self._watch = FsdpWatch(self._module) if fsdp else DdpWatch(self._module)  # type: ignore[arg-type]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        until = self._watch.now
        self._watch.remove()
        if error is not None:
            return
        self.job = self._measure(until)

    def __str__(self) -> str:
        if not hasattr(self, "job"):
            return "no profile: the loop has not ended"
        return table_of(self.job)

    def save(self, path: str | Path) -> None:
        """Write what was measured to a file of JSON, on the first worker."""
        if self._watch.group.rank() == 0:
            self.job.save(path)

    def _measure(self, until: Any) -> Job:
        watch = self._watch
        steps = [0] * watch.group.size()
        dist.all_gather_object(steps, len(watch.steps), group=watch.group)
        if len(set(steps)) > 1:
            raise ConfigError(
                f"gcbench.profile: workers took {', '.join(map(str, steps))} steps in the block; "
                "let all take as many"
            )
        times = watch.times(until)
        if not watch.gradients:
            raise ConfigError(
                f"gcbench.profile: the loop took {times.steps} steps, too few to copy a gradient; "
                "let it take 20"
            )
        log.info("gcbench.profile: timing collectives of %d workers", watch.group.size())
        probes = probe(watch.group, watch.device)
        gradients = watch.gradients
        shapes = {name: tuple(g.shape[1:]) for name, g in gradients[0].items()}
        fsdp = isinstance(watch, FsdpWatch)
        use_codecs("auto", watch.device.type)
        coded = []
        for typed in self._methods:
            if fsdp and not is_carried(make(typed)):
                continue
            log.info("gcbench.profile: coding with %s", typed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                coded.append(code(typed, gradients))
        seconds = self._slowest(
            [times.step, times.step - times.exposed]  # the others wait for who computes longest
            + [x for one in coded for x in (one.aggregate_seconds, one.decode_seconds)]
        )
        machine = describe_machine()
        return Job(
            title=f"{_name_of(self._module)} on {next(iter(machine.gpus), machine.cpu)}",
            kind="fsdp" if fsdp else "ddp",
            workers=watch.group.size(),
            steps=times.steps,
            step_seconds=seconds[0],
            exposed_seconds=max(0.0, seconds[0] - seconds[1]),
            shapes=shapes,
            buckets=_buckets(times, shapes, watch.bucket_bytes),
            probes={str(name): dict(sizes) for name, sizes in probes.items()},
            methods=tuple(
                MethodOnJob(one.typed, seconds[2 + 2 * i], seconds[3 + 2 * i], one.vnmse)
                for i, one in enumerate(coded)
            ),
        )

    def _slowest(self, seconds: Sequence[float]) -> list[float]:
        """Return the largest of all workers, which the others wait for."""
        slowest = torch.tensor(seconds, dtype=torch.float64, device=self._watch.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=self._watch.group)
        return [float(x) for x in slowest]


def _refuse(module: nn.Module) -> None:
    """Raise ConfigError for what cannot be profiled."""
    if not dist.is_initialized():
        raise ConfigError(
            "gcbench.profile: there is no process group; start the loop with torchrun, and call "
            "dist.init_process_group() or gcbench.join()"
        )
    if not isinstance(module, DistributedDataParallel | FSDPModule):
        raise ConfigError(
            f"gcbench.profile: this {type(module).__name__} exchanges no gradients; type "
            "profile(DistributedDataParallel(model)), or a model on which fully_shard was called"
        )
    if dist.get_world_size() < 2:
        raise ConfigError(
            "gcbench.profile: one process exchanges nothing; start several with torchrun "
            "--nproc-per-node 2"
        )
    if isinstance(module, DistributedDataParallel):
        states = [state for _, state in module._comm_hooks]
        if any(not isinstance(hook, DdpHook) or hook.receiver for hook in states):
            raise ConfigError(
                "gcbench.profile: this DistributedDataParallel has a communication hook; type "
                "handle.remove() where it is a compressor's, or profile it without "
                "register_comm_hook"
            )


def _name_of(module: nn.Module) -> str:
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return type(inner).__name__.removeprefix("FSDP")


def _buckets(
    times: Times, shapes: dict[str, tuple[int, ...]], bucket_bytes: int
) -> tuple[Bucket, ...]:
    """Return the buckets that DDP fills in the order in which gradients are ready."""
    buckets, values, limit = [], 0, _DEFAULT_FIRST_BUCKET_BYTES if bucket_bytes else 0
    ready = sorted(times.ready.items(), key=lambda pair: pair[1])
    for i, (name, seconds) in enumerate(ready):
        values += prod(shapes[name])
        if 4 * values >= limit or i == len(ready) - 1:
            buckets.append(Bucket(values, max(0.0, seconds)))
            values, limit = 0, bucket_bytes
    return tuple(buckets)
