"""What workers agree on after an exchange, such as whether values are finite, without a wait."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gcbench.core.codecs import launches
from gcbench.core.codecs.kernels import kernel
from gcbench.core.compressor import Grads, State
from gcbench.core.errors import ConfigError


@kernel
def tell(bad: Tensor, number: Tensor, total: Tensor | None) -> Tensor:
    """Return `[5]` float32 numbers, of whose maximum over workers `judge` reads what they saw.

    In a maximum, minus a value gives the lowest one. Without a `total` it may be any.
    """
    step = number.float()
    any_total = torch.full_like(step, -torch.inf)
    totals = (any_total, any_total) if total is None else (total, -total)
    return torch.cat([bad.float(), step, -step, *totals])


@kernel
def judge(told: Tensor, number: Tensor, out: Tensor) -> Tensor:
    """Return whether a worker saw a bad value, `[1]`, and note in `out` how workers differ first.

    That is 2^32 times this worker's number of exchanges plus that of another one, or -1 if their
    totals differ.
    """
    bad, most, minus_least, highest, minus_lowest = told.split(1)
    other = torch.where(most != number, most, -minus_least).long()
    differ = (highest > -torch.inf) & (highest != -minus_lowest)
    found = torch.where(most != -minus_least, (number << 32) + other, -differ.long())
    out.copy_(torch.where(out == 0, found, out))
    seen: Tensor = bad != 0
    return seen


def agree(
    bad: Tensor,
    number: Tensor,
    earlier: Sequence[Tensor] | None,
    used: Mapping[str, bool] | None,
    group: dist.ProcessGroup,
    verdict: Tensor,
) -> tuple[Tensor, list[str]]:
    """Return whether a worker of `group` saw a bad value, and the names of what none `used`.

    `verdict` notes how they differ first, see `judge`.
    """
    told = tell(bad, number, None if earlier is None else sum_of(earlier, bad))
    if not used:
        dist.all_reduce(told, dist.ReduceOp.MAX, group)
        return judge(told, number, verdict), []
    flags = torch.tensor([*used.values()], dtype=told.dtype, device=told.device)
    told = torch.cat([told, flags])
    dist.all_reduce(told, dist.ReduceOp.MAX, group)
    unused = [name for name, flag in zip(used, told[5:].tolist(), strict=True) if not flag]
    return judge(told[:5], number, verdict), unused


def choose(bad: Tensor, old: State, new: State) -> State:
    """Return the old state where `bad`, `[1]`, is true, and else the new one."""
    pairs = [*zip(_tensors(old), _tensors(new), strict=False)]
    alike = _layout(old) == _layout(new)
    if alike and not pairs:
        return new
    if bad.device.type == "cpu" or not alike:
        return old if bad else new
    if all(_in_one_order(a, b) for (*_, a), (*_, b) in pairs):
        news, olds = ([_in_memory(x) for *_, x in _tensors(state)] for state in (new, old))
        launches.launch_if(bad, "restore_each", news, olds)
        return new
    by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for (*_, a), (*_, b) in pairs:
        by_dtype.setdefault(b.dtype, []).append((a, b))
    chosen = {dtype: iter(_choose_each(bad, same)) for dtype, same in by_dtype.items()}
    layers: list[tuple[Grads, Grads]] = [({}, {}) for _ in new.layers()]
    for layer, part, name, x in _tensors(new):
        layers[layer][part][name] = next(chosen[x.dtype])
    return State.of_layers(layers)


def _in_one_order(old: Tensor, new: Tensor) -> bool:
    """Return whether hand-written Triton takes both, and their values have no gaps in memory."""
    whole = new.is_contiguous() or (new.dim() > 1 and new.mT.is_contiguous())
    fused = launches.is_fused(new) and launches.is_fused(old)
    return fused and whole and old.stride() == new.stride()


def _in_memory(x: Tensor) -> Tensor:
    """Return all values as a view `[1, n]` in the order in which they lie."""
    return (x if x.is_contiguous() else x.mT).view(1, -1)


def _choose_each(bad: Tensor, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return what `choose` does of each pair, at once if they are parts of two tensors."""
    olds, news = zip(*pairs, strict=True)
    old_base, new_base = olds[0]._base, news[0]._base
    if (
        old_base is not None
        and new_base is not None
        and _memory(old_base) == _memory(new_base)
        and all(a._base is old_base and b._base is new_base for a, b in pairs)
        and all(_memory(a) == _memory(b) for a, b in pairs)
    ):
        whole = torch.where(bad.view([1] * new_base.dim()), old_base, new_base)
        return [whole.as_strided(*_memory(b)) for b in news]
    flat_olds, flat_news = (torch.cat([x.reshape(-1) for x in same]) for same in (olds, news))
    parts = torch.where(bad, flat_olds, flat_news).split([x.numel() for x in news])
    return [part.view(x.shape) for part, x in zip(parts, news, strict=True)]


def blank(tensors: Sequence[Tensor], bad: Tensor) -> None:
    """Replace all values by NaN if `bad`, `[1]`, is true; a GPU decides that itself."""
    if bad.device.type == "cpu":
        for x in tensors if bad else ():
            x.fill_(torch.nan)
    elif all(launches.is_fused(x) and x.is_contiguous() for x in tensors):
        launches.launch_if(bad, "blank_each", [x.view(1, -1) for x in tensors])
    else:
        torch._foreach_mul_(list(tensors), torch.where(bad, torch.nan, 1.0)[0])


