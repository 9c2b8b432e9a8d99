"""Build a compressor from a method and the layers around it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from typing_extensions import Unpack

from gcbench.core.codec import Codec, GridCodec, TableCodec
from gcbench.core.compressor import Compressor
from gcbench.core.exchange.aligned import Aligned
from gcbench.core.exchange.gather import GatherExchange, ScatterExchange
from gcbench.core.exchange.hierarchical import Hierarchical
from gcbench.core.exchange.ring import RingExchange
from gcbench.core.exchange.sums import CountExchange, SumExchange
from gcbench.core.fields import (
    WITH_FEEDBACK,
    Checked,
    Count,
    Natural,
    Needs,
    Neutral,
    NonNegative,
    Period,
    Positive,
    Share,
    Weight,
    example,
    fields_as_arguments,
    format_value,
    own_fields,
)
from gcbench.core.method_keys import LayerKeys
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.by_kind import ByKind
from gcbench.core.methods.ef21 import EF21, WorkerMomentum
from gcbench.core.methods.entropy_coded import apply_code
from gcbench.core.methods.loco import LoCo
from gcbench.core.methods.matrices import OfMatrices, SmallTensorsWhole, StacksOfMatrices
from gcbench.core.methods.onebit_adam import MomentumCoding
from gcbench.core.wrappers.adaptive import adapt
from gcbench.core.wrappers.virtual import parts_of
from gcbench.core.wrappers.wrappers import (
    BucketsThroughGradient,
    CheckedGradients,
    DenseWarmup,
    ErrorFeedback,
    NormClipping,
    Rotated,
    SigmaClipping,
)

Feedback = ErrorFeedback | EF21 | LoCo
"""What `error_feedback` puts around a method."""

Asked = Mapping[str, Any]
"""The values of all keys, and the `method` itself."""


@dataclass(frozen=True, kw_only=True)
class Layer(Checked, ABC):
    """Keys that belong together, and what they put around a compressor."""

    @abstractmethod
    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        """Return `inner` inside what the keys ask for; `inner` itself if they ask for nothing."""


@dataclass(frozen=True, kw_only=True)
class Sending(Checked):
    """How codes are written and sent; the innermost layer, which makes a codec a compressor."""

    code: Literal["fixed", "elias_dense", "elias_sparse", "ans"] = "fixed"
    """how codes are written: with a fixed number of bits, as Elias codes of all or of only nonzero
    values, or by an entropy code (on the CPU); all but fixed need exchange=gather [QSGD, section
    3.1; ECQ-SGD, section 3]"""
    exchange: Literal["gather", "scatter", "scatter_coded", "ring", "sum", "hierarchical"] = (
        "gather"
    )
    """how codes are sent: all to all, by shards (means in fp32, or coded too), in a ring that codes
    the sum again at every hop, summed on one grid (not bingrad_b, scaled_sign, onebit,
    onebit_adam, natural), or between nodes only"""
    workers_per_node: Annotated[Count | None, example(4)] = None
    """workers that average in fp32 before nodes exchange codes, with exchange=hierarchical; null:
    all workers of a host, for gcbench.compress and benchmarks"""
    align: bool = False
    """true: buckets hold whole receptive fields, height x width of a filter [QSGD, section 5]"""
    adapt_every: Annotated[Period | None, example(50), Neutral(None)] = None
    """steps (with local steps, exchanges) after which the bits, or the rank, of each tensor are
    chosen anew, for the least error with as many bits as `bits` or `rank` would send; null: all
    tensors have the same [L-GreCo, algorithm 1]"""

    def send(self, method: Compressor | Codec, asked: Asked) -> Compressor:
        """Return a compressor that sends the codes of a codec; a compressor sends by itself."""
        if isinstance(method, ByKind):
            _refuse_residuals_of_shards(method)
        compressor = self._send(method, asked)
        if self.adapt_every is not None:
            return adapt(method, self.adapt_every, lambda codec: self._send(codec, asked))
        if asked["error_feedback"] == "ef21" and isinstance(compressor, ScatterExchange):
            return replace(compressor, residual="all")
        return compressor

    def _send(self, method: Compressor | Codec, asked: Asked) -> Compressor:
        if isinstance(method, Compressor):
            for key, default in (
                ("align", False),
                ("code", "fixed"),
                ("exchange", "gather"),
                ("rotate", "none"),
            ):
                if asked[key] != default:
                    raise ValueError(
                        f"{key}={str(asked[key]).lower()}: {type(method).__name__} has no codes, "
                        "and decides itself how it sends; leave it out"
                    )
            return method
        if self.align:
            if not isinstance(method, Bucketed):
                raise ValueError(
                    f"align=true: {type(method).__name__} has no buckets; leave it out"
                )
            return Aligned(method, self.code)
        if self.exchange == "hierarchical":
            return Hierarchical(method, self.workers_per_node)
        return build_exchange(apply_code(method, self.code), self.exchange)


def build_exchange(codec: Codec, exchange: str) -> Compressor:
    """Return a compressor that sends the codes of `codec` by `exchange`.

    Raises ValueError for exchange=sum with a codec that cannot share a grid or tables.
    """
    if exchange == "gather":
        return GatherExchange(codec)
    if exchange == "sum":
        if isinstance(codec, GridCodec):
            return SumExchange(codec)
        if isinstance(codec, TableCodec):
            return CountExchange(codec)
        raise ValueError(
            "exchange=sum needs codes on a shared grid, such as those of qsgd; "
            "type exchange=gather or scatter"
        )
    if exchange == "ring":
        return RingExchange(codec)
    return ScatterExchange(codec, code_means=exchange == "scatter_coded")


def _refuse_residuals_of_shards(method: ByKind) -> None:
    """Raise ValueError if a kind has a residual per shard: state belongs to tensors there."""
    for part in (*parts_of(method.convolutions), *parts_of(method.others)):
        if isinstance(part, ScatterExchange) and part.code_means:
            raise ValueError(
                "exchange=scatter_coded inside a method for convolutions and one for other "
                "tensors: a shard belongs to neither; type exchange=scatter"
            )


@dataclass(frozen=True, kw_only=True)
class BeforeCoding(Layer):
    """Rotation, clipping, and the scope of buckets: keys of how values are coded."""

    bucket_scope: Annotated[Literal["tensor", "gradient"], Neutral("tensor")] = "tensor"
    """whether buckets restart at every tensor or run through the whole gradient; top_k: whether the
    largest values are those of every tensor or of the whole gradient"""
    rotate: Annotated[Literal["none", "hadamard"], Neutral("none")] = "none"
    """hadamard: gradients are rotated before they are coded, and their mean back, so that large
    values spread over blocks of 4,096; not with align, scatter_coded [Suresh et al. (2017),
    section 3]"""
    clip_sigma: Annotated[Positive | None, example(2.5)] = None
    """values are clipped to so many standard deviations of their tensor; null: no clipping
    [TernGrad, section 4]"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        rotates = self.rotate == "hadamard"
        if rotates and getattr(asked["method"], "norm", None) == "l2":
            warnings.warn(
                "rotate=hadamard norm=l2: a step of a 2-norm's grid is small only for buckets of "
                "few large values, which a rotation leaves none of. Type norm=linf",
                stacklevel=4,  # whoever calls build
            )
        if rotates:  # rotated values are nearly normal, so that few are cut
            inner = Rotated(self._clip(inner))
        if self.bucket_scope == "gradient":
            inner = BucketsThroughGradient(inner)
        return inner if rotates else self._clip(inner)

    def _clip(self, inner: Compressor) -> Compressor:
        return inner if self.clip_sigma is None else SigmaClipping(inner, self.clip_sigma)


