"""The time of a step, from what is sent and what is computed, and at which rates a method pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import geometric_mean
from typing import NamedTuple

from gcbench.core.comm.meter import Message, wire_bits
from gcbench.core.errors import ConfigError
from gcbench.runner.network import Link, Network, exchange_seconds

# The bucket size of DistributedDataParallel, which exchanges a bucket when it is full.
BUCKET_BYTES = 25 * 2**20


class Compute(NamedTuple):
    """The computation of a worker's batch, without any exchange."""

    seconds: float
    backward_seconds: float
    batch_size: int


class CodecSeconds(NamedTuple):
    """Seconds that a single worker spends on coding a gradient."""

    aggregate_seconds: float  # encoding its gradient, and decoding one message
    decode_seconds: float = 0.0  # decoding each further message


@dataclass(frozen=True)
class Method:
    """A method on a model: what it sends, and how long it computes."""

    title: str
    family: str  # the choice of conf/compressor
    messages: Callable[[int], Sequence[Message]]  # takes the number of workers
    codec: CodecSeconds
    dense_bytes: int  # size of the fp32 gradient
    in_buckets: bool = True  # whether it can be exchanged bucket by bucket
    too_small: bool = False  # whether a tensor has fewer values than its min_size
    every: int = 1  # steps from one exchange to the next (estimator=local_steps)
    delay: int = 0  # steps during which an exchange is under way (estimator.delay)

    def at_every(self, every: int, delay: int = 0) -> Method:
        """Return this method with one exchange in every `every` steps, during `delay` of them."""
        title = f"{self.title} every={every}" if every > 1 else self.title
        title = f"{title} delay={delay}" if delay else title
        return replace(self, title=title, every=every, delay=delay)


