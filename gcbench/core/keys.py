"""The keys of conf/compressor; methods annotate their fields with these types."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gcbench.core.errors import IdleKeyError
from gcbench.core.fields import (
    Count,
    Natural,
    NonNegative,
    Positive,
    Settings,
    Share,
    example,
    format_value,
    hints_of,
    marks_in,
)
from gcbench.core.marks import Needs, Neutral


def _all_differ(values: Sequence[int]) -> Sequence[int]:
    if len(set(values)) < len(values):
        raise ValueError
    return values


Bits = Annotated[int, Field(ge=2, le=8)]
LevelBits = Annotated[int, Field(ge=1, le=8)]
Levels = Annotated[int, Field(ge=1, le=127)]
LevelCount = Annotated[int, Field(ge=2, le=256)]
Scales = Annotated[
    Sequence[Annotated[int, Field(ge=0, le=12)]],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_all_differ),
]
Fraction = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, le=1)]
BucketScope = Literal["tensor", "gradient"]
Code = Literal["fixed", "elias_dense", "elias_sparse", "ans"]
Exchange = Literal["gather", "scatter", "scatter_coded", "ring", "sum", "hierarchical"]
Rotation = Literal["none", "hadamard"]
AdaptEvery = Annotated[int, Field(ge=10)]
Accumulate = Literal["wire", "fp32"]
Rounding = Literal["nearest", "stochastic"]
Plain = Literal["fp32", "bf16"]
Format8 = Literal["e4m3", "e5m2"]
Format6 = Literal["e2m3", "e3m2"]
Format4 = Literal["e2m1"]
NormKind = Literal["linf", "l2"]
SubtractedUpdate = Literal["own", "aggregated"]
IndexCode = Literal["int32", "auto"]
MomentumStart = Literal["zero", "gradient"]
CodedStart = Literal["warmup", "zero"]
SignScale = Literal["mean", "rms"]
EdenScale = Literal["unbiased", "biased", "rms"]
RotationSize = Literal[16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768]
Combine = Literal["mean", "senders"]
LowRankVariant = Literal["text", "alternating"]
AtomoVariant = Literal["published", "unbiased"]
WithErrorFeedback = bool | Literal["ef21", "loco"]

WITH_FEEDBACK = Needs("error_feedback", (True, "loco", "ef21"))


class MethodSettings(Settings):
    """All keys of conf/compressor; each file has the subset that its method takes."""

    total = False

    bits: Annotated[LevelBits, example(4)]
    """bits of a code, sign included; 1 only for eden"""
    levels: Annotated[Levels, example(7)]
    """levels s above zero, 2^(bits-1) - 1; typed by itself it sets bits [QSGD, section 3.1]"""
    convolution_bits: Annotated[Bits, example(4)]
    """bits of a code of a convolution; `bits` is that of other layers"""
    bucket_size: Annotated[Count, example(512), Needs("per_layer", (False,))]
    """values that share a scale, and for eden are rotated together [QSGD, section 4]"""
    bucket_scope: Annotated[BucketScope, Neutral("tensor")]
    """whether buckets restart at every tensor or run through the whole gradient; top_k: whether the
    largest values are those of every tensor or of the whole gradient"""
    format: Format8 | Format6 | Plain
    """float format that is sent: how many bits are exponent and mantissa, of 8 bits (fp8, mxfp8) or
    of 6 (mxfp6); exponents: fp32, or gradients rounded to bf16 [OCP MX, section 5.3]"""
    level_count: Annotated[LevelCount, example(9)]
    """levels in all; 2^K + 1 for orq [ORQ, section 3.1]"""
    per_layer: bool
    """true: every tensor is one bucket, whatever its size"""
    code: Code
    """how codes are written: with a fixed number of bits, as Elias codes of all or of only nonzero
    values, or by an entropy code (on the CPU); all but fixed need exchange=gather [QSGD, section
    3.1; ECQ-SGD, section 3]"""
    exchange: Exchange
    """how codes are sent: all to all, by shards (means in fp32, or coded too), in a ring that codes
    the sum again at every hop, summed on one grid (not bingrad_b, scaled_sign, onebit,
    onebit_adam, natural), or between nodes only"""
    rotate: Annotated[Rotation, Neutral("none")]
    """hadamard: gradients are rotated before they are coded, and their mean back, so that large
    values spread over blocks of 4,096; not with align, scatter_coded [Suresh et al. (2017),
    section 3]"""
    accumulate: Annotated[Accumulate, Neutral("wire")]
    """where half-precision gradients are added: in the type on the wire, as all-reduces do, or in
    fp32 by the owners of shards, with one more rounding for the way back"""
    rounding: Annotated[Rounding, Neutral("nearest")]
    """how values are rounded to a float format: to the nearest value, or up or down by chance, so
    that the mean is right"""
    workers_per_node: Annotated[Count | None, example(4)]
    """workers that average in fp32 before nodes exchange codes, with exchange=hierarchical; null:
    all workers of a host, for gcbench.compress and benchmarks"""
    align: bool
    """true: buckets hold whole receptive fields, height x width of a filter [QSGD, section 5]"""
    norm: NormKind
    """the scale of a bucket: its largest magnitude, or its 2-norm"""
    scales: Annotated[Scales, example([2, 6])]
    """log2 of the levels of each scale, without sign; each value uses the largest scale at which
    its codes fit [Vineeth S, algorithm 2]"""
    k: Annotated[Count, example(10000)]
    """values drawn from the whole gradient every step, the same on all workers [Vineeth S, section
    3.3]"""
    rank: Annotated[Count, example(2)]
    """columns r of the factors; atomo: singular values kept; random_k, random_block: a budget of r
    (n + m) values [PowerSGD, algorithm 1]"""
    warm_start: Annotated[bool, Needs("svd", (False,))]
    """true: start from the last step's factors; false: from random ones [PowerSGD, section 4.2]"""
    iterations: Annotated[Count, example(3)]
    """power iterations a step, each sent [PowerSGD, table 2]"""
    svd: bool
    """true: send whole gradients and keep the best rank-r approximation of their mean"""
    residual: Annotated[SubtractedUpdate, WITH_FEEDBACK]
    """what the error-feedback residual leaves out: the worker's own projection, or the aggregated
    update [PowerSGD, algorithm 2, and the authors' code]"""
    fraction: Annotated[Fraction, example(0.01)]
    """share of the values of a tensor that is sent; dion2: of rows"""
    warmup_steps: Annotated[Natural, example(1000), Neutral(0)]
    """dgc: first steps, in which 1/4, 1/16, 1/64 and 1/256 of the values are sent [DGC, section
    3.3]"""
    chunk_size: Annotated[Count, example(4096)]
    """values of a chunk, of which `fraction` is sent [SparseLoCo, section 3]"""
    chunk_side: Annotated[Count, example(64)]
    """largest side of a block of a matrix, whose frequencies are sent [DeMo, section 3]"""
    coefficients: Annotated[Count, example(32)]
    """frequencies of a block that are sent, those of largest magnitude [DeMo, section 3]"""
    index: IndexCode
    """bits of a position: 32, or as few as the tensor's size needs"""
    momentum: Annotated[Share, example(0.9)]
    """weight of the old momentum, each worker's own, before signs are taken [Signum, algorithm 1];
    ef21_muon: before it is coded [EF21-Muon]; dion and dion2: share of what was sent that stays in
    each worker's momentum [Dion, algorithm 1]; dgc: weight of the old velocity [DGC, algorithm
    4]"""
    momentum_start: Annotated[MomentumStart | CodedStart, Neutral("zero")]
    """signum: momentum before the first step: zero, or the first gradient; onebit_adam: the
    momentum that is coded starts from that of the uncompressed steps, or from zero [1-bit Adam,
    algorithm 1]"""
    scale: Annotated[SignScale | EdenScale, Neutral("mean")]
    """magnitude of the signs of a bucket: its mean magnitude, which is nearest, or its root mean
    square, which keeps the length [Karimireddy et al. (2019), algorithm 1; 1-bit Adam, section
    4]; eden: scale of the levels that makes the code unbiased, or nearest (biased), or the root
    mean square [EDEN, section 3; TurboQuant, algorithm 1]"""
    combine: Annotated[Combine, Neutral("mean")]
    """what the sum of a value over workers is divided by: the number of workers, or of those that
    sent the value [SparseLoCo, algorithm 1; the code of DeMo and of SparseLoCo]"""
    variant: LowRankVariant | AtomoVariant
    """unbiased_lowrank: the sketch as printed, or half a power iteration a step as published
    [PowerSGD, section 4.1]; atomo: drawn again until `rank` values are kept, or drawn once
    [PowerSGD, table 6; ATOMO]"""
    adapt_every: Annotated[AdaptEvery | None, example(50), Neutral(None)]
    """steps (with local steps, exchanges) after which the bits, or the rank, of each tensor are
    chosen anew, for the least error with as many bits as `bits` or `rank` would send; null: all
    tensors have the same [L-GreCo, algorithm 1]"""
    min_size: Annotated[Natural, example(10000)]
    """tensors of fewer values are sent uncompressed; 0: none are [QSGD, section 5]"""
    min_ratio: Annotated[NonNegative, example(1), Neutral(0.0)]
    """matrices are sent uncompressed where the method would send more than 1 / min_ratio of their
    values; 0: none are [PyTorch's min_compression_rate]"""
    error_feedback: WithErrorFeedback
    """true: the residual, what was not sent, joins the next gradient; ef21: what is coded is how
    much the gradient differs from the sum of what was sent before; loco: the residual is kept in
    8 bits [PowerSGD, algorithm 2; EF21, algorithm 2; LoCo, algorithm 1]"""
    alpha: Annotated[NonNegative, example(1), WITH_FEEDBACK]
    """weight of the residual in what is coded [ECQ-SGD, equation 6]"""
    beta: Annotated[Beta, example(1), WITH_FEEDBACK]
    """weight of the old residual in the new [ECQ-SGD, equation 7]"""
    reset_steps: Annotated[Count | None, example(1024), Needs("error_feedback", ("loco",))]
    """steps (with local steps, exchanges) after which the residual is set to zero, with
    error_feedback=loco; null: never [LoCo, algorithm 1]"""
    clip_norm: Annotated[Positive | None, example(0.4)]
    """2-norm to which each worker's gradient is clipped first; null: no clipping"""
    clip_sigma: Annotated[Positive | None, example(2.5)]
    """values are clipped to so many standard deviations of their tensor; null: no clipping
    [TernGrad, section 4]"""
    dense_steps: Annotated[Natural, example(100)]
    """first steps (with local steps, first exchanges) in which gradients are sent uncompressed"""


