"""Run hand-written Triton on the CPU, in Triton's interpreter, and compare it with eager code.

`PYTHONPATH=scripts python tests/support/interpreted_codecs.py NAME ...` does so for codecs of these
names, or for what is no codec. It needs a process of its own: Triton chooses its interpreter when
it is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
from interpreted import same_bits
from torch import Tensor

from gcbench.core.codecs import fused, launches
from gcbench.core.codecs.launches import launch_if
from gcbench.core.codecs.low_rank import Shape
from gcbench.core.codecs.power_iteration import (
    add_times,
    orthogonalize,
    product,
    product_and_rest,
    restart,
    times,
    transposed_times,
    unstack,
)
from gcbench.core.codecs.scales import clip
from gcbench.core.compressor import Given, Step
from gcbench.core.library.agreement import replace_each
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.eden import Eden, NormalLevels
from gcbench.core.methods.loco import NearestLevel
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Linear
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.methods.top_k import TopK

CODECS: dict[str, list[Bucketed]] = {
    "qsgd": [QSGD(7)],
    "qsgd of any bits": [QSGD(s) for s in (1, 3, 15, 31, 63, 127)] + [QSGD(7, norm="l2")],
    "signs": [ScaledSign(), ScaledSign(scale="rms"), OneBit()],
    "bingrad": [BinGradB(), BinGradPB()],
    "levels": [ORQ(3), ORQ(9), Linear(4), EvenLevels(level_count=3), EvenLevels(level_count=17)],
    "nearest": [NearestLevel(7)],
    "normal": [NormalLevels(b, s) for b in (1, 3, 8) for s in ("unbiased", "biased", "rms")],
}
SEGMENTS = (100, 1, 5, 43, 32, 3)  # with short tensors, and codes of one byte in several
NAMES = [*map(str, range(len(SEGMENTS)))]
STARTS = dict(zip(NAMES, [5000, 0, 4000, 17, 900, 2000], strict=True))
CPU = torch.device("cpu")


def drawn(seed: int, rows: int = 2) -> list[Tensor]:
    """Return tensors with zeros of either sign, denormals, ties, and large values."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(rows, n, generator=generator) for n in SEGMENTS]
    first, *_ = tensors
    first[:, ::7], first[:, 1::7] = 0.0, -0.0
    first[:, 32:48] *= 1e-41
    first[:, 64:96] *= 1e37
    tensors[3][:, :8] = -0.25
    return tensors


def triton(is_on: bool) -> mock._patch[Callable[..., bool]] | nullcontext[None]:
    return mock.patch.object(launches, "runs_on", lambda _: True) if is_on else nullcontext()


def compare_codec(codec: Bucketed) -> None:
    """Compare messages, what they leave out, codes, and what is decoded, with the eager ones."""
    tensors, residual = drawn(0), [torch.randn_like(x) for x in drawn(0)]
    noise = Step(3, 1, range(2), STARTS).noise(
        "codec", dict(zip(NAMES, SEGMENTS, strict=True)), CPU
    )
    grads = dict(zip(NAMES, tensors, strict=True))
    before = {name: x.clone() for name, x in zip(NAMES, residual, strict=True)}
    message = codec.encode_each(tensors, SEGMENTS, noise)
    fitted = codec.fit_buckets(torch.cat(tensors, dim=1), SEGMENTS)
    found = []
    for is_on in (False, True):
        with triton(is_on):
            each = codec.encode_each(tensors, SEGMENTS, noise)
            parts = [*each, codec.fit_buckets(torch.cat(tensors, dim=1), SEGMENTS)]
            # The interpreter has no fused product, but one with a power of two is exact.
            for alpha, keep in ((1.0, 0.0), (0.5, 0.25)):
                given = Given(grads, before, alpha, keep)
                sent, left = codec.encode_corrected(given, noise)
                parts += [*sent, *left.values()]
            parts.append(codec.codes_by(torch.cat(tensors, dim=1), SEGMENTS, fitted, noise))
            added, rest = torch.ones(2, sum(SEGMENTS)), torch.cat(tensors, dim=1)
            codec.decode_add(message, SEGMENTS, added)
            codec.subtract_sent(rest, message, SEGMENTS)
            many = [torch.stack([part, part.flip(0)] * 3) for part in message]
            found.append([*parts, added, rest, codec.decode_mean(many, SEGMENTS)])
    for eager, interpreted in zip(*found, strict=True):
        assert same_bits(eager, interpreted), codec


def compare_codecs(name: str) -> None:
    for codec in CODECS[name]:
        compare_codec(replace(codec, bucket_size=32))
        compare_codec(replace(codec, per_layer=True))
        with mock.patch.multiple(fused, LARGEST=64), mock.patch.object(launches, "PIECE", 16):
            launches.pieces_of.cache_clear()
            compare_codec(replace(codec, per_layer=True, bucket_size=64))
        launches.pieces_of.cache_clear()


