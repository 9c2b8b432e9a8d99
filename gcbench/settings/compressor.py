"""The keys of conf/compressor; methods annotate their fields with these types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from gcbench.knobs import Knob
from gcbench.settings.wrappers import (
    Align,
    Alpha,
    Beta,
    BucketScope,
    ClipNorm,
    ClipSigma,
    Code,
    CodedStart,
    DenseSteps,
    Exchange,
    MinRatio,
    MinSize,
    ResetSteps,
    WithErrorFeedback,
    WorkersPerNode,
)

BITS = Knob(
    "bits of a code, sign included",
    unit="a number of bits",
    at_least=2,
    at_most=8,
    example=4,
)
Bits = Annotated[int, BITS]
ConvolutionBits = Annotated[
    int, replace(BITS, about="bits of a code of a convolution; `bits` is that of other layers")
]
Levels = Annotated[
    int,
    Knob(
        "levels s above zero, 2^(bits-1) - 1; typed by itself it sets bits",
        unit="a number of levels",
        at_least=1,
        at_most=127,
        example=7,
        source="QSGD, section 3.1",
    ),
]
BucketSize = Annotated[
    int,
    Knob(
        "values that share a scale",
        unit="a number of values",
        at_least=1,
        example=512,
        source="QSGD, section 4",
    ),
]
LevelCount = Annotated[
    int,
    Knob(
        "levels in all; 2^K + 1 for orq",
        unit="a number of levels",
        at_least=2,
        at_most=256,
        example=9,
        source="ORQ, section 3.1",
    ),
]
PerLayer = Annotated[bool, Knob("true: every tensor is one bucket, whatever its size")]
NormKind = Annotated[
    Literal["linf", "l2"], Knob("the scale of a bucket: its largest magnitude, or its 2-norm")
]
Scales = Annotated[
    Sequence[int],
    Knob(
        "log2 of the levels of each scale, without sign; each value uses the largest scale at "
        "which its codes fit",
        unit="different whole numbers of bits",
        at_least=0,
        at_most=12,
        distinct=True,
        filled=True,
        example=[2, 6],
        source="Vineeth S, algorithm 2",
    ),
]
K = Annotated[
    int,
    Knob(
        "values drawn from the whole gradient every step, the same on all workers",
        unit="a number of values",
        at_least=1,
        example=10000,
        source="Vineeth S, section 3.3",
    ),
]
Rank = Annotated[
    int,
    Knob(
        "columns r of the factors; atomo: singular values kept; random_k, random_block: a budget "
        "of r (n + m) values",
        unit="a rank",
        at_least=1,
        example=2,
        source="PowerSGD, algorithm 1",
    ),
]
WarmStart = Annotated[
    bool,
    Knob(
        "true: start from the last step's factors; false: from random ones",
        source="PowerSGD, section 4.2",
    ),
]
Iterations = Annotated[
    int,
    Knob(
        "power iterations a step, each sent",
        unit="a number of power iterations",
        at_least=1,
        example=3,
        source="PowerSGD, table 2",
    ),
]
Svd = Annotated[
    bool,
    Knob("true: send whole gradients and keep the best rank-r approximation of their mean"),
]
SubtractedUpdate = Annotated[
    Literal["own", "aggregated"],
    Knob(
        "what the error-feedback residual leaves out: the worker's own projection, or the "
        "aggregated update",
        source="PowerSGD, algorithm 2, and the authors' code",
    ),
]
Fraction = Annotated[
    float,
    Knob(
        "share of the values of a tensor that is sent",
        unit="a share of the values",
        above=0,
        at_most=1,
        example=0.01,
    ),
]
ChunkSize = Annotated[
    int,
    Knob(
        "values of a chunk, of which `fraction` is sent",
        unit="a number of values",
        at_least=1,
        example=4096,
        source="SparseLoCo, section 3",
    ),
]
ChunkSide = Annotated[
    int,
    Knob(
        "largest side of a block of a matrix, whose frequencies are sent",
        unit="a number of values",
        at_least=1,
        example=64,
        source="DeMo, section 3",
    ),
]
Coefficients = Annotated[
    int,
    Knob(
        "frequencies of a block that are sent, those of largest magnitude",
        unit="a number of coefficients",
        at_least=1,
        example=32,
        source="DeMo, section 3",
    ),
]
IndexCode = Annotated[
    Literal["int32", "auto"],
    Knob("bits of a position: 32, or as few as the tensor's size needs"),
]
SignumMomentum = Annotated[
    float,
    Knob(
        "weight of the old momentum, each worker's own, before signs are taken",
        unit="a weight",
        at_least=0,
        below=1,
        example=0.9,
        source="Signum, algorithm 1",
    ),
]
KeptMomentum = Annotated[
    float,
    Knob(
        "dion: share of what was sent that stays in each worker's momentum",
        unit="a share",
        at_least=0,
        below=1,
        example=0.95,
        source="Dion, algorithm 1",
    ),
]
MomentumStart = Annotated[
    Literal["zero", "gradient"],
    Knob("signum: momentum before the first step: zero, or the first gradient"),
]
SignScale = Annotated[
    Literal["mean", "rms"],
    Knob(
        "magnitude of the signs of a bucket: its mean magnitude, which is nearest, or its root "
        "mean square, which keeps the length",
        source="Karimireddy et al. (2019), algorithm 1; 1-bit Adam, section 4",
    ),
]
Combine = Annotated[
    Literal["mean", "senders"],
    Knob(
        "what the sum of a value over workers is divided by: the number of workers, or of those "
        "that sent the value",
        source="SparseLoCo, algorithm 1; the code of DeMo and of SparseLoCo",
    ),
]
LowRankVariant = Annotated[
    Literal["text", "alternating"],
    Knob(
        "unbiased_lowrank: the sketch as printed, or half a power iteration a step as published",
        source="PowerSGD, section 4.1",
    ),
]
AtomoVariant = Annotated[
    Literal["published", "unbiased"],
    Knob(
        "atomo: drawn again until `rank` values are kept, or drawn once",
        source="PowerSGD, table 6; ATOMO",
    ),
]


@dataclass
class MethodSettings:
    """All keys of conf/compressor; each file has the subset that its method takes."""

    bits: Bits
    levels: Levels
    convolution_bits: ConvolutionBits
    bucket_size: BucketSize
    bucket_scope: BucketScope
    level_count: LevelCount
    per_layer: PerLayer
    code: Code
    exchange: Exchange
    workers_per_node: WorkersPerNode | None
    align: Align
    norm: NormKind
    scales: Scales
    k: K
    rank: Rank
    warm_start: WarmStart
    iterations: Iterations
    svd: Svd
    residual: SubtractedUpdate
    fraction: Fraction
    chunk_size: ChunkSize
    chunk_side: ChunkSide
    coefficients: Coefficients
    index: IndexCode
    momentum: SignumMomentum | KeptMomentum
    momentum_start: MomentumStart | CodedStart
    scale: SignScale
    combine: Combine
    variant: LowRankVariant | AtomoVariant
    min_size: MinSize
    min_ratio: MinRatio
    error_feedback: WithErrorFeedback
    alpha: Alpha
    beta: Beta
    reset_steps: ResetSteps | None
    clip_norm: ClipNorm | None
    clip_sigma: ClipSigma | None
    dense_steps: DenseSteps
