"""What runs have recorded, and what their exchanges would take on other links."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import NamedTuple, cast

from gcbench.core.comm.meter import Collective, Level, Message
from gcbench.core.errors import ConfigError
from gcbench.runner.network import Link, Network, exchange_seconds
from gcbench.runner.predict.devices import emulated_link, read_link
from gcbench.runner.predict.model import Cluster
from gcbench.runner.records.schema import Network as RecordedNetwork
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import read_run

INSTANT = Link(math.inf)


def seconds_on(result: Result, network: str) -> float:
    """Return the seconds that a mean step's exchange takes between hosts of one worker each.

    A hierarchical method keeps its nodes, and exchanges within a node take no time.
    """
    link = read_link("network", network)
    return exchange_seconds(messages_of(result), network_of(result, link))


def messages_of(result: Result) -> list[Message]:
    """Return the collectives of a mean step."""
    steps = result.steps or 1
    kinds = [(cast(Level, c.level), cast(Collective, c.collective)) for c in result.collectives]
    return [
        Message(*kind, c.messages / steps, c.sent_bits / steps)
        for kind, c in zip(kinds, result.collectives, strict=True)
        if c.messages and c.workers > 1
    ]


def network_of(result: Result, between: Link) -> Network:
    """Return the network of hosts of one worker, or of a hierarchical method's nodes."""
    inside = [c.workers for c in result.collectives if c.level == "inside"]
    return Network(result.workers or 1, inside[0] if inside else 1, INSTANT, between)


log = logging.getLogger("gcbench")
COMPUTATION = ("data", "forward", "backward", "update")


def phase_seconds(result: Result, phase: str) -> float:
    if not result.seconds or phase not in result.seconds:
        raise ConfigError(
            f"a result without the seconds of {phase}; type runs with several processes"
        )
    return result.seconds[phase].mean


class ComparedExchange(NamedTuple):
    """The measured time of an exchange and the one predicted for it."""

    title: str
    workers: int
    exchange_seconds: float  # predicted
    measured_exchange_seconds: float

    @property
    def ratio(self) -> float:
        """Return the measured over the predicted seconds of the exchange."""
        return self.measured_exchange_seconds / self.exchange_seconds


def compare(path: str, network: str | None = None, latency: str | None = None) -> ComparedExchange:
    """Return the exchange of a run on hosts with one worker each, compared with its prediction.

    What was sent is what the result counted, in a mean step. The link is `network`, by default the
    one that the result names. Raises ConfigError for a run that has no such exchange.
    """
    file = Path(path) if Path(path).is_file() else Path(path) / "result.json"
    if not file.is_file():
        raise ConfigError(f"{path}: there is no result.json in it; type a run's directory")
    try:
        result = read_run(file.parent).result
    except ValueError as error:
        raise ConfigError(f"{file}: {error}; type a run's directory") from error
    if not result.seconds or result.workers is None or result.workers < 2:
        raise ConfigError(
            f"{path}: a run of one worker, or of virtual ones, has no exchange; type one with "
            "several processes"
        )
    if "hidden_exchange" in result.seconds and phase_seconds(result, "hidden_exchange"):
        raise ConfigError(
            f"{path}: a part of its exchange passed under the computation (trainer.overlap, "
            "trainer.double_buffering, estimator.delay), and whole exchanges are predicted; type a "
            "run without"
        )
    if not (messages := messages_of(result)):
        raise ConfigError(f"{path}: it has counted no exchange; type a run with one or more steps")
    between = _link(result.network, network, latency, path)
    # A node of a hierarchical method is made up of hosts, each with its own link to other nodes.
    size = network_of(result, between).workers_per_node
    cluster = Cluster(between, between, size).at(size * between.bits_per_second)
    return ComparedExchange(
        title=result.experiment or Path(path).name,
        workers=result.workers,
        exchange_seconds=exchange_seconds(messages, cluster.network(result.workers)),
        measured_exchange_seconds=phase_seconds(result, "exchange"),
    )


def _link(
    measured: RecordedNetwork | None, network: str | None, latency: str | None, path: str
) -> Link:
    if network is not None:
        return read_link("network", network, latency)
    if measured and measured.emulated:
        if latency is not None:
            raise ConfigError(
                f"latency={latency}: the run's emulated link has its own latency; to replace it, "
                "type network=1gbit too"
            )
        emulated = measured.model_dump()
        return emulated_link(emulated["bandwidth"], emulated["latency"])
    if measured and measured.link:
        return read_link("network", measured.link, latency)
    raise ConfigError(f"{path}: its result names no link; type network=1gbit")
