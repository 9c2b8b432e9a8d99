"""Spectral Atomo: a few randomly drawn singular values of each matrix, as in PowerSGD's paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gcbench.core.codecs.low_rank import conditional_bernoulli, svd
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Grads, Properties, State, Step
from gcbench.core.fields import Checked, Count, example


@dataclass(frozen=True)
class Atomo(Checked):
    """Spectral Atomo: a few randomly drawn singular values of each matrix.

    Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS
    2018, with spectral atoms; a baseline of Vogels et al. (PowerSGD), NeurIPS 2019, table 6.
    Without error feedback. For each worker's own matrix M = sum of s_i u_i v_i^T:

        keep i with probability p_i = min(1, r s_i / (s_1 + ... + s_k))
        decode: sum over the kept i of (s_i / p_i) u_i v_i^T

    `variant=published`: draws are repeated until exactly r values are kept, as in the code behind
    the published rows. Not unbiased, since p_i is then not the probability of i: with s = (10, 1,
    1) and r = 2, the two small values are 3 times too large on average.

    `variant=unbiased`: values are drawn once, so that E[decode] = M. At most r values are expected,
    but any number is possible.

    Matrices are shaped as the authors': a convolution [a, b, k, k] becomes (a b / 2) x (2 k^2), [a,
    b] and [a, b, 1, 1] stay a x b, a vector of n becomes (n / 2) x 2; r = min(rank, n, m). A stack
    of matrices (`core.methods.matrices`), which the authors' models have not, is k matrices.

    Sends u, s / p and v of each kept value, n + m + 1 floats. `published` sends exactly r of them,
    `unbiased` any number, and the length of each matrix's message (32 bits).

    Differences from the published code: exactly r values are drawn in one pass, from the same
    distribution as by repeated draws. If a matrix has fewer than r values above zero, for which the
    code would repeat draws forever, the largest are kept. An odd side is not halved. The
    probabilities in the paper give the mass that min(1, .) cuts off to the other values; those in
    the code, as here, do not.
    """

    rank: Annotated[Count, example(2)]
    """singular values kept"""
    variant: Literal["published", "unbiased"] = "published"
    """drawn again until `rank` values are kept, or drawn once [PowerSGD, table 6; ATOMO]"""

    @property
    def properties(self) -> Properties:
        return Properties(unbiased=self.variant == "unbiased")

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        ms = {k: g.reshape(-1, *authors_shape(g.shape[1:])) for k, g in grads.items()}  # [w, n, m]
        groups: dict[tuple[int, ...], list[str]] = {}  # matrices of one shape are taken together
        for k, m in ms.items():
            groups.setdefault(m.shape, []).append(k)
        factors = [svd(torch.stack([ms[k] for k in names], dim=1)) for names in groups.values()]
        ps = [self._probabilities(s) for _, s, _ in factors]
        each = {
            k: of_group[:, i]
            for names, of_group in zip(groups.values(), ps, strict=True)
            for i, k in enumerate(names)
        }
        heads = dict(zip(ms, self._draw({k: each[k] for k in ms}, step), strict=True))
        found: Grads = {}
        for names, usv, p in zip(groups.values(), factors, ps, strict=True):
            of_group = torch.stack([heads[k] for k in names], dim=1)
            each_atoms = _atoms(*usv, p, of_group, self._most(of_group))
            found |= zip(names, each_atoms.unbind(1), strict=True)
        kept, atoms = list(heads.values()), [found[k] for k in ms]
        widths = [x.shape[2] for x in atoms]
        lengths = [heads.sum(1) * width for heads, width in zip(kept, widths, strict=True)]
        everyone = comm.gather(atoms, lengths if self.variant == "unbiased" else None)

        def decode(messages: list[Tensor], rows: int) -> Grads:
            """Return the means over groups of `rows` workers."""
            means = [
                _mean(x.flatten(1), m.shape[1], m.shape[2], rows)
                for x, m in zip(messages, ms.values(), strict=True)
            ]
            return {
                k: x.view(-1, *g.shape[1:]) for (k, g), x in zip(grads.items(), means, strict=True)
            }

        return Aggregated(decode(everyone, comm.workers), lambda: decode(atoms, 1), state)

    def values_sent(self, shape: Sequence[int]) -> float:
        n, m = authors_shape(shape)
        return min(self.rank, n, m) * (n + 1 + m)

    def _most(self, kept: Tensor) -> int:
        """Return the largest number of values that a worker keeps, which `published` fixes."""
        published = self.variant == "published"
        return min(self.rank, kept.shape[-1]) if published else int(kept.sum(-1).max())

    def _probabilities(self, s: Tensor) -> Tensor:
        """Return the probabilities `[..., k]`, float64, of keeping each value.

        All values of a matrix that is not finite are kept, so that this shows in the update.
        """
        s = s.double()
        total = s.sum(-1, keepdim=True)
        share = s / torch.where(total == 0, 1, total)
        return (min(self.rank, s.shape[-1]) * share).clamp_max(1).nan_to_num(1)

    def _draw(self, ps: Grads, step: Step) -> list[Tensor]:
        """Return which values are kept, `[w, k]` for each matrix.

        All matrices are drawn at once; those with fewer values are padded with p = 0.
        """
        sizes = {k: p.shape[1] for k, p in ps.items()}
        device = next(iter(ps.values())).device
        uniform = (
            step.noise("atomo", sizes, device).uniform().double().split(list(sizes.values()), dim=1)
        )
        p, u = (
            pad_sequence([x.T for x in xs]) for xs in (list(ps.values()), list(uniform))
        )  # [k, matrices, w]
        if self.variant == "unbiased":
            kept = u < p
        else:
            counts = [min(self.rank, n) for n in sizes.values()]
            kept = conditional_bernoulli(p, _column(tuple(counts), device), max(counts), u)
        return [kept[:n, i].T for i, n in enumerate(sizes.values())]


@cache
def _column(counts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(counts, device=device).unsqueeze(1)


def authors_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return (n, m) of a tensor that is no stack, as one of the authors' matrices."""
    if len(shape) < 2:
        n, m = prod(shape), 1
    else:
        n, m = shape[0], shape[1]
        if prod(shape[2:]) == 1:
            return n, m
        n, m = n * m, prod(shape[2:])
    return (n // 2, 2 * m) if n % 2 == 0 else (n, m)


def _atoms(u: Tensor, s: Tensor, vt: Tensor, p: Tensor, kept: Tensor, most: int) -> Tensor:
    """Return u, s / p and v of each matrix's kept values, `[..., most, n + 1 + m]`.

    The kept values come first; s / p is zero in the entries after them.
    """
    scale = torch.where(kept & (p > 0), s / p, 0).to(s.dtype)
    order = kept.long().argsort(dim=-1, descending=True, stable=True)[..., :most]
    atoms = torch.cat([u.mT, scale.unsqueeze(-1), vt], dim=-1)
    index = order.unsqueeze(-1).expand(*order.shape, atoms.shape[-1])
    return atoms.gather(-2, index)


def _mean(atoms: Tensor, n: int, m: int, rows: int) -> Tensor:
    """Return the means `[r / rows, n, m]` of groups of `rows` workers' atoms `[r, atoms]`."""
    each = atoms.shape[1] // (n + 1 + m)
    x = atoms.reshape(atoms.shape[0] // rows, rows * each, n + 1 + m)
    u, scale, v = x.split([n, 1, m], dim=2)
    return (u * scale).mT @ v / rows