@dataclass(frozen=True, kw_only=True)
class Residuals(Layer):
    """Error feedback: keys of the residual, which joins the next gradient."""

    error_feedback: bool | Literal["ef21", "loco"] = False
    """true: the residual, what was not sent, joins the next gradient; ef21: what is coded is how
    much the gradient differs from the sum of what was sent before; loco: the residual is kept in
    8 bits [PowerSGD, algorithm 2; EF21, algorithm 2; LoCo, algorithm 1]"""
    alpha: Annotated[NonNegative, example(1), WITH_FEEDBACK] = 1.0
    """weight of the residual in what is coded [ECQ-SGD, equation 6]"""
    beta: Annotated[Weight, example(1), WITH_FEEDBACK] = 1.0
    """weight of the old residual in the new [ECQ-SGD, equation 7]"""
    reset_steps: Annotated[Count | None, example(1024), Needs("error_feedback", ("loco",))] = None
    """steps (with local steps, exchanges) after which the residual is set to zero, with
    error_feedback=loco; null: never [LoCo, algorithm 1]"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        if not self.error_feedback:
            return inner
        if self.error_feedback == "loco":
            return LoCo(inner, self.alpha, self.reset_steps)
        if self.error_feedback == "ef21":
            _warn_if_expanding(inner, "error_feedback=ef21")
            return EF21(inner)
        if self.alpha == self.beta == 1:
            _warn_if_expanding(inner, "error_feedback=true with alpha=1 beta=1")
        return ErrorFeedback(inner, self.alpha, self.beta)


def _warn_if_expanding(compressor: Compressor, typed: str) -> None:
    if not compressor.properties.contractive:
        warnings.warn(
            f"{typed} around a quantizer whose error can exceed its input: the residual may grow "
            "without bound. Type error_feedback=true alpha=0.2 beta=0.9 (ECQ-SGD), more "
            "levels, or a smaller bucket_size",
            stacklevel=5,  # whoever calls build
        )


@dataclass(frozen=True, kw_only=True)
class Momentum(Layer):
    """A momentum that is coded in place of the gradient."""

    momentum: Annotated[Share | None, example(0.9)] = None
    """weight of the old momentum, before it is coded"""
    momentum_start: Annotated[Literal["warmup", "zero"], Neutral("zero")] = "warmup"
    """the momentum that is coded starts from that of the uncompressed steps, or from zero [1-bit
    Adam, algorithm 1]"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        if self.momentum is None:
            return inner
        if asked["error_feedback"] == "ef21":
            return WorkerMomentum(inner, self.momentum)
        if asked["dense_steps"] > 0:  # the momentum follows the gradients of these, too
            inner = DenseWarmup(inner, asked["dense_steps"])
        return MomentumCoding(inner, self.momentum, self.momentum_start)


