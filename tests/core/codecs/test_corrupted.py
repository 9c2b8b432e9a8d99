"""Messages that were altered or cut off raise an error, or decode to the right shape."""

from __future__ import annotations

import pytest
import torch
from backends import use
from torch import Tensor

from gcbench.core.codecs.elias import Blocks
from gcbench.core.codecs.elias_codes import decode_dense, decode_sparse, encode_dense, encode_sparse
from gcbench.core.codecs.kernels import Backend
from gcbench.core.codecs.packing import decode_ans, encode_ans

LEVELS, BLOCKS = 7, Blocks((37, 5, 22), 16)
N = sum(BLOCKS.segments)


def write(kind: str, codes: Tensor) -> tuple[Tensor, Tensor]:
    if kind == "ans":
        return encode_ans(codes, 2 * LEVELS + 1)
    return {"dense": encode_dense, "sparse": encode_sparse}[kind](codes, BLOCKS, LEVELS)


def read(kind: str, stream: Tensor, beside: Tensor) -> Tensor:
    if kind == "ans":
        return decode_ans(stream, beside, N)
    return {"dense": decode_dense, "sparse": decode_sparse}[kind](stream, beside, BLOCKS, LEVELS)


def corrupt(tensors: tuple[Tensor, Tensor], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the tensors with bits flipped, bytes replaced or entries cut off, in one or both."""

    def number(below: int) -> int:
        return int(torch.randint(below, (1,), generator=generator))

    stream, beside = (t.clone() for t in tensors)
    for target in [[stream], [beside], [stream, beside]][number(3)]:
        flat = target.view(torch.uint8).view(-1)
        if number(2):
            for _ in range(1 + number(8)):
                flat[number(len(flat))] ^= 1 << number(8)
        else:
            start = number(len(flat))
            flat[start:] = torch.randint(
                0, 256, (len(flat) - start,), generator=generator, dtype=torch.uint8
            )
    if number(3) == 0:
        stream = stream[:, : number(stream.shape[1] + 1)]
    return stream, beside


def count_refused(kind: str, count: int) -> int:
    """Return how many of `count` corrupted messages were refused."""
    generator, errors = torch.Generator().manual_seed(5), 0
    spread = torch.randint(0, 2 * LEVELS + 1, (16, N), generator=generator)
    few = spread.where(torch.rand(16, N, generator=generator) > 0.8, LEVELS)
    messages = [
        write(kind, codes[i : i + 1].to(torch.uint8)) for codes in (spread, few) for i in range(16)
    ]
    for i in range(count):
        try:
            codes = read(kind, *corrupt(messages[i % len(messages)], generator))
        except ValueError:
            errors += 1
        else:
            assert codes.shape == (1, N) and codes.dtype == torch.uint8
    return errors


@pytest.mark.parametrize("kind", ["dense", "sparse", "ans"])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_no_message_does_more_than_raise_a_value_error(
    backend: Backend, kind: str, count: int
) -> None:
    for _ in use(backend):
        assert 0.05 * count < count_refused(kind, count) < 0.95 * count


def test_a_model_with_a_negative_weight_is_refused() -> None:
    """The coder itself would decode with it without an error."""
    words = torch.tensor([[1, 77]], dtype=torch.int32)
    weights = torch.tensor([[5, -3, 7]], dtype=torch.int16)
    with pytest.raises(ValueError, match="a code has a negative weight"):
        decode_ans(words, weights, 4)
