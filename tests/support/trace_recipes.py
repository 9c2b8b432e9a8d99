"""Steps of methods by the equations of their papers, or as their authors' code does, in float64.

Nothing here is shared with gcbench. `method_traces.py` makes traces of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Code = Callable[[Array], Array]  # of the values of a tensor, flattened

WORKERS, STEPS = 3, 4
SHAPES = {"w": (8, 6), "b": (8,)}
BUCKET = 16


def gradients(step: int) -> list[dict[str, Array]]:
    """Return each worker's gradient in a step, exact in float32: a common part and a tail."""

    def values(seed: int, n: int) -> Array:
        h = (np.arange(n, dtype=np.uint64) + np.uint64(1000 * seed + 1)) * np.uint64(2654435761)
        h = (h ^ (h >> np.uint64(15))) * np.uint64(2246822519) % np.uint64(2**32)
        h = (h ^ (h >> np.uint64(13))) * np.uint64(3266489917) % np.uint64(2**32)
        return 2 * (h.astype(np.float64) / 2**32) - 1

    rows = []
    for worker in range(WORKERS):
        flat = 0.5 * values(50 * step, 56) + values(50 * step + worker + 1, 56) ** 3
        flat = flat.astype(np.float32).astype(np.float64)
        rows.append({"w": flat[:48].reshape(8, 6), "b": flat[48:]})
    return rows


def tensors() -> Iterator[list[tuple[str, list[Array]]]]:
    """Yield, for each step, all tensors with their values at each worker, flattened."""
    for step in range(STEPS):
        rows = gradients(step)
        yield [(name, [row[name].ravel() for row in rows]) for name in SHAPES]


def signs(v: Array) -> Array:
    """Return signs, with +1 for zero, which has no sign in one bit."""
    return np.where(v >= 0, 1.0, -1.0)


def by_bucket(code: Code, size: int = BUCKET) -> Code:
    return lambda v: np.concatenate([code(v[i : i + size]) for i in range(0, len(v), size)])


def mean_sign(v: Array) -> Array:
    return np.abs(v).mean() * signs(v)


def rms_sign(v: Array) -> Array:
    return np.sqrt((v**2).mean()) * signs(v)


def two_means(upper: Callable[[Array], NDArray[np.bool_]]) -> Code:
    """Return the code that replaces values by the mean of their side."""

    def code(v: Array) -> Array:
        up = upper(v)
        return np.where(up, v[up].mean() if up.any() else 0, v[~up].mean() if (~up).any() else 0)

    return code


def largest(share: float) -> Code:
    def code(v: Array) -> Array:
        kept = np.argsort(-np.abs(v), kind="stable")[: max(1, int(share * len(v)))]
        out = np.zeros_like(v)
        out[kept] = v[kept]
        return out

    return code


def with_residual(code: Code, beta: float = 1.0) -> list[list[float]]:
    """e <- beta e + g; sends C(e); e <- e - C(e); the update is the mean of what all send."""
    residual: dict[tuple[str, int], Array] = {}
    updates = []
    for named in tensors():
        update = []
        for name, rows in named:
            sent = []
            for i, g in enumerate(rows):
                v = beta * residual.get((name, i), np.zeros_like(g)) + g
                sent.append(code(v))
                residual[name, i] = v - sent[-1]
            update.append(np.mean(sent, axis=0))
        updates.append(written(update))
    return updates


def without_residual(code: Code) -> list[list[float]]:
    return [
        written([np.mean([code(g) for g in rows], axis=0) for _, rows in named])
        for named in tensors()
    ]


def written(parts: list[Array]) -> list[float]:
    return [float(f"{x:.7g}") for x in np.concatenate([part.ravel() for part in parts])]


def ef21(code: Code) -> list[list[float]]:
    """c_i = C(g_i - h_i); h_i <- h_i + c_i; the update is the mean of all h_i."""
    h: dict[tuple[str, int], Array] = {}
    updates = []
    for named in tensors():
        for name, rows in named:
            for i, g in enumerate(rows):
                before = h.get((name, i), np.zeros_like(g))
                h[name, i] = before + code(g - before)
        update = [np.mean([h[name, i] for i in range(WORKERS)], axis=0) for name in SHAPES]
        updates.append(written(update))
    return updates


def signum(beta: float, first: bool) -> list[list[float]]:
    """v_i <- beta v_i + (1 - beta) g_i; the update is the majority of their signs."""
    v: dict[tuple[str, int], Array] = {}
    updates = []
    for named in tensors():
        votes = []
        for name, rows in named:
            for i, g in enumerate(rows):
                before = v.get((name, i), g if first else np.zeros_like(g))
                v[name, i] = beta * before + (1 - beta) * g
            votes.append(np.sign(sum(signs(v[name, i]) for i in range(WORKERS))))
        updates.append(written(votes))
    return updates


def cosines(n: int) -> Array:
    """Return the orthonormal DCT-II."""
    k, i = np.mgrid[:n, :n]
    waves = np.cos(np.pi / n * (i + 0.5) * k) * math.sqrt(2 / n)
    waves[0] /= math.sqrt(2)
    return np.asarray(waves)