@dataclass(frozen=True, kw_only=True)
class SentWhole(Layer):
    """Tensors that are sent uncompressed, and stacks of matrices for methods that send factors."""

    min_size: Annotated[Natural, example(10000)] = 0
    """tensors of fewer values are sent uncompressed; 0: none are [QSGD, section 5]"""
    min_dims: Natural = 0
    """tensors of fewer dimensions are sent uncompressed"""
    min_ratio: Annotated[NonNegative, example(1), Neutral(0.0)] = 0.0
    """matrices are sent uncompressed where the method would send more than 1 / min_ratio of their
    values; 0: none are [PyTorch's min_compression_rate]"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        method, through = asked["method"], asked["bucket_scope"] == "gradient"
        matrices = method if isinstance(method, OfMatrices) and not through else None
        if matrices:
            inner = StacksOfMatrices(inner)
        elif self.min_ratio:
            raise ValueError(
                f"min_ratio={self.min_ratio:g}: {type(method).__name__} sends no factors of "
                "matrices; leave it out"
            )
        if self.min_size > 0 or self.min_dims > 0 or self.min_ratio > 0:
            return SmallTensorsWhole(inner, self.min_size, self.min_dims, self.min_ratio, matrices)
        return inner


@dataclass(frozen=True, kw_only=True)
class Warmup(Layer):
    """First steps that send gradients uncompressed."""

    dense_steps: Annotated[Natural, example(100)] = 0
    """first steps (with local steps, first exchanges) in which gradients are sent uncompressed"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        inside = asked["momentum"] is not None and asked["error_feedback"] != "ef21"
        if self.dense_steps == 0 or inside:
            return inner
        return DenseWarmup(inner, self.dense_steps)


@dataclass(frozen=True, kw_only=True)
class Clipping(Layer):
    """The length that a gradient has at most."""

    clip_norm: Annotated[Positive | None, example(0.4)] = None
    """2-norm to which each worker's gradient is clipped first; null: no clipping"""

    def wrap(self, inner: Compressor, asked: Asked) -> Compressor:
        return inner if self.clip_norm is None else NormClipping(inner, self.clip_norm)


LAYERS: tuple[type[Layer], ...] = (  # around `Sending`, innermost first
    BeforeCoding,
    Residuals,
    Momentum,
    SentWhole,
    Warmup,
    Clipping,
)


