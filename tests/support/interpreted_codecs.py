"""Run hand-written Triton on the CPU, in Triton's interpreter, and compare it with eager code.

`PYTHONPATH=scripts python tests/support/interpreted_codecs.py NAME ...` does so for codecs of these
names, or for what is no codec; with --gpu, on a GPU. It needs a process of its own: Triton chooses
its interpreter when it is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

os.environ["TRITON_INTERPRET"] = str(int("--gpu" not in sys.argv))

import numpy as np
import torch
from interpreted import same_bits
from torch import Tensor

from gcbench.core.codec import Message
from gcbench.core.codecs import fused, launches
from gcbench.core.codecs.kernels import keep_backend, use_backend
from gcbench.core.codecs.launches import launch_if
from gcbench.core.codecs.low_rank import Shape
from gcbench.core.codecs.noise import Noise
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
from gcbench.core.compressor import Given, Grads, Step
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
ON_GPU = "--gpu" in sys.argv
CPU = torch.device("cpu")
DEVICE = torch.device("cuda") if ON_GPU else CPU
Work = Callable[[torch.device], list[Tensor]]


@contextmanager
def triton() -> Iterator[None]:
    """Let hand-written Triton run on the device."""
    with (
        keep_backend(),
        mock.patch.object(launches, "runs_on", lambda device: device.type == DEVICE.type),
    ):
        if ON_GPU:
            use_backend("compiled")
        yield


def compare(work: Work, same: Callable[[Tensor, Tensor], bool], name: object) -> None:
    """Compare the results of `work` on the CPU with those of hand-written Triton."""
    eager = work(CPU)
    with triton():
        found = [x.cpu() for x in work(DEVICE)]
    for k, (expected, x) in enumerate(zip(eager, found, strict=True)):
        assert same(expected, x), f"{name}: result {k} differs"


def move(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    return [x.to(device, copy=True) for x in tensors]


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


def noise_of(workers: int, device: torch.device) -> Noise:
    sizes = dict(zip(NAMES, SEGMENTS, strict=True))
    return Step(3, 1, range(workers), STARTS).noise("codec", sizes, device)


def named(tensors: Iterable[Tensor]) -> Grads:
    return dict(zip(NAMES, tensors, strict=True))


def compare_codec(codec: Bucketed) -> None:
    """Compare messages, what they leave out, codes, and what is decoded, with the eager ones."""
    residual = [torch.randn_like(x) for x in drawn(0)]
    sent = codec.encode_each(drawn(0), SEGMENTS, noise_of(2, CPU))
    of_all = codec.fit_buckets(torch.cat(drawn(0), dim=1), SEGMENTS)

    def work(device: torch.device) -> list[Tensor]:
        tensors, noise = move(drawn(0), device), noise_of(2, device)
        x, message, (fitted,) = (
            torch.cat(tensors, dim=1),
            move(sent, device),
            move([of_all], device),
        )
        parts = [*codec.encode_each(tensors, SEGMENTS, noise), codec.fit_buckets(x, SEGMENTS)]
        # The interpreter has no fused product, but one with a power of two is exact.
        for alpha, keep in ((1.0, 0.0), (0.5, 0.25)):
            given = Given(named(tensors), named(move(residual, device)), alpha, keep)
            corrected, left = codec.encode_corrected(given, noise)
            parts += [*corrected, *left.values()]
        parts.append(codec.codes_by(x, SEGMENTS, fitted, noise))
        many = [torch.stack([part, part.flip(0)] * 3) for part in message]
        parts.append(codec.decode_mean(many, SEGMENTS))
        added = torch.ones_like(x)
        codec.decode_add(message, SEGMENTS, added)
        codec.subtract_sent(x, message, SEGMENTS)
        return [*parts, added, x]

    compare(work, same_bits, codec)


def compare_codecs(name: str) -> None:
    for codec in CODECS[name]:
        compare_codec(replace(codec, bucket_size=32))
        compare_codec(replace(codec, per_layer=True))
        with (
            mock.patch.multiple(fused, LARGEST=64, SORTED=64),
            mock.patch.object(launches, "PIECE", 16),
        ):
            launches.pieces_of.cache_clear()
            compare_codec(replace(codec, per_layer=True, bucket_size=64))
        launches.pieces_of.cache_clear()


def compare_rotated() -> None:
    """Compare EDEN's messages and what is decoded, on blocks that are filled up and short ones."""
    for codec in (Eden(4, bucket_size=32), Eden(3, bucket_size=128, scale="biased")):
        sent = codec.encode_each(drawn(0), SEGMENTS, noise_of(2, CPU))

        def work(device: torch.device, codec: Eden = codec, sent: Message = sent) -> list[Tensor]:
            tensors, noise, message = (
                move(drawn(0), device),
                noise_of(2, device),
                move(sent, device),
            )
            rest = torch.cat(tensors, dim=1)
            added, decoder = torch.ones_like(rest), codec.drawing(noise)
            decoder.decode_add(message, SEGMENTS, added)
            decoder.subtract_sent(rest, message, SEGMENTS)
            many = [torch.stack([part, part.flip(0), part]) for part in message]
            mean = codec.drawing(noise_of(6, device)).decode_mean(many, SEGMENTS)
            return [*codec.encode_each(tensors, SEGMENTS, noise), added, rest, mean]

        compare(work, same_bits, codec)


