"""The keys of conf/compressor that `gcbench.compressors.build` takes, whatever the method.

They say how codes are sent, and what is around a method, such as error feedback.
"""

from __future__ import annotations

from typing import Annotated, Literal

from gcbench.knobs import Knob

BucketScope = Annotated[
    Literal["tensor", "gradient"],
    Knob("whether buckets restart at every tensor or run through the whole gradient"),
]
Align = Annotated[
    bool,
    Knob(
        "true: buckets hold whole receptive fields, height x width of a filter",
        source="QSGD, section 5",
    ),
]
Code = Annotated[
    Literal["fixed", "elias_dense", "elias_sparse", "ans"],
    Knob(
        "how codes are written: with a fixed number of bits, as Elias codes of all or of only "
        "nonzero values, or by an entropy code (on the CPU); all but fixed need exchange=gather",
        source="QSGD, section 3.1; ECQ-SGD, section 3",
    ),
]
Exchange = Annotated[
    Literal["gather", "scatter", "scatter_coded", "sum", "hierarchical"],
    Knob(
        "how codes are sent: all to all, by shards (means in fp32, or coded too), summed on one "
        "grid (not bingrad_b, scaled_sign, onebit, onebit_adam, natural), or between nodes only",
    ),
]
WorkersPerNode = Annotated[
    int,
    Knob(
        "workers that average in fp32 before nodes exchange codes, with exchange=hierarchical; "
        "null: all workers of a host, for gcbench.compress and benchmarks",
        unit="a number of workers",
        at_least=1,
        example=4,
    ),
]
CodedMomentum = Annotated[
    float,
    Knob(
        "onebit_adam: weight of the old momentum, the same on all workers, in what is coded; that "
        "of the optimizer",
        unit="a weight",
        at_least=0,
        below=1,
        example=0.9,
        source="1-bit Adam, algorithm 1",
    ),
]
CodedStart = Annotated[
    Literal["warmup", "zero"],
    Knob(
        "onebit_adam: the momentum that is coded starts from that of the uncompressed steps, or "
        "from zero",
        source="1-bit Adam, algorithm 1",
    ),
]
MinSize = Annotated[
    int,
    Knob(
        "tensors of fewer values are sent uncompressed; 0: none are",
        unit="a number of values",
        at_least=0,
        example=10000,
        source="QSGD, section 5",
    ),
]
MinDims = Annotated[
    int,
    Knob(
        "tensors of fewer dimensions are sent uncompressed",
        unit="a number of dimensions",
        at_least=0,
        example=2,
    ),
]
MinRatio = Annotated[
    float,
    Knob(
        "matrices are sent uncompressed where the method would send more than 1 / min_ratio of "
        "their values; 0: none are",
        unit="a ratio",
        at_least=0,
        example=1,
        source="PyTorch's min_compression_rate",
    ),
]
WithErrorFeedback = Annotated[
    bool | Literal["ef21", "loco"],
    Knob(
        "true: the residual, what was not sent, joins the next gradient; ef21: what is coded is "
        "how much the gradient differs from the sum of what was sent before; loco: the residual "
        "is kept in 8 bits",
        source="PowerSGD, algorithm 2; EF21, algorithm 2; LoCo, algorithm 1",
    ),
]
Alpha = Annotated[
    float,
    Knob(
        "weight of the residual in what is coded",
        unit="a weight",
        at_least=0,
        example=1,
        source="ECQ-SGD, equation 6",
    ),
]
Beta = Annotated[
    float,
    Knob(
        "weight of the old residual in the new",
        unit="a weight",
        at_least=0,
        at_most=1,
        example=1,
        source="ECQ-SGD, equation 7",
    ),
]
ResetSteps = Annotated[
    int,
    Knob(
        "steps (with local steps, exchanges) after which the residual is set to zero, with "
        "error_feedback=loco; null: never",
        unit="a number of steps",
        at_least=1,
        example=1024,
        source="LoCo, algorithm 1",
    ),
]
ClipNorm = Annotated[
    float,
    Knob(
        "2-norm to which each worker's gradient is clipped first; null: no clipping",
        unit="a norm",
        above=0,
        example=0.4,
    ),
]
ClipSigma = Annotated[
    float,
    Knob(
        "values are clipped to so many standard deviations of their tensor; null: no clipping",
        unit="a number",
        above=0,
        example=2.5,
        source="TernGrad, section 4",
    ),
]
DenseSteps = Annotated[
    int,
    Knob(
        "first steps (with local steps, first exchanges) in which gradients are sent uncompressed",
        unit="a number of steps",
        at_least=0,
        example=100,
    ),
]
