"""A job: what was measured of a user's training loop, kept in a file, and what follows from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from gcbench.core.comm.meter import Message
from gcbench.core.compressor import Compressor
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.shards import shard_exchange
from gcbench.core.method_files import make_compressor, read_method
from gcbench.runner.conf_files import CHECKED, build_checked
from gcbench.runner.config.keys import read_knobs
from gcbench.runner.network import Link, Network
from gcbench.runner.predict.devices import NotNegative, Positive
from gcbench.runner.predict.model import CodecSeconds, Compute, Method, codec_seconds
from gcbench.runner.predict.payload import Payload
from gcbench.runner.predict.probes import Probes, link_of, seconds_of

HALF = "bf16"  # the baseline: dense, in 16 bits, with overlap
DENSE = "none"


@dataclass(frozen=True, config=CHECKED)
class Bucket:
    """Gradients that are exchanged together, and when they are ready in the backward pass."""

    values: Annotated[int, Field(ge=1)]
    ready_seconds: NotNegative


@dataclass(frozen=True, config=CHECKED)
class MethodOnJob:
    """A method, as it is typed, on a gradient of the job."""

    typed: str
    aggregate_seconds: NotNegative
    decode_seconds: NotNegative
    vnmse: float  # |y - x|^2 / |x|^2 of one worker's gradient, the mean of some steps


@dataclass(frozen=True, config=CHECKED)
class Job:
    """The measured facts of a training loop, from which its steps are predicted."""

    title: str
    kind: Annotated[str, Field(pattern="^(ddp|fsdp)$")]
    workers: Annotated[int, Field(ge=2)]
    steps: Annotated[int, Field(ge=1)]
    step_seconds: Positive
    exposed_seconds: NotNegative  # that a step waited for exchanges
    shapes: dict[str, tuple[int, ...]]  # of the gradients that are exchanged
    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1)]  # in the order of the exchanges
    probes: dict[str, dict[int, float]]  # seconds of a collective, by bytes of each worker
    methods: tuple[MethodOnJob, ...]

    @property
    def values(self) -> int:
        return sum(prod(shape) for shape in self.shapes.values())

    @property
    def compute_seconds(self) -> float:
        """Return the seconds of a step without what it waited for exchanges."""
        return self.step_seconds - self.exposed_seconds

    @property
    def compute(self) -> Compute:
        return Compute(self.compute_seconds, self.buckets[-1].ready_seconds, 1)

    @cached_property
    def link(self) -> Link:
        """The link that has the seconds of the probed all-reduces."""
        return link_of(self._probes, self.workers)

    @property
    def _network(self) -> Network:
        return Network(self.workers, 1, self.link, self.link)

    @property
    def _probes(self) -> Probes:
        return self.probes  # type: ignore[return-value]  # names of collectives

    def compressor(self, typed: str) -> Compressor:
        """Return the compressor of a method, for FSDP2 in its reduce-scatter."""
        compressor = make(typed)
        return shard_exchange(compressor) if self.kind == "fsdp" else compressor

    def method(self, one: MethodOnJob) -> Method:
        """Return a method as predictions take it."""
        compressor = self.compressor(one.typed)
        return Method(
            one.typed,
            one.typed.split()[0],
            Payload(compressor, self.shapes).at,
            CodecSeconds(one.aggregate_seconds, one.decode_seconds),
            4 * self.values,
            compressor.properties.scope != "global",
        )

    def on_slower_links(self, factor: float) -> Job:
        """Return the job where bytes take `factor` times as long, and short messages as now."""
        probes = {}
        for name, sizes in self.probes.items():
            first = sizes[min(sizes)]
            probes[name] = {
                n: first + factor * max(0.0, taken - first) for n, taken in sizes.items()
            }
        return replace(self, probes=probes)

    def step(self, method: Method, overlap: bool) -> float:
        """Return the predicted seconds of a step, with the collectives as they were probed.

        Without overlap, coding and exchange follow the backward pass. With it, each bucket is coded
        and exchanged when its gradients are ready, beside the rest of the backward pass.
        """
        messages = method.messages(self.workers)
        coding = codec_seconds(method.codec, messages, self._network)
        if not overlap or not method.in_buckets:
            return self.compute_seconds + coding + self._exchange(messages, 1)
        end = 0.0
        for bucket in self.buckets:
            share = bucket.values / self.values
            busy = share * coding + self._exchange(messages, share)
            end = max(end, bucket.ready_seconds) + busy
        return self.compute_seconds + end - self.buckets[-1].ready_seconds

    def _exchange(self, messages: Sequence[Message], share: float) -> float:
        return seconds_of(messages, self._probes, self._network, share)

    def save(self, path: str | Path) -> None:
        """Write the job, for `gcbench predict pays profile=FILE`."""
        content = {"gcbench": "profile of a training loop", **asdict(self)}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def make(typed: str) -> Compressor:
    """Return the compressor of a method as it is typed, `powersgd rank=2`."""
    name, *knobs = typed.split()
    return make_compressor(read_method(name, read_knobs(knobs))["compressor"], quiet=True)


def read_job(path: str) -> Job:
    """Return a saved job; raise ConfigError if the file has none."""
    try:
        node = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"profile={path}: no profile can be read there ({error}); type the file that "
            'profile.save("job.json") wrote'
        ) from error
    if not isinstance(node, dict) or node.pop("gcbench", None) is None:
        raise ConfigError(
            f"profile={path}: this is no profile of a loop; type the file that "
            'profile.save("job.json") wrote'
        )
    node["probes"] = {
        name: {int(size): taken for size, taken in sizes.items()}
        for name, sizes in dict(node.get("probes", {})).items()
    }
    return build_checked(Job, node, path)