@fields_as_arguments(Sending, *LAYERS)
def build(method: Compressor | Codec, **keys: Unpack[LayerKeys]) -> Compressor:
    """Return `method` as a compressor, inside the wrappers that the keys ask for.

        compressor = gcbench.build(QSGD(levels=7), error_feedback=True, clip_norm=1.0)
        compression = gcbench.compress(ddp, compressor)

    `LAYERS` (`gcbench.core.wrappers.build`) has the keys and their order. Raises ValueError for a
    value outside its range, and for keys that contradict one another or the method.
    """
    given: dict[str, Any] = {**keys}
    sending = Sending(**own_fields(Sending, given))
    layers = [kind(**own_fields(kind, given)) for kind in LAYERS]
    asked = {key: value for layer in (sending, *layers) for key, value in vars(layer).items()}
    asked["method"] = method
    of_method = {key: getattr(method, key, None) for key in ("per_layer", "combine")}
    refuse_conflicts({**asked, **of_method})
    compressor = sending.send(method, asked)
    for layer in layers:
        compressor = layer.wrap(compressor, asked)
    return CheckedGradients(compressor)


class Conflict(NamedTuple):
    """Settings that cannot be combined: each has to be as said here."""

    settings: Mapping[str, Callable[[Any], bool]]
    why: str  # and what to type


def _is(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_not(*values: object) -> Callable[[Any], bool]:
    return lambda value: value not in values


CONFLICTS = (
    Conflict(
        {"code": _is_not("fixed"), "exchange": _is_not("gather")},
        "messages that differ in length can only be gathered; type exchange=gather or code=fixed",
    ),
    Conflict(
        {"align": _is(True), "exchange": _is_not("gather")},
        "only gathered codes are aligned; type exchange=gather or align=false",
    ),
    Conflict(
        {"rotate": _is("hadamard"), "align": _is(True)},
        "a rotation mixes receptive fields; type only one of them",
    ),
    Conflict(
        {"rotate": _is("hadamard"), "exchange": _is("scatter_coded")},
        "what a shard's owner keeps for the next step would be of another rotation; type "
        "exchange=scatter or gather",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "bucket_scope": _is("gradient")},
        "bits are chosen by tensor, and these buckets span tensors; type only one of them",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "code": _is_not("fixed")},
        "lengths that follow from values have no budget; type code=fixed or adapt_every=null",
    ),
    Conflict(
        {"adapt_every": _is_not(None), "exchange": _is("scatter_coded")},
        "an owner's residual would be of other tensors after a choice; type exchange=scatter",
    ),
    Conflict(
        {"workers_per_node": _is_not(None), "exchange": _is_not("hierarchical")},
        "only a hierarchical exchange has nodes; type exchange=hierarchical",
    ),
    Conflict(
        {"align": _is(True), "bucket_scope": _is("gradient")},
        "buckets that run through the gradient cut receptive fields; type only one of them",
    ),
    Conflict(
        {"per_layer": _is(True), "align": _is(True)},
        "a bucket is either one tensor or a number of receptive fields; type only one of these",
    ),
    Conflict(
        {"per_layer": _is(True), "bucket_scope": _is("gradient")},
        "a bucket is either one tensor or runs through all of them; type only one of these",
    ),
    Conflict(
        {"per_layer": _is(True), "exchange": _is("scatter", "scatter_coded", "ring")},
        "tensors are cut into shards, and buckets need them whole; type per_layer=false, or "
        "exchange=gather",
    ),
    Conflict(
        {"error_feedback": _is("loco"), "beta": _is_not(1)},
        "LoCo always keeps the old residual whole; type beta=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "alpha": _is_not(1)},
        "EF21 has no residual to weigh; type alpha=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "beta": _is_not(1)},
        "EF21 has no residual to weigh; type beta=1 or error_feedback=true",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "exchange": _is("ring")},
        "sums that are coded again at every hop differ from those that EF21 keeps; type "
        "exchange=gather, scatter or scatter_coded",
    ),
    Conflict(
        {"error_feedback": _is("ef21"), "combine": _is("senders")},
        "EF21 adds up the mean of what all workers sent, which this is not; type combine=mean or "
        "error_feedback=true",
    ),
)


def refuse_conflicts(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for the first of `CONFLICTS` that the settings have."""
    for conflict in CONFLICTS:
        if all(
            key in settings and holds(settings[key]) for key, holds in conflict.settings.items()
        ):
            typed = " ".join(f"{key}={format_value(settings[key])}" for key in conflict.settings)
            raise ValueError(f"{typed}: {conflict.why}")
