"""All keys of methods, written by scripts/keys from their classes: change them there."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from gcbench.core.fields import (
    WITH_FEEDBACK,
    Bits,
    Count,
    Distinct,
    Fraction,
    Natural,
    Needs,
    Neutral,
    NonNegative,
    Period,
    Positive,
    Settings,
    Share,
    Weight,
    example,
)


class MethodSettings(Settings):
    """All keys of conf/compressor; each file has the subset that its method takes."""

    total = False

    bits: Annotated[Bits, example(4)]
    """bits of a code, sign included; 1 only for eden"""
    convolution_bits: Annotated[int, Field(ge=2, le=8), example(4)]
    """bits of a code of a convolution; `bits` is that of other layers"""
    accumulate: Annotated[Literal["wire", "fp32"], Neutral("wire")]
    """where half-precision gradients are added: in the type on the wire, as all-reduces do, or in
    fp32 by the owners of shards, with one more rounding for the way back"""
    rounding: Annotated[Literal["nearest", "stochastic"], Neutral("nearest")]
    """how values are rounded to a float format: to the nearest value, or up or down by chance, so
    that the mean is right"""
    format: Literal["fp32", "bf16"] | Literal["e4m3", "e5m2"] | Literal["e2m3", "e3m2"]
    """exponents: what is coded without loss: fp32, or gradients rounded to bf16; mxfp8, fp8: bits
    of exponent and mantissa of a float of 8 bits [OCP MX, section 5.3]; mxfp6: bits of exponent and
    mantissa of a float of 6 bits"""
    bucket_size: Annotated[Count, example(512), Needs("per_layer", (False,))]
    """values that share a scale, and for eden are rotated together [QSGD, section 4]"""
    scale: Annotated[Literal["unbiased", "biased", "rms"] | Literal["mean", "rms"], Neutral("mean")]
    """magnitude of the signs of a bucket: its mean magnitude, which is nearest, or its root mean
    square, which keeps the length [Karimireddy et al. (2019), algorithm 1; 1-bit Adam, section 4];
    eden: scale of the levels that makes the code unbiased, or nearest (biased), or the root mean
    square [EDEN, section 3; TurboQuant, algorithm 1]"""
    per_layer: bool
    """true: every tensor is one bucket, whatever its size"""
    levels: Annotated[int, Field(ge=1, le=127), example(7)]
    """levels s above zero, 2^(bits-1) - 1; typed by itself it sets bits [QSGD, section 3.1]"""
    norm: Literal["linf", "l2"]
    """the scale of a bucket: its largest magnitude, or its 2-norm"""
    level_count: Annotated[int, Field(ge=2, le=256), example(9)]
    """levels s in all; 2^K + 1 for orq [ORQ, section 3.1]"""
    scales: Annotated[Distinct[Annotated[int, Field(ge=0, le=12)]], example([2, 6])]
    """log2 of the levels of each scale, without sign; each value uses the largest scale at which
    its codes fit [Vineeth S, algorithm 2]"""
    momentum: Annotated[Share, example(0.9)]
    """signum: weight beta of the old momentum, each worker's own, before signs are taken [Signum,
    algorithm 1]; demo: weight beta of the old momentum, from which what is sent is taken [DeMo,
    section 3]; dgc: weight m of the old velocity [DGC, algorithm 4]; ef21_muon: weight of the old
    momentum, before it is coded; dion, dion2: share mu of what was sent that stays in each worker's
    momentum [Dion, algorithm 1]"""
    momentum_start: Annotated[
        Literal["warmup", "zero"] | Literal["zero", "gradient"], Neutral("zero")
    ]
    """onebit_adam: the momentum that is coded starts from that of the uncompressed steps, or from
    zero [1-bit Adam, algorithm 1]; signum: momentum before the first step: zero, or the first
    gradient"""
    fraction: Annotated[Fraction, example(0.01)]
    """share of the values of a tensor that is sent; sparseloco: share of the values of a chunk that
    is sent; dion2: share of the rows that is sent"""
    index: Literal["int32", "auto"]
    """bits of a position: 32, or as few as the tensor's size needs"""
    coefficients: Annotated[Count, example(32)]
    """frequencies K of a block that are sent, those of largest magnitude [DeMo, section 3]"""
    chunk_side: Annotated[Count, example(64)]
    """largest side s of a block of a matrix, whose frequencies are sent [DeMo, section 3]"""
    combine: Annotated[Literal["mean", "senders"], Neutral("mean")]
    """what the sum of a value over workers is divided by: the number of workers, or of those that
    sent the value [SparseLoCo, algorithm 1; the code of DeMo and of SparseLoCo]"""
    warmup_steps: Annotated[Natural, example(1000), Neutral(0)]
    """first steps, in which 1/4, 1/16, 1/64 and 1/256 of the values are sent [DGC, section 3.3]"""
    k: Annotated[Count, example(10000)]
    """values drawn from the whole gradient every step, the same on all workers [Vineeth S, section
    3.3]"""
    rank: Annotated[Count, example(2)]
    """columns r of the factors [PowerSGD, algorithm 1]; random_block, random_k: a budget of r (n +
    m) values; atomo: singular values kept"""
    chunk_size: Annotated[Count, example(4096)]
    """values of a chunk, of which `fraction` is sent [SparseLoCo, section 3]"""
    warm_start: Annotated[bool, Needs("svd", (False,))]
    """true: start from the last step's factors; false: from random ones [PowerSGD, section 4.2]"""
    residual: Annotated[Literal["own", "aggregated"], WITH_FEEDBACK]
    """what the error-feedback residual leaves out: the worker's own projection, or the aggregated
    update [PowerSGD, algorithm 2, and the authors' code]"""
    iterations: Annotated[Count, example(3)]
    """power iterations a step, each sent [PowerSGD, table 2]"""
    svd: bool
    """true: send whole gradients and keep the best rank-r approximation of their mean"""
    variant: Literal["published", "unbiased"] | Literal["text", "alternating"]
    """atomo: drawn again until `rank` values are kept, or drawn once [PowerSGD, table 6; ATOMO];
    unbiased_lowrank: the sketch as printed, or half a power iteration a step as published
    [PowerSGD, section 4.1]"""
    code: Literal["fixed", "elias_dense", "elias_sparse", "ans"]
    """how codes are written: with a fixed number of bits, as Elias codes of all or of only nonzero
    values, or by an entropy code (on the CPU); all but fixed need exchange=gather [QSGD, section
    3.1; ECQ-SGD, section 3]"""
    exchange: Literal["gather", "scatter", "scatter_coded", "ring", "sum", "hierarchical"]
    """how codes are sent: all to all, by shards (means in fp32, or coded too), in a ring that codes
    the sum again at every hop, summed on one grid (not bingrad_b, scaled_sign, onebit, onebit_adam,
    natural), or between nodes only"""
    workers_per_node: Annotated[Count | None, example(4)]
    """workers that average in fp32 before nodes exchange codes, with exchange=hierarchical; null:
    all workers of a host, for gcbench.compress and benchmarks"""
    align: bool
    """true: buckets hold whole receptive fields, height x width of a filter [QSGD, section 5]"""
    adapt_every: Annotated[Period | None, example(50), Neutral(None)]
    """steps (with local steps, exchanges) after which the bits, or the rank, of each tensor are
    chosen anew, for the least error with as many bits as `bits` or `rank` would send; null: all
    tensors have the same [L-GreCo, algorithm 1]"""
    bucket_scope: Annotated[Literal["tensor", "gradient"], Neutral("tensor")]
    """whether buckets restart at every tensor or run through the whole gradient; top_k: whether the
    largest values are those of every tensor or of the whole gradient"""
    rotate: Annotated[Literal["none", "hadamard"], Neutral("none")]
    """hadamard: gradients are rotated before they are coded, and their mean back, so that large
    values spread over blocks of 4,096; not with align, scatter_coded [Suresh et al. (2017), section
    3]"""
    clip_sigma: Annotated[Positive | None, example(2.5)]
    """values are clipped to so many standard deviations of their tensor; null: no clipping
    [TernGrad, section 4]"""
    error_feedback: bool | Literal["ef21", "loco"]
    """true: the residual, what was not sent, joins the next gradient; ef21: what is coded is how
    much the gradient differs from the sum of what was sent before; loco: the residual is kept in 8
    bits [PowerSGD, algorithm 2; EF21, algorithm 2; LoCo, algorithm 1]"""
    alpha: Annotated[NonNegative, example(1), WITH_FEEDBACK]
    """weight of the residual in what is coded [ECQ-SGD, equation 6]"""
    beta: Annotated[Weight, example(1), WITH_FEEDBACK]
    """weight of the old residual in the new [ECQ-SGD, equation 7]"""
    reset_steps: Annotated[Count | None, example(1024), Needs("error_feedback", ("loco",))]
    """steps (with local steps, exchanges) after which the residual is set to zero, with
    error_feedback=loco; null: never [LoCo, algorithm 1]"""
    min_size: Annotated[Natural, example(10000)]
    """tensors of fewer values are sent uncompressed; 0: none are [QSGD, section 5]"""
    min_ratio: Annotated[NonNegative, example(1), Neutral(0.0)]
    """matrices are sent uncompressed where the method would send more than 1 / min_ratio of their
    values; 0: none are [PyTorch's min_compression_rate]"""
    dense_steps: Annotated[Natural, example(100)]
    """first steps (with local steps, first exchanges) in which gradients are sent uncompressed"""
    clip_norm: Annotated[Positive | None, example(0.4)]
    """2-norm to which each worker's gradient is clipped first; null: no clipping"""