FACTS = {"form", "recommended"}  # what a method's file says of it, and nothing computes with
NO_KNOBS = {"compressor", "_target_", *FACTS}
NEEDS = {
    name: mark
    for name, hint in hints_of(MethodSettings).items()
    for mark in marks_in(hint)
    if isinstance(mark, Needs)
}


def sort_keys(keys: Collection[str]) -> list[str]:
    """Return keys of methods in the order of their model, followed by those that it lacks."""
    known = list(MethodSettings.model_fields)
    return sorted(keys, key=lambda key: known.index(key) if key in known else len(known))


def refuse_idle_keys(
    flat: Mapping[str, Any], typed: Collection[str], all_needs: Mapping[str, Needs] = NEEDS
) -> None:
    """Raise IdleKeyError for a typed key that nothing reads: a sweep of it would repeat one run.

    `flat` has the values of a run, or of a method, by key as it is typed.
    """
    for name in sorted(typed):
        if name.partition(".")[0] in FACTS:
            raise IdleKeyError(
                f"{name}: a method's file says this of it, and nothing is computed with it; leave "
                "it out"
            )
    for key, needs in all_needs.items():
        if key in typed and needs.key in flat and not needs.met_by(flat[needs.key]):
            raise IdleKeyError(
                f"{_typed(key, flat[key])} has no effect with {_typed(needs.key, flat[needs.key])};"
                f" type {_typed(needs.key, needs.values[0])} too, or leave it out"
            )


def _typed(key: str, value: Any) -> str:
    """Return `key=value`; the `kind` of a group is typed as its choice."""
    return f"{key.removesuffix('.kind')}={format_value(value)}"