def refuse_difference(verdict: int, worker: int) -> None:
    """Raise ConfigError for a verdict of `judge` that is not 0."""
    if verdict > 0:
        step, other = divmod(verdict, 1 << 32)
        raise ConfigError(
            f"worker {worker} has made {step} exchanges with this compressor, and another one "
            f"{other}; type load_state_dict on every worker, with what it saved after the same step"
        )
    if verdict < 0:
        raise ConfigError(
            "p.grad differed between workers when gradients were added to it, so that it did "
            "not hold an update; type optimizer.zero_grad() after optimizer.step(), and "
            "no_sync() for all micro-batches but the last"
        )


def differing(a: Any, b: Any) -> tuple[str, str]:
    """Return the first part in which each of two values differs from the other, as texts."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        key = next(key for key in (*a, *b) if a.get(key) != b.get(key))
        first, second = (f"{key} {x[key]}" if key in x else f"no {key}" for x in (a, b))
        return first, second
    if not (isinstance(a, str) and isinstance(b, str)):
        return str(a), str(b)
    words, others = (re.split(r"(?<=[ (])", text) for text in (a, b))
    while len(words) > 1 and len(others) > 1 and words[0] == others[0]:
        del words[0], others[0]
    while len(words) > 1 and len(others) > 1 and words[-1] == others[-1]:
        del words[-1], others[-1]
    return "".join(words).strip(" ,)"), "".join(others).strip(" ,)")


def refuse_other_arguments(maker: str, by_worker: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError unless all workers called `maker` with the same arguments."""
    first, *others = by_worker
    for worker, other in enumerate(others, 1):
        for key in first:
            if other[key] != first[key]:
                theirs, ours = differing(other[key], first[key])
                raise ConfigError(
                    f"worker {worker} called {maker} with {key}={theirs}, and worker 0 with "
                    f"{ours}; type the same method, knobs and seed on all workers"
                )


def sum_of(tensors: Sequence[Tensor], like: Tensor) -> Tensor:
    """Return the sum of all values as `[1]`; 0 if it is not finite."""
    sums = [x.sum(dtype=torch.float32) for x in tensors]
    return (
        torch.stack([torch.zeros((), dtype=torch.float32, device=like.device), *sums])
        .sum(0, keepdim=True)
        .nan_to_num(0, 0, 0)
    )


def _tensors(state: State) -> Iterator[tuple[int, int, str, Tensor]]:
    for i, layer in enumerate(state.layers()):
        for j, part in enumerate((layer.shared, layer.per_worker)):
            for name, x in sorted(part.items()):
                yield i, j, name, x


def _layout(state: State) -> list[tuple[int, int, str, torch.Size, torch.dtype]]:
    return [(i, j, name, x.shape, x.dtype) for i, j, name, x in _tensors(state)]


def _memory(x: Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    return x.shape, x.stride(), int(x.storage_offset())


def not_finite(tensors: Iterable[Tensor]) -> Tensor:
    """Return for each worker, `[w]`, whether its row of any tensor `[w, ...]` is not finite."""
    wholes = _wholes([x for x in tensors if x.numel()])
    by_worker = list(zip(*wholes, strict=True))
    rows = [row for worker in by_worker for row in worker]
    if rows[0].device.type == "cpu":
        # A sum is faster than extremes, and finite only where all its terms are.
        if torch.stack([row.sum() for row in rows]).isfinite().all():
            return torch.zeros(len(by_worker), dtype=torch.bool)
        # A sum of finite values may overflow; extremes are exact, and fastest by row.
        extremes = [torch.stack(row.aminmax()).abs().amax() for row in rows]
    else:
        extremes = list(torch._foreach_norm(rows, torch.inf))  # reads all of them in one kernel
    each = torch.stack(extremes).view(len(by_worker), -1)
    return (each * 0).any(1)  # NaN, which counts as true, where a value is not finite


def replace_each(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """Replace values `[1, n]` on a GPU; return, `[1]`, whether one was, or is now, not finite."""
    return launches.replace_each(tensors, others).any(0, keepdim=True)


def _wholes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors `[w, ...]`, with one for all that are the parts of its rows."""
    by_whole: dict[int, list[Tensor]] = {}
    for x in tensors:
        by_whole.setdefault(id(x if x._base is None else x._base), []).append(x)
    wholes: list[Tensor] = []
    for parts in by_whole.values():
        whole = parts[0]._base
        if whole is None or len(whole) != len(parts[0]):
            wholes += parts
        else:
            fill = whole.numel() == sum(x.numel() for x in parts)
            wholes += [whole] if fill else parts
    return wholes


def gather_json(value: Any, gather: Callable[[Tensor], Sequence[Tensor]]) -> list[Any]:
    """Return each process's `value`, which JSON can represent; `gather` collects tensors."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [int(size) for size in gather(torch.tensor([len(text)]))]
    padded = text.new_zeros(max(sizes))
    padded[: len(text)] = text
    texts = gather(padded)
    return [
        json.loads(row[:size].numpy().tobytes()) for row, size in zip(texts, sizes, strict=True)
    ]