class LayerKeys(TypedDict, total=False):
    """The keys of the layers around a method, which `gcbench.build` takes."""

    code: Literal["fixed", "elias_dense", "elias_sparse", "ans"]
    exchange: Literal["gather", "scatter", "scatter_coded", "ring", "sum", "hierarchical"]
    workers_per_node: Annotated[Count | None, example(4)]
    align: bool
    adapt_every: Annotated[Period | None, example(50), Neutral(None)]
    bucket_scope: Annotated[Literal["tensor", "gradient"], Neutral("tensor")]
    rotate: Annotated[Literal["none", "hadamard"], Neutral("none")]
    clip_sigma: Annotated[Positive | None, example(2.5)]
    error_feedback: bool | Literal["ef21", "loco"]
    alpha: Annotated[NonNegative, example(1), WITH_FEEDBACK]
    beta: Annotated[Weight, example(1), WITH_FEEDBACK]
    reset_steps: Annotated[Count | None, example(1024), Needs("error_feedback", ("loco",))]
    momentum: Annotated[Share | None, example(0.9)]
    momentum_start: Annotated[Literal["warmup", "zero"], Neutral("zero")]
    min_size: Annotated[Natural, example(10000)]
    min_dims: Natural
    min_ratio: Annotated[NonNegative, example(1), Neutral(0.0)]
    dense_steps: Annotated[Natural, example(100)]
    clip_norm: Annotated[Positive | None, example(0.4)]


OF_LAYERS = (
    "code",
    "exchange",
    "workers_per_node",
    "align",
    "adapt_every",
    "bucket_scope",
    "rotate",
    "clip_sigma",
    "error_feedback",
    "alpha",
    "beta",
    "reset_steps",
    "min_size",
    "min_ratio",
    "dense_steps",
    "clip_norm",
)
"""Keys of a method's file that a layer takes, and no method."""
