"""The bits and the error of every tensor of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gcbench.comm.collectives import Comm
from gcbench.compressors import Compressor, State, flatten
from gcbench.compressors.virtual import aggregate
from gcbench.config import ConfigError
from gcbench.records.gradients import Recorded
from gcbench.studies.coding import vnmse
from gcbench.studies.real_gradients import OnRealGradients
from gcbench.studies.study import Row, compressor

METHODS = ("qsgd bits=4 min_size=0", "orq level_count=5", "powersgd rank=2", "top_k", "sign_norm")


@dataclass(frozen=True, kw_only=True)
class Layers(OnRealGradients):
    """Bits and error of each tensor of recorded gradients, for methods whose scope is a tensor or a
    bucket of it.

    Compresses each tensor by itself over the recorded steps of the last window, in order and with
    its residual. `bits_a_step` is the payload that a worker sends for the tensor; `relative` is
    |update - mean gradient| / |mean gradient| in 2-norms, as a root mean square over the steps. A
    row is a method as typed after compressor=. Takes some seconds, and three minutes if no
    gradients are recorded yet.
    """

    # As typed after compressor=; null: qsgd, orq, powersgd, top_k and sign_norm.
    methods: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a list without methods, and for settings of another run."""
        super().__post_init__()
        if "" in (self.methods or ()):
            raise ConfigError(
                "methods=[]: type methods as after compressor=, as in methods=[top_k], or null"
            )

    def rows(self) -> Iterator[Row]:
        methods = {sentence: _read(sentence) for sentence in self.methods or METHODS}
        window = self.windows()[-1]
        for sentence, method in methods.items():
            yield {
                "row": sentence,
                "layers": [_layer(method, window, name) for name in window[0].names],
            }


def _read(sentence: str) -> Compressor:
    """Return the method of a sentence; raise ConfigError if it needs all tensors at once."""
    name, *knobs = sentence.split()
    method = compressor(f"compressor={name}", *knobs)
    if method.properties.scope == "global":
        raise ConfigError(
            f"methods=[{sentence}]: it compresses all tensors together, and each by itself would "
            "be another method; type methods whose scope is a tensor or a bucket of it"
        )
    return method


def _layer(method: Compressor, window: Sequence[Recorded], name: str) -> dict[str, Any]:
    state, bits, errors = State(), 0.0, []
    for moment in window:
        grads = {name: moment.tensors()[name]}
        comm = Comm(len(moment.gradients))
        out = aggregate(method, grads, number=moment.step, state=state, comm=comm)
        mean = {name: grads[name].mean(0, keepdim=True)}
        errors.append(float(vnmse(flatten(out.update), flatten(mean))))
        bits += comm.meter.sent_bits[0]
        state = out.state
    return {
        "name": name,
        "values": int(window[0].tensors()[name][0].numel()),
        "bits_a_step": bits / len(window),
        "relative": (sum(errors) / len(errors)) ** 0.5,
    }
