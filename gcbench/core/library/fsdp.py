"""A compressor for FSDP2's parameter groups, and one for their reduce-scatter."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard

from gcbench.core.codecs.noise import mix
from gcbench.core.comm.fsdp import FlatGradient, Part
from gcbench.core.compressor import Compressor, State
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.shards import shard_exchange
from gcbench.core.library.compression import JointCompression, Typed
from gcbench.core.library.exchange import Kept
from gcbench.core.library.saved import mean_of, shared_part, worker_part
from gcbench.core.library.states import by_name, read_kept
from gcbench.core.library.turns import OtherParameters, Turns, reshard
from gcbench.core.methods.ef21 import EF21
from gcbench.core.parameters import Shape, name_without_wrappers, refuse_complex, refuse_sparse
from gcbench.core.wrappers.virtual import parts_of


@dataclass
class FlatKept(Kept):
    """The state of a parameter group that is exchanged as one flat tensor."""

    turns: Turns = field(kw_only=True)


class FsdpCompression(JointCompression):
    """A compressor that sees each parameter group's gradient when FSDP reduces it."""

    def __init__(
        self,
        module: nn.Module,
        typed: Typed,
        replicas: dist.ProcessGroup | None,
        agree: bool,
    ) -> None:
        groups = groups_of(module)
        shards = group_of_shards(module)
        # Replicas of different shards have the same worker numbers but need different random draws.
        shard = shards.rank() if replicas else 0
        try:
            self._hooks = [FlatGradient.of(group, replicas) for group in groups.values()]
        except RuntimeError:
            raise ConfigError(
                "this module has a compressor, and takes only one; type handle.remove() first"
            ) from None
        whole = {name_without_wrappers(name): p for name, p in module.named_parameters()}
        kept = {}
        for i, (name, hook) in enumerate(zip(groups, self._hooks, strict=True)):
            parts = named_parts(module, hook.parts)
            order = [name for name in whole if name in parts]
            kept[name] = self._begin(mix(typed.seed, i, shard), parts, order, shards.size())
        super().__init__(
            typed,
            replicas or shards,
            device_of(module),
            kept,
            agree,
            shard=shards.rank(),
            shards=shards.size(),
            parameters={name: list(p.shape) for name, p in whole.items()},
        )
        for hook, name in zip(self._hooks, groups, strict=True):
            hook.hook = partial(self._reduce, name, hook)

    def remove(self) -> None:
        """Let the module average gradients without a compressor, even between nodes."""
        for hook in self._hooks:
            hook.hook = None

    @torch.no_grad()
    def _reduce(
        self, name: str, hook: FlatGradient, gradient: Tensor, used: Sequence[int]
    ) -> Tensor:
        """Return the mean of a parameter group's gradient, or of this worker's shard of it."""
        if hook.adds_up:
            self._warn_of_sum("set_requires_gradient_sync(False)")
        if gradient.dtype == torch.float16:
            raise ConfigError(
                "reduce_dtype=torch.float16: FSDP divides before and after a reduction, and a "
                "method's mean would be divided twice; type "
                "MixedPrecisionPolicy(reduce_dtype=torch.float32)"
            )
        try:
            return self._update(name, gradient, used)
        except OtherParameters as error:
            raise ConfigError(
                f"the parameter group {name or 'of the whole module'} reduces other parameters "
                f"than before, and {error}; type another method, or handle.remove() and compress "
                "again after requires_grad_(False) for those that are not always used"
            ) from error

    def _merge(
        self, states: Sequence[Mapping[str, Any]], shares: Mapping[int, float]
    ) -> dict[str, Any]:
        turns = mean_of([states[k]["turns"] for k in shares], [*shares.values()])
        return {**super()._merge(states, shares), "turns": turns}

    @staticmethod
    @abstractmethod
    def _begin(seed: int, parts: Mapping[str, Part], order: Sequence[str], shards: int) -> Kept:
        """Return what is kept of a parameter group, of which nothing was exchanged yet.

        `parts` are in the order of a flat gradient, and `order` has their names in the model's.
        """

    @abstractmethod
    def _update(self, name: str, gradient: Tensor, used: Sequence[int]) -> Tensor:
        """Return what `_reduce` does.

        Raises OtherParameters for a state that does not fit the parameters with these indices.
        """