@dataclass(frozen=True)
class Cluster:
    """Nodes of several workers: one `inside` link per worker, one `between` link per node."""

    between: Link
    inside: Link
    workers_per_node: int = 1

    def network(self, workers: int) -> Network:
        """Return the network of these workers; raise ConfigError if they do not fill the nodes."""
        size = min(self.workers_per_node, workers)
        if workers % size:
            whole = math.ceil(workers / size) * size
            raise ConfigError(
                f"workers={workers} do not fill nodes of workers_per_node={size}; "
                f"type workers={whole}"
            )
        return Network(workers, size, self.inside, self.between)

    def at(self, bits_per_second: float) -> Cluster:
        """Return this cluster with another rate between the nodes."""
        between = Link(bits_per_second, self.between.latency_seconds)
        return Cluster(between, self.inside, self.workers_per_node)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predicted step of a method, as the mean over steps with and without an exchange."""

    method: str
    workers: int
    batch_size: int  # per worker
    compute_seconds: float
    codec_seconds: float
    exchange_seconds: float
    exposed_seconds: float  # the part of the exchange that computation does not hide
    sent_bits: float  # per worker and step
    received_bits: float  # by collectives' algorithms, per worker and step

    @property
    def step_seconds(self) -> float:
        return self.compute_seconds + self.codec_seconds + self.exposed_seconds

    @property
    def samples_per_second(self) -> float:
        return self.workers * self.batch_size / self.step_seconds

    @property
    def of_bound(self) -> float:
        """Return the step's time relative to one without exchange or codec; 1 means no overhead."""
        return self.step_seconds / self.compute_seconds

    def epoch_seconds(self, samples: int) -> float:
        """Return the seconds of an epoch, which drops a last, smaller batch."""
        return max(1, samples // (self.workers * self.batch_size)) * self.step_seconds


def predict(
    method: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
    bucket_bytes: int = BUCKET_BYTES,
) -> Prediction:
    """Return a step's times; with `overlap`, buckets are exchanged during the backward pass.

    If a method exchanges every H steps, each step is charged 1/H of an exchange, of which its delay
    hides the computation of as many steps. Raises ConfigError if the workers do not fill the nodes.
    """
    messages = method.messages(workers) if workers > 1 else []
    network = cluster.network(workers)
    exchange = exchange_seconds(messages, network)
    buckets = math.ceil(method.dense_bytes / bucket_bytes) if overlap and method.in_buckets else 1
    codec = codec_seconds(method.codec, messages, network) if workers > 1 else 0.0
    exposed = exposed_seconds(exchange, compute.backward_seconds, buckets)
    exposed = max(0.0, exposed - method.delay * compute.seconds)
    return Prediction(
        method=method.title,
        workers=workers,
        batch_size=compute.batch_size,
        compute_seconds=compute.seconds,
        codec_seconds=codec / method.every,
        exchange_seconds=exchange / method.every,
        exposed_seconds=exposed / method.every,
        sent_bits=sum(m.bits for m in messages) / method.every,
        received_bits=received_bits(messages, network) / method.every,
    )


def received_bits(messages: Sequence[Message], network: Network) -> float:
    """Return the bits that a worker receives from others in these collectives."""
    return sum(wire_bits(m.collective, m.bits, network.level(m.level).workers) for m in messages)


def exposed_seconds(exchange: float, backward: float, buckets: int) -> float:
    """Return the seconds of an exchange that a backward pass does not hide.

    The exchange takes E seconds in k equal buckets. In a backward pass of b seconds, the i-th
    bucket is ready after i b / k, and the exchange ends at max over i of (i b / k + (k - i + 1) E
    / k). The maximum is at i = 1 or i = k, so that exposed = max(E - (1 - 1/k) b, E / k).
    """
    return max(exchange - (1 - 1 / buckets) * backward, exchange / buckets)


def codec_seconds(codec: CodecSeconds, messages: Sequence[Message], network: Network) -> float:
    """Return the seconds that a worker takes to encode its gradient and decode what it receives."""
    further = decoded_gradients(messages, network) - 1
    return codec.aggregate_seconds + further * codec.decode_seconds


def decoded_gradients(messages: Sequence[Message], network: Network) -> int:
    """Return how many gradients' worth of codes a worker decodes.

    In a scatter it decodes all workers' codes of its shard and then the means of all shards, which
    is two, and in a ring a chunk at every hop; in a gather, one message per worker or node;
    otherwise, one.
    """
    kinds = {(m.level, m.collective) for m in messages}
    if kinds & {("all", "all_to_all"), ("all", "ring_hop")}:
        return 2
    if ("between", "all_gather") in kinds:
        return network.nodes
    return network.workers if kinds & {("all", "all_gather"), ("all", "ragged_gather")} else 1


SLOWEST, FASTEST = 1e6, 1e13  # the rates that are tried, in bits per second
TRIED = [SLOWEST * 10 ** (i / 4) for i in range(28)] + [FASTEST]
HALVINGS = 20  # between two of these on a logarithmic scale, for a precision of 1 in a million


class RateRange(NamedTuple):
    """The bounds, in bits per second, between which a method pays."""

    low: float  # SLOWEST: there is none
    high: float  # FASTEST: there is none


class MethodVerdict(NamedTuple):
    """A method's steps on every network, against dense ones, and the rates at which it pays."""

    method: Method
    # By number of workers, with the first network's latency.
    paying: list[list[RateRange]]
    speedups: dict[str, list[float]]  # dense over own step time, by network and number of workers
    predictions: dict[str, list[Prediction]]  # by network and number of workers

    @property
    def mean_speedup(self) -> float:
        """Return the geometric mean over networks and numbers of workers."""
        return geometric_mean(x for row in self.speedups.values() for x in row)


def find_paying(
    method: Method,
    dense: Method,
    workers: int,
    cluster: Cluster,
    compute: Compute,
    overlap: bool = False,
) -> list[RateRange]:
    """Return the ranges of rates between nodes at which `method` has a shorter step than `dense`.

    Without overlap there is at most one rate at which their steps take equally long. With it there
    can be several, as computation hides a part of each exchange. They are found by bisection
    between the tried rates.
    """

    def pays(rate: float) -> bool:
        at_rate = cluster.at(rate)
        ours, theirs = (
            predict(m, workers, at_rate, compute, overlap).step_seconds for m in (method, dense)
        )
        return ours < theirs

    paying = [pays(rate) for rate in TRIED]
    bounds = [SLOWEST] if paying[0] else []
    for (slow, fast), (before, after) in zip(pairwise(TRIED), pairwise(paying), strict=True):
        if before != after:
            low, high = slow, fast
            for _ in range(HALVINGS):
                middle = (low * high) ** 0.5
                low, high = (middle, high) if pays(middle) == before else (low, middle)
            bounds.append(low)
    bounds += [FASTEST] if paying[-1] else []
    return [RateRange(low, high) for low, high in zip(bounds[::2], bounds[1::2], strict=True)]


def find_verdicts(
    methods: Sequence[Method],
    dense: Method,
    workers: Sequence[int],
    clusters: Mapping[str, Cluster],
    compute: Compute,
    overlap: bool = False,
) -> list[MethodVerdict]:
    """Return a verdict on every method, the fastest first; `clusters` has the networks as keys."""
    first = next(iter(clusters.values()))

    def steps(method: Method) -> dict[str, list[Prediction]]:
        return {
            name: [predict(method, w, cluster, compute, overlap) for w in workers]
            for name, cluster in clusters.items()
        }

    bounds = steps(dense)
    verdicts = []
    for method in methods:
        predictions = steps(method)
        paying = [find_paying(method, dense, w, first, compute, overlap) for w in workers]
        speedups = {
            name: [d.step_seconds / p.step_seconds for d, p in zip(bounds[name], row, strict=True)]
            for name, row in predictions.items()
        }
        verdicts.append(MethodVerdict(method, paying, speedups, predictions))
    return sorted(verdicts, key=lambda verdict: -verdict.mean_speedup)
