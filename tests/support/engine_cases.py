"""A loop beside a run of the same configuration, both of them stopped half way and resumed."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Mapping
from typing import Any

import torch
from fsdp_cases import mesh
from gloo_pool import Process, pool
from library_cases import parameters, saved
from pipeline_cases import make_run
from sentence import SMALL, config_of
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gcbench
from gcbench.core.codecs.kernels import backend_in_use, keep_backend
from gcbench.core.codecs.noise import mix
from gcbench.runner.launch.instantiate import make_data, make_model
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.snapshot import restore, shared_content, worker_content

STEPS, STOP = 12, 7  # with local steps, workers have parameters of their own after 7
SHARDED = ("shards", "nodes")  # ways of fully_shard
BUCKET_MIB = 0.001  # 262 values, so that there are several
PLAIN = ("model.widths=[64]", "trainer.workers=2", "schedule=constant", "trainer.launcher=local")
SGD = (
    *"optimizer.lr=0.1 optimizer.momentum=0 optimizer.nesterov=false".split(),
    "optimizer.weight_decay=0",
)
ADAMW = ("optimizer=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.1")


def compare_with_run(
    choice: str,
    way: str,
    knobs: Mapping[str, Any],
    local: Mapping[str, Any] | None = None,
) -> None:
    """Check that a loop ends with a run's weights and bits, with `local` steps if there are any."""
    config = config_like(choice, way, knobs, local)
    in_loops = pool(2).run(in_a_loop, config, way, {**knobs, **(local or {})})
    for loop, run in zip(in_loops, pool(2).run(in_a_run, config, way), strict=True):
        assert all(map(torch.equal, loop[0], run[0])) and loop[1] == run[1] > 0


