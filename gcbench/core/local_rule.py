"""The rule of local steps: what is exchanged when, and how it is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import torch
from torch import nn

from gcbench.core.compressor import Compressor, Grads, Sizes, offsets_of
from gcbench.core.fields import Checked, Count, Natural, Positive, Share
from gcbench.core.methods.onebit_adam import MomentumCoding
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import NormClipping


@dataclass(frozen=True)
class LocalRule(Checked):
    """DiLoCo: workers train on their own, and exchange pseudo-gradients every H steps.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models",
    arXiv:2311.08105, algorithm 1; for fragments: Douillard et al., "Streaming DiLoCo with
    overlapping communication: Towards a Distributed Free Lunch", arXiv:2501.18512.

    Let x be the parameters that all workers share, which are evaluated and saved, x_i those of
    worker i, and f its inner optimizer (`optimizer=` with `schedule=`). In every step t, counted
    from 1:

        x_i, s_i <- f(x_i, s_i, g_i(x_i); lr_t)             each worker on its own batch

    and if H divides t, with the outer learning rate eta and the outer momentum mu:

        d = Aggregate(x - x_1, ..., x - x_W)                by the run's compressor
        m <- mu m + d;   x <- x - eta (d + mu m)            (eta m without `outer_nesterov`)
        x_i <- x

    The paper's f is AdamW, eta = 0.7, mu = 0.9, H = 500. The states s_i are not exchanged. The
    compressor's state (error feedback, factors) has the unit of a pseudo-gradient x - x_i, which is
    a difference of parameters. With H = 1, eta = 1, mu = 0 and plain SGD of rate a as f, this is
    SGD: x - mean of (x - (x - a g_i)), which rounds differently from x - a (mean of g_i).

    Streaming DiLoCo has P fragments. Fragment k (from 0) is sent if H divides t - floor(k H / P):
    as many bits in H steps, but only 1/P of them at a time. Fragments are groups of consecutive
    tensors with about equally many values (`pattern=sequential`), or layers dealt out in turn
    (`strided`). What was sent after step t arrives `delay` = tau steps later; until then workers
    go on. With alpha = `mixing`, for the fragment's part of all parameters, after step t + tau:

        m <- mu m + d;   x <- x - eta (d + mu m);   x_i <- alpha x_i + (1 - alpha) x

    where d is of the x and x_i of step t. With alpha = 0 the steps of worker i from t to t + tau
    are lost to it. The paper has tau from 1 on, alpha = 0.5 and strided layers. MuLoCo (Therien,
    Huang, Defazio, Rish and Belilovsky, "MuLoCo: Muon is a practical inner optimizer for DiLoCo",
    arXiv:2505.23725) is DiLoCo with Muon as f (`optimizer=muon`).

    Sends what the compressor sends for a gradient, once every H steps.

    Differences from the papers: exchanges that arrive after a run's last step do not reach x, nor
    do steps after the last exchange. All workers send a fragment in the same step. A layer is the
    tensors of one module, or of all that have the same first number in their names (`blocks.0`);
    embedding and output layer count as layers.
    """

    every: Count
    fragments: Count = 1
    pattern: Pattern = "sequential"
    delay: Natural = 0
    mixing: Share = 0.0
    outer_lr: Positive = 0.7
    outer_momentum: Share = 0.9
    outer_nesterov: bool = True
    clip_norm: Positive | None = None

    @property
    def period(self) -> int:
        return -(-self.every // self.fragments)

    def exchanges_in(self, steps: int) -> int:
        """Return how many times each parameter is exchanged in `steps` steps."""
        return steps // self.every

    def refuse_method(self, model: nn.Module, compressor: Compressor) -> None:
        """Raise ValueError where the steps contradict one another, the model or the method."""
        refuse_momentum(compressor)
        for part in parts_of(compressor):
            if isinstance(part, NormClipping):
                norm = f"{part.clip_norm:g}"
                raise ValueError(
                    f"clip_norm={norm} would scale what is exchanged, the sum of {self.every} "
                    f"local steps; type clip_norm=null estimator.clip_norm={norm} to clip the "
                    "gradient of each local step"
                )
        if self.outer_nesterov and not self.outer_momentum:
            raise ValueError(
                f"estimator.outer_momentum={self.outer_momentum:g}: estimator.outer_nesterov=true "
                "looks ahead along the momentum; type estimator.outer_nesterov=false, too"
            )
        if self.fragments > self.every:
            raise ValueError(
                f"estimator.fragments={self.fragments}: fragments are exchanged in different steps "
                f"of estimator.every={self.every}; type estimator.fragments={self.every} or fewer"
            )
        if self.delay >= (apart := self.every // self.fragments):
            raise ValueError(
                f"estimator.delay={self.delay}: the next exchange begins {apart} steps later; type "
                f"estimator.delay={apart - 1} or less"
            )
        if self.fragments == 1:
            return
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        strided = self.pattern == "strided"
        count = len(set(map(layer_of, names))) if strided else len(names)
        if self.fragments > count:
            raise ValueError(
                f"estimator.fragments={self.fragments}: the model has {count} "
                f"{'layers to deal out' if strided else 'tensors'}; type "
                f"estimator.fragments={count} or fewer"
            )
        if compressor.properties.scope == "global":
            raise ValueError(
                f"estimator.fragments={self.fragments} sends tensors in parts, and this method "
                "must see all of them at once (its scope is global, see gcbench methods NAME); "
                "type estimator.fragments=1"
            )

    def make_outer(self, shared: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimizer that applies pseudo-gradients to the shared parameters."""
        return torch.optim.SGD(
            [{"params": list(shared.values()), "initial_lr": self.outer_lr}],
            lr=self.outer_lr,
            momentum=self.outer_momentum,
            nesterov=self.outer_nesterov,
            foreach=True,
        )

    def cut(self, sizes: Sizes) -> list[list[str]]:
        """Return the names of the parameters in each fragment."""
        return cut_fragments(sizes, self.fragments, self.pattern)

    def due_fragment(self, step: int) -> int | None:
        """Return the fragment that is exchanged at the end of step `step`, counted from 1."""
        offsets = [k * self.every // self.fragments for k in range(self.fragments)]
        due = (k for k, offset in enumerate(offsets) if not (step - offset) % self.every)
        return next(due, None) if step > 0 else None


Result = TypeVar("Result")


class LocalRounds:
    """Exchanges by a rule, of workers with the parameters `own`, for those that all share.

    At most one is under way: it is taken before another one begins.
    """

    def __init__(
        self,
        rule: LocalRule,
        shared: Mapping[str, nn.Parameter],
        own: Sequence[Mapping[str, nn.Parameter]],
    ) -> None:
        self._rule, self._shared, self._own = rule, shared, own

    @cached_property
    def _fragments(self) -> list[list[str]]:
        return self._rule.cut({name: p.numel() for name, p in self._shared.items()})

    def due(self, step: int) -> list[str]:
        """Return the names of the parameters that are exchanged at the end of step `step`."""
        fragment = self._rule.due_fragment(step)
        return [] if fragment is None else self._fragments[fragment]

    def arriving(self, step: int) -> list[str]:
        """Return the names of the parameters whose exchange is applied after step `step`."""
        return self.due(step - self._rule.delay)

    @torch.no_grad()
    def subtract(self, rows: Grads) -> Grads:
        """Return `rows` `[w, ...]`, which now hold the pseudo-gradients of their parameters."""
        for name, of_workers in rows.items():
            for row, own in zip(of_workers, self._own, strict=True):
                row.copy_(self._shared[name]).sub_(own[name])
        return rows

    def exchange(
        self,
        step: int,
        rows_of: Callable[[list[str]], Grads],
        begin: Callable[[Grads], None],
        take: Callable[[], Result | None],
    ) -> Result | None:
        """Send what is due at the end of step `step`, and return what is to be applied then.

        `rows_of` returns rows `[w, ...]` to send parameters of these names in; `take` waits for
        what is under way.
        """
        arrives, delay = self.arriving(step), self._rule.delay
        late = take() if arrives and delay else None
        if due := self.due(step):
            begin(self.subtract(rows_of(due)))
        return take() if arrives and not delay else late

    @torch.no_grad()
    def adopt(self, step: int) -> None:
        """Let workers go on from the shared values of what was applied, and `mixing` of theirs."""
        mixing = self._rule.mixing
        for name in self.arriving(step):
            shared = self._shared[name]
            for own in self._own:
                own[name].copy_(shared.lerp(own[name], mixing) if mixing else shared)


def refuse_momentum(compressor: Compressor) -> None:
    """Raise ValueError for a compressor that codes the optimizer's momentum."""
    if any(isinstance(part, MomentumCoding) for part in parts_of(compressor)):
        raise ValueError(
            "compressor=onebit_adam codes the optimizer's momentum, which workers have already "
            "applied in their local steps; type compressor=scaled_sign error_feedback=true"
        )


Pattern = Literal["sequential", "strided"]


def cut_fragments(sizes: Sizes, count: int, pattern: Pattern = "sequential") -> list[list[str]]:
    """Return the names in `count` groups: of about equally many values, or of layers in turn.

    No group is empty.
    """
    names = list(sizes)
    if pattern == "strided":
        layers = list(dict.fromkeys(map(layer_of, names)))
        return [[n for n in names if layers.index(layer_of(n)) % count == k] for k in range(count)]
    offsets, values = offsets_of(sizes), sum(sizes.values())
    starts = [0]
    for k in range(1, count):
        possible = range(starts[-1] + 1, len(names) - (count - k) + 1)
        starts.append(min(possible, key=lambda i: abs(count * offsets[names[i]] - k * values)))
    return [names[i:j] for i, j in zip(starts, [*starts[1:], len(names)], strict=True)]


def layer_of(name: str) -> str:
    """Return the layer of a parameter: its name up to the first number, or else its module's."""
    parts = name.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1])