def compare_largest() -> None:
    """Compare Top K's messages, what they leave, and their mean, where many values are equal."""
    whole = torch.cat(drawn(0), dim=1)
    whole[0, 90], whole[1, 150], whole[1, 151] = torch.inf, -torch.inf, torch.nan
    for codec in (TopK(0.3), TopK(0.01), TopK(1.0), TopK(0.3, "auto")):
        sent = codec.encode(whole, SEGMENTS, noise_of(2, CPU))

        def work(device: torch.device, codec: TopK = codec, sent: Message = sent) -> list[Tensor]:
            grads, noise = move(drawn(0), device), noise_of(2, device)
            given = Given(named(grads), named(map(torch.ones_like, grads)), 0.5)
            corrected, left = codec.encode_corrected(given, noise)
            message, (x,) = move(sent, device), move([whole], device)
            many = [torch.stack([part, part.flip(0), part]) for part in message]
            mean = codec.decode_mean(many, SEGMENTS)
            return [*codec.encode(x, SEGMENTS, noise), *corrected, *left.values(), mean]

        compare(work, same_bits, codec)


def compare_products() -> None:
    """Compare the products of a step of PowerSGD, up to rounding, also of dependent columns."""
    sides = [(70, 33, 2), (33, 300, 8), (1, 5, 1), (5, 1, 1), (40, 40, 3), (40, 40, 3)]
    shapes = tuple([Shape(*of_one) for of_one in sides])
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    gs, es = ([normal(2, s.n, s.m) for s in shapes] for _ in range(2))
    qs, fresh = [normal(1, s.r, s.m) for s in shapes], normal(1, sum(s.r * s.m for s in shapes))
    qs[1][0, 1], qs[1][0, 2, 4], qs[4][0, 1] = 0, torch.nan, qs[4][0, 0]

    def work(device: torch.device) -> list[Tensor]:
        q = restart(move(qs, device), *move([fresh], device), shapes)
        ms, worker_p = add_times(move(gs, device), move(es, device), 0.5, q, shapes)
        p = orthogonalize(worker_p[:1], shapes)
        worker_q = transposed_times(ms, p, shapes)
        parts = [q, worker_p, p, worker_q, times(ms, q, shapes), *move(unstack(ms), device)]
        parts += unstack(product(p, worker_q, shapes))
        parts += unstack(product_and_rest(p, worker_q[:1], p, worker_q, ms, shapes))
        return [*parts, *unstack(ms)]

    def close(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)

    compare(work, close, "products")


def compare_hook() -> None:
    """Compare what a hook checks and writes where a value is not finite, and where all are.

    So is what is clipped.
    """
    old, new, tensors = drawn(0, rows=1), drawn(1, rows=1), drawn(0)
    tensors[0][:, 64:96] = 5.0
    tensors[3][:], tensors[4][0, 7] = 2.0, torch.nan
    compare(lambda device: clip(move(tensors, device), 1.5), same_bits, "clip")
    for value in (1.0, torch.nan, -torch.inf):
        for worse in (0, 1):
            places, updates = (move(part, DEVICE) for part in (old, new))
            (places, updates)[worse][3][0, 42] = value
            with triton():
                bad = replace_each(places, updates)
            assert bad.tolist() == [value != 1] and all(map(torch.equal, places[:3], updates[:3]))
            assert same_bits(places[3].cpu(), updates[3].cpu())
        written, state, before = (move(part, DEVICE) for part in (old, new, old))
        with triton():
            launch_if(bad, "blank_each", written)
            launch_if(bad, "restore_each", state, before)
        assert all(x.isnan().all() == bad for x in written)
        expected = old if bad else new
        assert all(same_bits(x.cpu(), y) for x, y in zip(state, expected, strict=True))


OTHERS: dict[str, Callable[[], None]] = {
    "hook": compare_hook,
    "eden": compare_rotated,
    "top_k": compare_largest,
    "powersgd": compare_products,
}


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        for argument in sys.argv[1 + ON_GPU :]:
            OTHERS[argument]() if argument in OTHERS else compare_codecs(argument)
            print(argument, "has equal bits", flush=True)