def config_like(
    choice: str,
    way: str,
    knobs: Mapping[str, Any],
    local: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Return the configuration of a run that does what a loop does."""
    # In a run these two have no short key, as they follow the optimizer.
    coded = {"momentum", "dense_steps"} if "momentum" in knobs and choice != "signum" else set()
    typed = {f"compressor.{key}" if key in coded else key: value for key, value in knobs.items()}
    typed |= {f"estimator.{key}": value for key, value in (local or {}).items()}
    typed |= {
        "overlap": {"trainer.overlap": True, "trainer.bucket_mib": BUCKET_MIB},
        "accumulate": {"trainer.accumulate": 2},
        # A single tensor, whose shards are the same in FSDP2's layout as in a run's.
        "shards": {"exchange": "scatter", "model": "linear", "model.bias": False},
    }.get(way, {})
    return config_of(
        *SMALL,
        *((PLAIN[1:] if way == "shards" else PLAIN) + (SGD if local is None else ADAMW)),
        *([] if local is None else ["estimator=local_steps"]),
        f"compressor={choice}",
        *(f"{key}={str(value).lower()}".replace(" ", "") for key, value in typed.items()),
    )


class Loop:
    """A loop as people write it, of the model, the data and the optimizer of a configuration."""

    def __init__(
        self, process: Process, config: RunConfig, way: str, knobs: dict[str, Any]
    ) -> None:
        self.config, self.rank, self.accumulate = config, process.rank, config.trainer.accumulate
        self.data, name, seed = make_data(config), config.choices["compressor"], config.seed
        torch.manual_seed(mix(seed) >> 1)
        self.model = make_model(config.model.as_dict(), self.data.shape, self.data.outputs)
        rate: Any = config.optimizer.as_dict()["lr"]
        self.trained: Any = self.model
        self.handle: Any
        if way == "local":
            self.optimizer: Any = torch.optim.AdamW(
                self.model.parameters(), rate, weight_decay=0.1, foreach=True
            )
            self.handle = gcbench.local_steps(
                self.model, self.optimizer, compressor=name, seed=seed, **knobs
            )
            return
        if way in SHARDED:
            meshes = mesh(way == "nodes")
            self.trained = fully_shard(self.model, mesh=meshes["gpu"])
            replicas = meshes["node"].get_group() if way == "nodes" else None
            self.handle = gcbench.compress(
                self.trained, name, seed=seed, replicas=replicas, **knobs
            )
            self.optimizer = torch.optim.SGD(self.model.parameters(), rate)
            return
        self.trained = DistributedDataParallel(self.model, bucket_cap_mb=BUCKET_MIB)
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate)
        if way == "comm_hook":
            self.handle, hook = gcbench.comm_hook(name, seed=seed, **knobs)
            self.trained.register_comm_hook(self.handle, hook)
        else:
            overlap = {"overlap": True} if way == "overlap" else {}
            self.handle = gcbench.compress(self.trained, name, seed=seed, **knobs, **overlap)

    def train(self, steps: range) -> None:
        for step in steps:
            inputs, targets = self.data.batch(
                epoch=0,
                step=step,
                worker=self.rank,
                workers=2,
                batch_size=self.config.trainer.batch_size,
                seed=self.config.seed,
            )
            self.optimizer.zero_grad()
            micro = zip(inputs.chunk(self.accumulate), targets.chunk(self.accumulate), strict=True)
            for i, (x, y) in enumerate(micro, 1):
                last = i == self.accumulate
                with contextlib.nullcontext() if last else self.trained.no_sync():
                    (cross_entropy(self.trained(x), y) / self.accumulate).backward()
            self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        """Return this process's part of the model's state."""
        state = self.model.state_dict()
        return {k: x.to_local() if isinstance(x, DTensor) else x for k, x in state.items()}

    def shared(self) -> list[Tensor]:
        if isinstance(self.trained, FSDPModule):
            return [p.full_tensor().detach().clone() for p in self.model.parameters()]  # type: ignore[operator]
        if isinstance(self.trained, DistributedDataParallel):
            return parameters(self.model)
        with self.handle.shared_parameters():
            return parameters(self.model)


def in_a_loop(
    process: Process, config: RunConfig, way: str, knobs: dict[str, Any]
) -> tuple[list[Tensor], int]:
    """Return the parameters after STEPS steps, and the bits that this worker sent.

    They are the same as if the loop had not been stopped.
    """
    before = Loop(process, config, way, knobs)
    before.train(range(STOP))
    state = saved([before.weights(), before.handle.state_dict()])
    before.train(range(STOP, STEPS))
    before.handle.state_dict()  # waits for an exchange that is under way
    expected = before.shared(), before.handle.bits_sent
    before.handle.remove()
    after = Loop(process, config, way, knobs)
    model, handle = torch.load(io.BytesIO(state))
    for x, y in zip(after.weights().values(), model.values(), strict=True):
        x.copy_(y)
    after.handle.load_state_dict(handle)
    after.train(range(STOP, STEPS))
    after.handle.state_dict()
    seen = after.shared(), after.handle.bits_sent
    after.handle.remove()
    assert all(map(torch.equal, seen[0], expected[0])) and seen[1] == expected[1]
    return seen


def in_a_run(process: Process, config: RunConfig, way: str) -> tuple[list[Tensor], int]:
    """Return what `in_a_loop` returns, of the runner itself."""
    run, progress = begin(process, config, way)
    for _ in range(STOP):
        train_step(run, progress)
    run.pipeline.settle(run, progress)
    contents = copy.deepcopy((shared_content(run, progress), [worker_content(run, progress, 0)]))
    run, progress = begin(process, config, way)
    restore(run, progress, *contents)
    for _ in range(STOP, STEPS):
        train_step(run, progress)
    run.pipeline.settle(run, progress)
    (totals,) = run.exchange.meter.totals_by_worker
    # FSDP2 itself gathers the weights of shards, where a run gathers the means.
    own = [total for kind, total in totals.items() if (way, kind[1]) != ("shards", "all_gather")]
    return parameters(run.replica.model), sum(total.sent_bits for total in own)


def begin(process: Process, config: RunConfig, way: str) -> tuple[Run, Progress]:
    run = make_run(process, config)
    progress = Progress.start(run)
    if way in SHARDED:  # whose seeds are those of the group 0 of parameters, and of the shard 0
        progress.kept.seed = mix(config.seed, 0, 0)
    return run, progress


def errors_in_a_loop(
    process: Process, config: RunConfig, knobs: dict[str, Any]
) -> tuple[float, float]:
    """Return the error and the cosine that a handle measured in the last of some steps."""
    loop = Loop(process, config, "plain", {**knobs, "error_every": 1})
    loop.train(range(STOP))
    return loop.handle.error(), loop.handle.cosine()


def train_compiled(process: Process, config: RunConfig) -> dict[bool, tuple[list[Tensor], int]]:
    """Return the parameters after some steps and the bits, by whether codecs were compiled."""
    trained = {}
    with keep_backend():
        for backend in ("eager", "compiled"):
            loop = Loop(process, config, "plain", {"codec_backend": backend})
            loop.train(range(STOP))
            trained[backend_in_use() != "eager"] = loop.shared(), loop.handle.bits_sent
    return trained
