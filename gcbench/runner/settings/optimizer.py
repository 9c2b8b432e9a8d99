"""The keys of conf/optimizer, conf/schedule and conf/estimator."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gcbench.core.fields import (
    Count,
    Natural,
    Needs,
    Neutral,
    NonNegative,
    Positive,
    Share,
    example,
)
from gcbench.runner.settings.open import OpenSettings


class OptimizerSettings(OpenSettings):
    """All keys of conf/optimizer; each file has the subset that its optimizer takes."""

    total = False

    kind: Literal["sgd", "powersgd", "adam", "adamw", "frozen_adam", "dion", "muon"]
    """torch.optim.SGD, Adam, AdamW or Muon, PowerSGD's (momentum after aggregation, x <- x - lr (d
    + m)), or that of 1-bit Adam or of Dion"""
    lr: Annotated[Positive, example(0.05)]
    """learning rate before the schedule; of a single worker with schedule.scale_by_workers"""
    momentum: Annotated[Share, example(0.9)] = 0.0
    """weight of the old momentum in the new; 0: none"""
    nesterov: bool = False
    """true: the step looks ahead, as in torch.optim.SGD"""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2, examples=[[0.9, 0.999]])]
    """decay rates of the running averages of the aggregated gradient and of its square"""
    eps: Annotated[Positive, example(1e-08)]
    """added to the root of the second moment"""
    weight_decay: Annotated[NonNegative, example(0.0001)]
    """share of a weight that is added to its gradient after aggregation (adamw, frozen_adam, dion
    and muon: times lr, taken off the weight); none on batch normalization"""
    freeze_steps: Annotated[Count, example(100)]
    """steps after which the variance is frozen; with onebit_adam, gradients are sent uncompressed
    in these steps"""
    updates_per_interval: Annotated[Count | None, example(16), Neutral(None)]
    """updates of the variance after which the steps from one to the next double; null: it moves in
    every step until it stands still [0/1 Adam, section 5]"""
    bias_correction: Annotated[bool, Neutral(True)]
    """frozen_adam: true: moments are divided by 1 - beta^t, as in Adam; 1-bit Adam and 0/1 Adam
    have none [1-bit Adam, equation 1; 0/1 Adam, algorithm 1]"""
    adjust_lr_fn: Literal["original", "match_rms_adamw"]
    """what the rate of an n x m matrix is multiplied by: sqrt(max(1, n / m)) [Jordan et al., 2024],
    or 0.2 sqrt(max(n, m)), so that rates of AdamW fit [Liu et al., arXiv:2502.16982]"""
    ns_steps: Annotated[int, Field(ge=1, lt=100, examples=[5])]
    """steps of Newton-Schulz's iteration, which makes a matrix about orthogonal"""
    groups: Annotated[
        list[dict[str, Any]],
        example([{"match": "bias|norm", "weight_decay": 0}]),
        Neutral([]),
    ] = []
    """parameters with options of their own: `match`, a regular expression in their names, `hidden`,
    whether they are matrices other than an embedding and the output layer, lr_scale, and any option
    of the optimizer, or `kind` (or _target_) of another one and its options; the first match
    counts"""


class ParameterGroup(OptimizerSettings):
    """The keys of an entry of optimizer.groups, beside the options of the group's optimizer."""

    closed = False  # its optimizer refuses an option that it lacks

    match: Annotated[str, Field(title="a text in quotes, as in match:'1'")]
    """a regular expression in the names of the group's parameters"""
    hidden: bool
    """whether they are matrices other than an embedding and the output layer"""
    lr_scale: NonNegative
    """factor of the optimizer's rate"""


class ScheduleSettings(OpenSettings):
    """The keys of conf/schedule, with their defaults."""

    kind: Literal["constant", "steps", "cosine", "linear"] = "constant"
    """the rate stays, falls at milestones, along half a cosine to zero, or along a line to
    end_factor"""
    milestones: Annotated[
        list[Annotated[float, Field(gt=0, lt=1)]] | None,
        example([0.5, 0.75]),
        Needs("schedule.kind", ("steps",)),
    ] = None
    """fractions of the run after which the rate is multiplied by gamma"""
    gamma: Annotated[NonNegative, Needs("schedule.kind", ("steps",))] = 0.1
    """factor of the rate at each milestone"""
    end_factor: Annotated[
        NonNegative, example(0.07), Needs("schedule.kind", ("linear",)), Neutral(0.0)
    ] = 0.0
    """share of the rate to which the line of kind=linear falls, from the end of the warm-up to that
    of the run"""
    warmup_epochs: Annotated[NonNegative, example(5)] = 0.0
    """epochs in which the rate rises linearly"""
    warmup_start: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None,
        example(0.1),
        Needs("schedule.warmup_epochs", (5,)),
        Neutral(None),
    ] = None
    """fraction of the full rate at step 0; null: the rate of a single worker with scale_by_workers,
    else about 0"""
    scale_by_workers: bool = False
    """true: the rate times the number of workers"""
    interval: Annotated[Literal["step", "epoch"], Neutral("step")] = "step"
    """when the rate changes, or step() of schedule._target_ is called: after every update, or every
    epoch"""


class EstimatorSettings(OpenSettings):
    """All keys of conf/estimator; each file has the subset that its estimator takes."""

    total = False

    epoch_steps: Annotated[Count | None, example(100)]
    """steps T from one full gradient to the next; null: a pass over the data [QSGD, section 3.3]"""
    penalty: Annotated[NonNegative, example(0.01)]
    """weight of ||x||^2 / 2 in what is minimized; takes the place of optimizer.weight_decay"""
    every: Annotated[Count, example(8)] = 1
    """steps H that a worker takes by itself from one exchange of a parameter to the next [Douillard
    et al., arXiv:2311.08105]"""
    fragments: Annotated[Count, example(4)]
    """parts of the model, each exchanged every H steps at an offset of its own [Douillard et al.,
    arXiv:2501.18512]"""
    pattern: Annotated[Literal["sequential", "strided"], Neutral("sequential")]
    """fragments of consecutive tensors with about as many values, or layers dealt out in turn
    [Douillard et al., arXiv:2501.18512, section 2.2]"""
    delay: Annotated[Natural, example(1), Neutral(0)] = 0
    """steps tau that workers take while a fragment is exchanged [same, section 2.3]"""
    mixing: Annotated[Share, example(0.5), Neutral(0.0)]
    """weight alpha of a worker's own parameters where it takes the shared ones; 0: it takes these
    [same, section 2.3]"""
    outer_lr: Annotated[Positive, example(0.7)]
    """rate of the outer optimizer, which applies the aggregated differences"""
    outer_momentum: Annotated[Share, example(0.9)]
    """weight of the outer optimizer's old momentum in the new; 0: none"""
    outer_nesterov: bool
    """true: the outer step looks ahead, as in torch.optim.SGD; needs momentum"""
    clip_norm: Annotated[Positive | None, example(1)]
    """2-norm to which a worker scales its gradient down before its own step; null: none"""
    max_every: Annotated[Count, example(16)]
    """most steps H from one exchange to the next, once the variance is frozen [0/1 Adam, section
    5]"""
    double_steps: Annotated[Count, example(1000)]
    """steps with a frozen variance after which the steps between exchanges double [0/1 Adam,
    section 5]"""