def compare_rotated() -> None:
    """Compare EDEN's messages and what is decoded, on blocks that are filled up and short ones."""
    tensors, x = drawn(0), torch.cat(drawn(0), dim=1)
    of_values = dict(zip(NAMES, SEGMENTS, strict=True))
    for codec in (Eden(4, bucket_size=32), Eden(3, bucket_size=128, scale="biased")):
        noise, everyone = (
            Step(3, 1, range(w), STARTS).noise("codec", of_values, CPU) for w in (2, 6)
        )
        message = codec.encode_each(tensors, SEGMENTS, noise)
        many = [torch.stack([part, part.flip(0)] * 3)[:3] for part in message]
        found = []
        for is_on in (False, True):
            with triton(is_on):
                parts = codec.encode_each(tensors, SEGMENTS, noise)
                added, rest = torch.ones_like(x), x.clone()
                codec.drawing(noise).decode_add(message, SEGMENTS, added)
                codec.drawing(noise).subtract_sent(rest, message, SEGMENTS)
                mean = codec.drawing(everyone).decode_mean(many, SEGMENTS)
                found.append([*parts, added, rest, mean])
        for eager, interpreted in zip(*found, strict=True):
            assert same_bits(eager, interpreted), codec


def compare_largest() -> None:
    """Compare Top K's messages, what they leave, and their mean, where many values are equal."""
    grads, x = dict(zip(NAMES, drawn(0), strict=True)), torch.cat(drawn(0), dim=1)
    x[0, 90], x[1, 150], x[1, 151] = torch.inf, -torch.inf, torch.nan
    noise = Step(3, 1, range(2), STARTS).noise(
        "codec", dict(zip(NAMES, SEGMENTS, strict=True)), CPU
    )
    for codec in (TopK(0.3), TopK(0.01), TopK(1.0), TopK(0.3, "auto")):
        message = codec.encode(x, SEGMENTS, noise)
        many = [torch.stack([part, part.flip(0), part]) for part in message]
        found = []
        for is_on in (False, True):
            before = {name: torch.ones_like(part) for name, part in grads.items()}
            with triton(is_on):
                sent, left = codec.encode_corrected(Given(grads, before, 0.5), noise)
                parts = [*codec.encode(x, SEGMENTS, noise), *sent, *left.values()]
                found.append([*parts, codec.decode_mean(many, SEGMENTS)])
        for eager, interpreted in zip(*found, strict=True):
            assert same_bits(eager, interpreted), codec


def compare_products() -> None:
    """Compare the products of a step of PowerSGD, up to rounding, also of dependent columns."""
    sides = [(70, 33, 2), (33, 300, 8), (1, 5, 1), (5, 1, 1), (40, 40, 3), (40, 40, 3)]
    shapes = tuple([Shape(*of_one) for of_one in sides])
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    gs, es = ([normal(2, s.n, s.m) for s in shapes] for _ in range(2))
    qs = [normal(1, s.r, s.m) for s in shapes]
    qs[1][0, 1], qs[1][0, 2, 4], qs[4][0, 1] = 0, torch.nan, qs[4][0, 0]
    fresh = normal(1, sum(s.r * s.m for s in shapes))
    found = []
    for is_on in (False, True):
        with triton(is_on):
            q = restart(qs, fresh, shapes)
            ms, worker_p = add_times(gs, es, 0.5, q, shapes)
            p = orthogonalize(worker_p[:1], shapes)
            worker_q = transposed_times(ms, p, shapes)
            parts = [q, worker_p, p, worker_q, times(ms, q, shapes), *unstack(ms)]
            parts += unstack(product(p, worker_q, shapes))
            parts += unstack(product_and_rest(p, worker_q[:1], p, worker_q, ms, shapes))
            found.append([*parts, *unstack(ms)])
    assert same_bits(found[0][0], found[1][0])
    for eager, interpreted in zip(*found, strict=True):
        torch.testing.assert_close(interpreted, eager, rtol=1e-4, atol=1e-4)


def compare_hook() -> None:
    """Compare what a hook checks and writes where a value is not finite, and where all are.

    So is what is clipped.
    """
    old, new = drawn(0, rows=1), drawn(1, rows=1)
    tensors = drawn(0)
    tensors[3][:], tensors[4][0, 7], tensors[0][0, 3] = 2.0, torch.nan, 0.0
    for tensor in tensors:
        tensor[tensor.abs() > 1e9] = 5.0
    clipped = clip(tensors, 1.5)
    with triton(True):
        assert all(map(same_bits, clip(tensors, 1.5), clipped))
    for value in (1.0, torch.nan, -torch.inf):
        bad = torch.tensor([value != 1])
        for worse in (0, 1):
            places, updates = ([x.clone() for x in part] for part in (old, new))
            (places, updates)[worse][3][0, 42] = value
            with triton(True):
                assert torch.equal(replace_each(places, updates), bad)
            assert all(map(same_bits, places, updates))
        with triton(True):
            launch_if(bad, "blank_each", written := [x.clone() for x in old])
            launch_if(bad, "restore_each", state := [x.clone() for x in new], old)
        assert all(x.isnan().all() == bad for x in written)
        assert all(map(same_bits, state, old if bad else new))


OTHERS: dict[str, Callable[[], None]] = {
    "hook": compare_hook,
    "eden": compare_rotated,
    "top_k": compare_largest,
    "powersgd": compare_products,
}


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        for argument in sys.argv[1:]:
            OTHERS[argument]() if argument in OTHERS else compare_codecs(argument)
            print(argument, "has equal bits", flush=True)