def demo(senders: bool, chosen: int, side: int, beta: float) -> list[list[float]]:
    """The strongest frequencies of each block of a momentum leave it, and are summed."""
    blocks = {"w": (4, 3), "b": (4, 1)}  # the largest divisors of the sides that are at most 4
    assert side == 4
    m: dict[tuple[str, int], Array] = {}
    updates = []
    for named in tensors():
        update = []
        for name, rows in named:
            height, width = blocks[name]
            shape = rows[0].reshape(8, -1).shape
            down, across = cosines(height), cosines(width)
            total, count = np.zeros(shape), np.zeros(shape)
            for i, g in enumerate(rows):
                v = beta * m.get((name, i), np.zeros(shape)) + g.reshape(shape)
                left = v.copy()
                for y in range(0, shape[0], height):
                    for x in range(0, shape[1], width):
                        place = np.s_[y : y + height, x : x + width]
                        c = down @ v[place] @ across.T
                        kept = np.zeros(c.size, dtype=bool)
                        kept[np.argsort(-np.abs(c.ravel()), kind="stable")[:chosen]] = True
                        q = np.where(kept.reshape(c.shape), c, 0)
                        left[place] -= down.T @ q @ across
                        total[place] += q
                        count[place] += kept.reshape(c.shape)
                m[name, i] = left
            if senders:
                total /= np.maximum(count, 1)
            out = np.zeros(shape)
            for y in range(0, shape[0], height):
                for x in range(0, shape[1], width):
                    place = np.s_[y : y + height, x : x + width]
                    out[place] = down.T @ total[place] @ across
            update.append(np.sign(np.where(np.abs(out) < 1e-9, 0, out)))
        updates.append(written(update))
    return updates


def sparseloco(
    senders: bool, of_the_code: bool, share: float, size: int, beta: float
) -> list[list[float]]:
    """The largest values of each chunk, as the means of four bins around their mean."""
    residual: dict[tuple[str, int], Array] = {}
    updates = []
    for named in tensors():
        update = []
        for name, rows in named:
            sent, chosen_by = [], []
            for i, g in enumerate(rows):
                v = beta * residual.get((name, i), np.zeros_like(g)) + g
                chosen = np.zeros(len(v), dtype=bool)
                for start in range(0, len(v), size):
                    chunk = np.abs(v[start : start + size])
                    k = max(1, int(share * len(chunk)))
                    k = max(2, k - k % 2) if of_the_code else k
                    chosen[start + np.argsort(-chunk, kind="stable")[:k]] = True
                values = v[chosen]
                deviation = values.std(ddof=1 if of_the_code else 0)
                place = np.round((values - values.mean()) / (1.5 * deviation or 1)).clip(-2, 1)
                for b in np.unique(place):
                    values[place == b] = values[place == b].mean()
                out = np.zeros_like(v)
                out[chosen] = values
                residual[name, i] = v - out
                sent.append(out)
                chosen_by.append(chosen)
            if of_the_code:  # clipped to the median of the workers' norms
                norms = [float(np.linalg.norm(s)) for s in sent]
                sent = [
                    s * min(1, float(np.median(norms)) / (n + 1e-8))
                    for s, n in zip(sent, norms, strict=True)
                ]
            count = np.maximum(np.sum(chosen_by, axis=0), 1) if senders else WORKERS
            update.append(np.sum(sent, axis=0) / count)
        updates.append(written(update))
    return updates


def onebit_adam(
    code: Code, warm_start: bool, correction: bool, server: bool = False
) -> list[list[float]]:
    """Return how the parameters change: Adam for two steps, then coded momenta and a frozen v.

    With `server`, tensors are padded with zeros, and each worker codes a third of the mean again.
    """
    lr, b1, b2, eps, warm_up = 0.1, 0.9, 0.999, 1e-8, 2
    m = {name: np.zeros(shape).ravel() for name, shape in SHAPES.items()}
    mine = {name: np.zeros_like(x) for name, x in m.items()}  # what workers' momenta start from
    v = {name: np.zeros_like(x) for name, x in m.items()}
    e: dict[tuple[str, int], Array] = {}
    changes = []
    for step, named in enumerate(tensors()):
        change = []
        for name, rows in named:
            if step < warm_up:
                g = np.mean(rows, axis=0)
                m[name] = b1 * m[name] + (1 - b1) * g
                v[name] = b2 * v[name] + (1 - b2) * g**2
                mine[name] = m[name] if warm_start else mine[name]
            else:
                sent = []
                for i, g in enumerate(rows):
                    x = b1 * mine[name] + (1 - b1) * g
                    x = np.pad(x, (0, -len(x) % 72 if server else 0)) + e.get((name, i), 0)
                    sent.append(code(x))
                    e[name, i] = x - sent[-1]
                mean = np.mean(sent, axis=0)
                if server:
                    x = mean + e.get((name, -1), 0)
                    mean = np.concatenate([code(shard) for shard in np.split(x, WORKERS)])
                    e[name, -1] = x - mean
                mean = mean[: len(m[name])]
                # The optimizer's momentum differs from the coded one by what is left of its own.
                m[name] = mean + b1 * (m[name] - mine[name])
                mine[name] = mean
            c1 = 1 - b1 ** (step + 1) if correction else 1
            c2 = 1 - b2 ** min(step + 1, warm_up) if correction else 1
            change.append(-lr * m[name] / c1 / (np.sqrt(v[name] / c2) + eps))
        changes.append(written(change))
    return changes