class FlatCompression(FsdpCompression):
    """A compressor in the reduce-scatter of parameter groups, each of which is one flat tensor."""

    _kept: Mapping[str, FlatKept]

    def __init__(self, module: nn.Module, typed: Typed) -> None:
        # EF21's mean, which all keep, must stay consistent with each worker's own part of it.
        keeps_mean = any(isinstance(part, EF21) for part in parts_of(typed.method))
        method = shard_exchange(typed.method)
        cuts = [cut for p in _sharded_parameters(module) for cut in p.placements]
        self._cuts_rows = all(cut.dim == 0 for cut in cuts if isinstance(cut, Shard))
        super().__init__(module, typed._replace(method=method), None, keeps_mean)

    @staticmethod
    def _begin(seed: int, parts: Mapping[str, Part], order: Sequence[str], shards: int) -> FlatKept:
        widths = {name: part.values for name, part in parts.items()}
        return FlatKept(seed, turns=Turns(widths, shards))

    def _state(self) -> dict[str, Any]:
        turns = {name: own.turns.to_plain() for name, own in self._kept.items()}
        return {**super()._state(), "turns": turns}

    def _states(self) -> Iterable[State]:
        resting = (state for own in self._kept.values() for state in own.turns.resting.values())
        return (*super()._states(), *resting)

    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        assert isinstance(read, FlatKept)
        turns = read.turns.read(by_name(saved, "turns", self._kept)[name], self._device)
        if turns.used:
            values, state = turns.join_all(read.state)
            self._refuse_other_states({name: (values,)}, [state])
        return replace(read, turns=turns)

    def _place(self, worker: int, workers: int) -> dict[str, int]:
        return {**super()._place(worker, workers), "shard": worker, "shards": workers}

    def _unmergeable(self, states: Sequence[Mapping[str, Any]], merge: bool) -> str | None:
        if not self._cuts_rows:
            return "parameters are cut along another dimension than their first"
        return super()._unmergeable(states, merge)

    def _merge(
        self, states: Sequence[Mapping[str, Any]], shares: Mapping[int, float]
    ) -> dict[str, Any]:
        return super()._merge(self._resharded(states), shares)

    def _resharded(self, states: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return states as of workers with as many shards as there are now.

        What all have in common, of which each keeps its shard, is then that of this process.
        """
        new: list[dict[str, Any]] = [{**state, "exchanges": {}, "turns": {}} for state in states]
        shapes, shard = self._identity["parameters"], self._identity["shard"]
        for name, kept in self._kept.items():
            before = Turns.of_shapes({k: shapes[k] for k in kept.turns.widths}, len(states))
            old = []
            for state in states:
                read = read_kept(kept, by_name(state, "exchanges", self._kept)[name], self._device)
                turns = before.read(by_name(state, "turns", self._kept)[name], self._device)
                old.append((read, turns, turns.by_name(read.state)))
            everyone = [parts for *_, parts in old]
            for state, (read, turns, parts) in zip(new, old, strict=True):
                now = Turns(kept.turns.widths, kept.turns.shards)
                moved = {
                    k: reshard(part, [x[k] for x in everyone], math.prod(shapes[k]), now, k, shard)
                    for k, part in parts.items()
                }
                read = replace(read, state=now.join(moved, turns.used))
                state["exchanges"][name] = {
                    "shared": shared_part(read),
                    "own": worker_part(read, 0),
                }
                state["turns"][name] = now.to_plain()
        return new

    def _bits_of_fp32(self, values: int) -> int:
        # A worker keeps its own shard to itself.
        return 32 * (values - values // self._exchange.comm.workers)

    def _update(self, name: str, gradient: Tensor, used: Sequence[int]) -> Tensor:
        kept = self._kept[name]
        names = tuple(kept.turns.widths)
        kept.state = kept.turns.change(kept.state, tuple(names[i] for i in used))
        rows = gradient.float().unsqueeze(0)
        own = rows[:, : rows.shape[1] // self._exchange.comm.workers]
        # The owner of a shard sees only its own update, but its residual is that of all shards.
        out = self._exchange.aggregate_finite(kept, {name: rows}, like={name: own})
        kept.state, kept.exchanges = out.state, kept.exchanges + 1
        self._count(kept, rows.numel())
        return out.update[name][0]


def is_carried(compressor: Compressor) -> bool:
    """Return whether FSDP2 can use `compressor` in its reduce-scatter."""
    if not compressor.properties.divisible:
        return False
    try:
        shard_exchange(compressor)
    except ValueError:
        return False
    return True


def refuse_cuts(module: nn.Module) -> DeviceMesh:
    """Return the mesh of a module's parameters, or raise ConfigError if a compressor takes none."""
    refuse_complex(dict(module.named_parameters()))
    refuse_sparse(module)
    if any(p.is_meta for p in module.parameters()):
        raise ConfigError(
            "the parameters are on the meta device; type model.to_empty(device=...) before compress"
        )
    meshes = {p.device_mesh for p in _sharded_parameters(module)}
    if len(meshes) != 1:
        raise ConfigError(
            f"the parameters are on {len(meshes)} meshes; type compress with a model whose "
            "parameters fully_shard cuts over one"
        )
    (mesh,) = meshes
    cuts = [sum(cut.is_shard() for cut in p.placements) for p in _sharded_parameters(module)]
    if not any(cuts):
        raise ConfigError(
            "every process has the whole parameters, of which FSDP2 exchanges no shards; type "
            "compress(DistributedDataParallel(model), ...)"
        )
    if max(cuts) > 1:
        raise ConfigError(
            "tensor parallelism has cut the parameters, too; type compress with a model that only "
            "fully_shard has cut"
        )
    return mesh


def refuse_fsdp(module: nn.Module, replicas: dist.ProcessGroup | None) -> None:
    """Raise ConfigError if a compressor cannot exchange the gradients of `module`."""
    mesh = refuse_cuts(module)
    if mesh.ndim != 1:
        raise ConfigError(
            f"the parameters are on a mesh of shape {tuple(mesh.shape)}, and a compressor takes "
            "one of a single dimension, as PyTorch lets nobody replace HSDP's all-reduce; type "
            'fully_shard(model, mesh=mesh["shard"]) and compress(model, ..., '
            'replicas=mesh["replicate"].get_group())'
        )
    if replicas is not None and not isinstance(replicas, dist.ProcessGroup):
        raise ConfigError(
            f"replicas={replicas}: this is not a process group; type the group of the processes "
            'with the same shard, as in mesh["replicate"].get_group()'
        )
    ranks = dist.get_process_group_ranks
    if replicas and set(ranks(replicas)) & set(ranks(mesh.get_group())) != {dist.get_rank()}:
        raise ConfigError(
            f"replicas: the processes {ranks(replicas)} hold other shards of this model "
            f"({ranks(mesh.get_group())} share it); type the group of those with the same shard, "
            'as in mesh["replicate"].get_group()'
        )


def shards_of(module: nn.Module) -> int:
    """Return the number of processes over which each parameter is sharded."""
    return group_of_shards(module).size()


def shapes_of_groups(module: nn.Module, replicas: dist.ProcessGroup | None) -> list[Shape]:
    """Return the shapes of what a method sees: of groups, or of this process's shards by name."""
    trained = {p for p in _sharded_parameters(module) if p.requires_grad}
    if replicas is not None:
        return [tuple(p.to_local().shape) for p in trained]
    group_of: dict[Tensor, object] = {
        p: part._get_fsdp_state()  # shared by modules that were sharded as a list
        for part in module.modules()  # inner modules come later and take over their parameters
        if isinstance(part, FSDPModule)
        for p in part.parameters()
    }
    sizes = Counter[object]()
    for p in trained:
        sizes[group_of[p]] += p.numel()
    return [(n,) for n in sizes.values()]


def groups_of(module: nn.Module) -> dict[str, FSDPModule]:
    """Return the modules that were sharded by themselves, by name."""
    return {
        name_without_wrappers(name): part
        for name, part in module.named_modules()
        if isinstance(part, FSDPModule)
    }


def named_parts(module: nn.Module, parts: Sequence[Part]) -> dict[str, Part]:
    """Return the parts of a flat shard by the names of their parameters in the whole module."""
    prefixes = {part: f"{name}." * bool(name) for name, part in module.named_modules()}
    return {name_without_wrappers(prefixes[part.module] + part.name): part for part in parts}


def group_of_shards(module: nn.Module) -> dist.ProcessGroup:
    """Return the processes over which the parameters are cut."""
    p = _sharded_parameters(module)[0]
    cut = [placement.is_shard() for placement in p.placements].index(True)
    return p.device_mesh.get_group(cut)


def device_of(module: nn.Module) -> torch.device:
    """Return where FSDP exchanges, even if CPUOffloadPolicy keeps parameters in main memory."""
    device = torch.device(_sharded_parameters(module)[0].device_mesh.device_type)
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" else device


def _sharded_parameters(module: nn.Module) -> list[DTensor]:
    """Return the parameters that fully_shard has cut into shards."""
    return [p for p in module.parameters() if isinstance(p, DTensor)]
