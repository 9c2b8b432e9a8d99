"""The measured time of a run's exchange beside its prediction."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

from gcbench.comm.network import Link
from gcbench.config import Config, ConfigError, emulated_link
from gcbench.launch.instantiate import make_compressor
from gcbench.predict.links import read_link
from gcbench.predict.measure import phase_seconds
from gcbench.predict.model import Cluster, exchange_seconds
from gcbench.predict.payload import Payload
from gcbench.predict.subject import facts_of, refuse_foreign_code, shapes_of_model
from gcbench.records.schema import Network
from gcbench.records.store import read_run


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


def compare(
    path: str, network: str | None = None, latency: str | None = None, own: Sequence[str] = ()
) -> ComparedExchange:
    """Return the exchange of a run on hosts with one worker each, compared with its prediction.

    The link is `network`, by default the one that the result names. The model and the method must
    be gcbench's or among the classes `own`, so that a result from elsewhere cannot choose code to
    run here. Raises ConfigError for a run that cannot be predicted.
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
            "trainer.double_buffering), and whole exchanges are predicted; type a run without"
        )
    config = {**result.config, "choices": result.choices}
    refuse_foreign_code([config["model"], config["compressor"]], own, path)
    _refuse_schedules(config, path)
    shapes = shapes_of_model(
        config["model"], facts_of(result.choices["model"], result.choices["dataset"])
    )
    values = sum(prod(shape) for shape in shapes.values())
    if result.parameters not in (None, values):
        raise ConfigError(
            f"{path}: its model has {result.parameters:,} values, and {values:,} on the usual "
            f"samples of dataset={result.choices['dataset']}, which predictions are for; type a "
            "run on such samples"
        )
    between = _link(result.network, network, latency, path)
    # A node of a hierarchical method is made up of hosts, each with its own link to other nodes.
    size = next((c.workers for c in result.collectives if c.level == "inside"), 1)
    cluster = Cluster(between, between, size).at(size * between.bits_per_second)
    compressor = make_compressor(config["compressor"], quiet=True)
    messages = Payload(compressor, shapes, size).at(result.workers)
    local = {"every": 1, "fragments": 1, **config.get("estimator", {})}
    # All fragments together carry as many bits as the whole, but each needs as many messages.
    messages = [m._replace(number=m.number * local["fragments"]) for m in messages]
    exchange = exchange_seconds(messages, cluster.network(result.workers)) / local["every"]
    return ComparedExchange(
        title=result.experiment or Path(path).name,
        workers=result.workers,
        exchange_seconds=exchange,
        measured_exchange_seconds=phase_seconds(result, "exchange"),
    )


def _refuse_schedules(config: Config, path: str) -> None:
    """Raise ConfigError if the run's exchanges vary by step, as only one kind is predicted."""
    estimator = config["choices"].get("estimator", "sgd")
    dense_steps = config["compressor"].get("dense_steps", 0)
    if estimator not in ("sgd", "local_steps"):
        raise ConfigError(
            f"{path}: estimator={estimator} exchanges by a schedule that predictions do not know; "
            "type a run of estimator=sgd or local_steps"
        )
    if dense_steps:
        raise ConfigError(
            f"{path}: dense_steps={dense_steps} sends other messages at first than later, and one "
            "kind is predicted; type a run with dense_steps=0"
        )


def _link(measured: Network | None, network: str | None, latency: str | None, path: str) -> Link:
    if network is not None:
        return read_link("network", network, latency)
    if measured and measured.emulated:
        if latency is not None:
            raise ConfigError(
                f"latency={latency}: the run's emulated link has its own latency; to replace it, "
                "type network=1gbit too"
            )
        return Link(**(emulated_link(measured.model_dump()) or {}))
    if measured and measured.link:
        return read_link("network", measured.link, latency)
    raise ConfigError(f"{path}: its result names no link; type network=1gbit")
