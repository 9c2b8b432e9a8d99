"""Codecs as functions on one's own buffers, for frameworks that have buckets and collectives."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gcbench.core.codec import Codec, RaggedCodec, decoder_of
from gcbench.core.codecs.noise import Noise
from gcbench.core.comm.messages import Part, from_bytes, to_bytes
from gcbench.core.compressor import Compressor, Given, Step
from gcbench.core.errors import ConfigError
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.library.compress import name_of, read_typed, use_codecs
from gcbench.core.method_files import read_method
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.matrices import SmallTensorsWhole
from gcbench.core.wrappers.wrappers import CheckedGradients

WHOLE = {"min_size": 0, "error_feedback": False}  # of a method that codes all that it is given


def codec(
    compressor: str | Compressor,
    *,
    seed: int = 1,
    device: str = "cpu",
    codec_backend: str = "auto",
    **knobs: Any,
) -> BufferCodec:
    """Return a method's codec: functions from float32 buffers to bytes, and back.

        codec = gcbench.codec("qsgd", bits=4)
        message = codec.encode(buffer, step=step, worker=rank)         # uint8 [codec.size(n)]
        ...  # however your framework brings it to other workers
        codec.decode_add(message, out, step=step, worker=sender)       # out += what it says

    No process group is needed, nothing is metered, and nothing is remembered. The bytes are those
    that `compress` sends (the page of gcbench/core/codecs describes them), and a mean over the
    workers in their order is the update of `compress`, bit for bit, for a model of one tensor; but
    for `bf16` and `fp16`, whose sums an all-reduce rounds on their way.

    Args:
        compressor: a method that sends the code of each worker, such as `qsgd`, `eden`, `top_k`,
            `natural`, `mxfp4`, or `bf16`; or a Compressor.
        seed: the seed of random rounding.
        device: `cpu` or `cuda`, for which `codec_backend` is chosen.
        codec_backend: as in `compress`.
        **knobs: as in `compress`.

    Raises:
        ConfigError: as `compress` does, and for a method that sends something else.
    """
    own = read_method(compressor) if isinstance(compressor, str) else {}
    whole = {k: v for k, v in WHOLE.items() if k in own}
    typed = read_typed(compressor, whole | knobs, seed)
    found = codec_of(typed.method)
    if found is None or found[1]:
        raise ConfigError(
            f"compressor={name_of(compressor, knobs)}: this is not the code of one worker's values "
            "alone; type codec('qsgd', bits=4), 'eden', 'top_k', 'natural' or 'bf16', with "
            "exchange=gather code=fixed error_feedback=false min_size=0 clip_sigma=null"
        )
    use_codecs(codec_backend, device)
    return BufferCodec(found[0], typed.seed)


class BufferCodec:
    """A codec for buffers of float32 values, made by `codec`."""

    def __init__(self, codec: Codec, seed: int) -> None:
        self._codec, self._seed = codec, seed
        self._parts = lru_cache(maxsize=None)(self._find_parts)

    def size(self, n: int) -> int:
        """Return the bytes of the message for n values, which do not depend on the values."""
        return self._parts(n)[-1][0].stop

    def encode(
        self,
        values: Tensor,
        *,
        step: int,
        worker: int,
        offset: int = 0,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Return the message for values `[n]`, uint8 `[size(n)]` on their device.

        Args:
            values: float32; they stay as they are.
            step: the number of the step, and with `worker` and `offset` what random draws follow.
            worker: whose values these are.
            offset: the place of the buffer's first value among all those of a step.
            residual: `[n]`, added to the values; it then has what the message leaves out of them.
        """
        row = self._row(values, "values")
        noise = self._noise(step, worker, offset, len(values), values.device)
        if residual is None:
            message = self._codec.encode(row, (len(values),), noise)
        else:
            old = self._row(residual, "residual")
            message, left = self._codec.encode_corrected(Given({"": row}, {"": old}), noise)
            residual.copy_(left[""][0])
        return to_bytes(message)[0][0]

    def decode_add(
        self, message: Tensor, out: Tensor, *, step: int, worker: int, offset: int = 0
    ) -> None:
        """Add the values of a message to `out` `[n]`; the others are as they were in `encode`."""
        rows, n = self._row(out, "out"), len(out)
        if message.dtype != torch.uint8 or message.shape != (self.size(n),):
            raise ValueError(
                f"message: {message.dtype} {[*message.shape]} is not the code of {n} values, which "
                f"is uint8 [{self.size(n)}]; type an out as long as the values that were encoded"
            )
        decoder = decoder_of(
            self._codec, lambda: self._noise(step, worker, offset, n, message.device)
        )
        parts = [from_bytes(message.unsqueeze(0), part) for part in self._parts(n)]
        decoder.decode_add(parts, (n,), rows)

    def _noise(self, step: int, worker: int, offset: int, n: int, device: torch.device) -> Noise:
        place = Step(step, self._seed, range(worker, worker + 1), {"values": offset})
        return place.noise("codec", {"values": n}, device)

    def _find_parts(self, n: int) -> list[Part]:
        device = torch.device("cpu")
        message = self._codec.encode(
            torch.zeros(1, n, dtype=torch.float32), (n,), self._noise(0, 0, 0, n, device)
        )
        return to_bytes(message)[1]

    @staticmethod
    def _row(x: Tensor, name: str) -> Tensor:
        if x.dtype != torch.float32 or x.dim() != 1 or not x.is_contiguous():
            raise ValueError(
                f"{name}: {x.dtype} {[*x.shape]}; type a contiguous float32 tensor of one "
                f"dimension, as {name}.float().flatten()"
            )
        return x.unsqueeze(0)


def codec_of(compressor: Compressor) -> tuple[Codec, int] | None:
    """Return the codec that sends one code per worker, and its `min_size`; None: there is none."""
    part: object = compressor
    min_size = 0
    while isinstance(part, (CheckedGradients, SmallTensorsWhole)):
        if isinstance(part, SmallTensorsWhole):
            min_size = part.min_size
        part = part.inner
    if isinstance(part, Dense):
        return part.cast, min_size
    if isinstance(part, GatherExchange) and not isinstance(part.codec, RaggedCodec):
        return part.codec, min_size
    return None
