"""Native and eager codecs have the same bits, and the library is built once for each user."""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from backends import needs_compiler
from nightly import each
from torch import Tensor

from gcbench.core.codec import Codec
from gcbench.core.codecs import native
from gcbench.core.codecs.elias import Blocks
from gcbench.core.codecs.elias_codes import decode_dense, decode_sparse, encode_dense, encode_sparse
from gcbench.core.codecs.indices import sparse_mean
from gcbench.core.codecs.kernels import keep_backend, use_backend
from gcbench.core.codecs.noise import Noise
from gcbench.core.codecs.packing import (
    decode_ans,
    encode_ans,
    majority,
    pack,
    packed_bytes,
    unpack,
)
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Compressor, Given, State, Step, offsets_of, sizes_of
from gcbench.core.exchange.gather import GatherExchange
from gcbench.core.methods.bucketed import Bucketed
from gcbench.core.methods.eden import Eden, NormalLevels
from gcbench.core.methods.loco import LoCo, NearestLevel
from gcbench.core.methods.maxnorm import MaxNorm, MultiScale
from gcbench.core.methods.natural import Natural
from gcbench.core.methods.onebit import OneBit
from gcbench.core.methods.orq import ORQ, BinGradB, BinGradPB, EvenLevels, Linear
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.methods.quantizers import GridQuantizer, TableQuantizer
from gcbench.core.methods.random_sparse import GlobalRandK
from gcbench.core.methods.sign import ScaledSign
from gcbench.core.methods.top_k import TopK
from gcbench.core.wrappers.build import build_exchange
from gcbench.core.wrappers.virtual import aggregate
from gcbench.core.wrappers.wrappers import ErrorFeedback, SigmaClipping

# A large tensor, tails, short buckets, fewer rows than a group, and a gap in the draws.
SIZES = (300_000, 5200, 7, 2997, 64 * 40, 1, 31)
BUCKETS: tuple[dict[str, Any], ...] = (
    {"bucket_size": 512},
    {"bucket_size": 2048},
    {"bucket_size": 77},
    {"per_layer": True},
)
METHODS: dict[str, list[Bucketed]] = {
    "QSGD": [
        QSGD(s, norm=norm, **b) for s in (1, 7, 127) for norm in ("linf", "l2") for b in BUCKETS
    ],
    "even levels": [
        EvenLevels(level_count=s, **BUCKETS[s % 4]) for s in (2, 3, 4, 5, 9, 17, 33, 255)
    ],
    "nearest level": [NearestLevel(s, **b) for s in (1, 7, 127) for b in BUCKETS],
    "signs": [ScaledSign(scale=scale, **b) for scale in ("mean", "rms") for b in BUCKETS],
    "two levels": [kind(**b) for kind in (OneBit, BinGradB, BinGradPB) for b in BUCKETS],
    "levels of all": [
        NormalLevels(bits=bits, scale=scale, **b)
        for bits in (1, 3, 4, 5, 8)
        for scale in ("unbiased", "biased", "rms")
        for b in BUCKETS[bits % 2 :: 2]
    ],
    "tables": [
        *(ORQ(s, **BUCKETS[s % 4]) for s in (3, 5, 9, 17, 33)),
        *(Linear(s, **BUCKETS[s % 4]) for s in (2, 3, 4, 6, 7, 16, 18, 200)),
    ],
}


class VariableLength(NamedTuple):
    write: Callable[..., tuple[Tensor, Tensor]]
    read: Callable[..., Tensor]


CODES_OF = {
    "dense": VariableLength(encode_dense, decode_dense),
    "sparse": VariableLength(encode_sparse, decode_sparse),
    "ans": VariableLength(
        lambda codes, blocks, levels: encode_ans(codes, 2 * levels + 1),
        lambda words, weights, blocks, levels: decode_ans(words, weights, sum(blocks.segments)),
    ),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    needs_compiler()
    with keep_backend():
        yield


def noise_of(workers: int) -> Any:
    names = [*map(str, range(len(SIZES)))]
    starts = [sum(SIZES[:i]) + 5 * (i > 2) for i in range(len(SIZES))]
    step = Step(3, 1, range(workers), dict(zip(names, starts, strict=True)))
    sizes = dict(zip(names, SIZES, strict=True))
    return step.noise("codec", sizes, torch.device("cpu"))


def draw(workers: int, seed: int) -> Tensor:
    x = torch.randn(workers, sum(SIZES), generator=torch.Generator().manual_seed(seed))
    x[:, ::7], x[:, ::11] = 0, -0.0
    x[:, 131_072:133_120] *= 1e-42
    x[:, 7000:9100] = 0
    return x


def given_of(x: Tensor, residual: Tensor, alpha: float) -> Given:
    grads, old = (
        dict(zip(map(str, range(len(SIZES))), part.split(SIZES, 1), strict=True))
        for part in (x, residual)
    )
    return Given(grads, old, alpha)


def corrected_by(method: Codec, given: Given, noise: Noise) -> list[Tensor]:
    """Return a message and the next residual."""
    message, left = method.encode_corrected(given, noise)
    return [*message, *left.values()]


def results(method: Bucketed, x: Tensor, residual: Tensor) -> list[Tensor]:
    """Return what a method sends, decodes, and keeps with error feedback."""
    noise = noise_of(len(x))
    message = method.encode(x, SIZES, noise)
    added = torch.ones_like(x)
    method.decode_add(message, SIZES, added)
    everyone = [torch.stack([part, part.flip(0), part]) for part in message]
    corrected = [
        part
        for alpha in (1.0, 0.3)
        for part in corrected_by(method, given_of(x, residual, alpha), noise)
    ]
    codes = []
    if isinstance(method, GridQuantizer | TableQuantizer):
        fitted = method.fit_buckets(x, SIZES)
        codes = [fitted, method.codes_by(x, SIZES, 1.5 * fitted, noise)]
    return [*message, added, method.decode_mean(everyone, SIZES), *corrected, *codes]


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(*(x.contiguous().view(torch.uint8) for x in (a, b)))


@each("kind", METHODS)
def test_results_have_the_bits_of_eager_codecs(kind: str) -> None:
    for method in METHODS[kind]:
        for workers in (1, 2):
            x, residual = draw(workers, 1), 0.1 * draw(workers, 2)
            use_backend("eager")
            expected = results(method, x, residual)
            use_backend("native")
            found = results(method, x, residual)
            assert [*map(same_bits, found, expected)] == [True] * len(expected), method


def test_rotations_have_the_bits_of_eager_ones() -> None:
    """Also of values that are not finite, up to the bits of a NaN."""
    x = draw(2, 5)
    x[1, 9], x[0, 300_100] = torch.inf, torch.nan
    for size in (16, 512, 4096, 32768):
        found = {}
        for backend in ("eager", "native"):
            use_backend(backend)  # type: ignore[arg-type]
            code = Eden(3, "unbiased", size)  # type: ignore[arg-type]
            noise = noise_of(2)
            message, left = code.encode_corrected(given_of(x, x.flip(0), 0.5), noise)
            mean = code.drawing(noise).decode_mean([m.unsqueeze(0) for m in message], SIZES)
            numbers = [mean, *left.values(), message.pop()]
            found[backend] = [*message, *(part.nan_to_num() for part in numbers)]
        assert [*map(same_bits, *found.values())] == [True] * len(found["eager"]), size


def test_a_residual_in_place_has_the_same_bits() -> None:
    """Every method, and also where a part of the old residual is kept; eager, too."""
    x, residual = draw(2, 1), 0.1 * draw(2, 2)
    for backend in ("eager", "native"):
        use_backend(backend)  # type: ignore[arg-type]
        for method in (*(methods[0] for methods in METHODS.values()), ORQ(5), Natural(), TopK(0.1)):
            for keep in (0.0, 0.7):
                found = []
                for in_place in (False, True):
                    given = given_of(x, residual.clone(), 0.3)._replace(
                        keep=keep, in_place=in_place
                    )
                    found.append(corrected_by(method, given, noise_of(2)))
                    left = found[-1][-len(SIZES) :]
                    assert all(map(same_bits, given.before, left)) == in_place, method
                assert all(map(same_bits, *found)), method


def test_sparse_messages_and_means_have_the_bits_of_eager_ones() -> None:
    """Also of sums with a residual, of ties, and of workers that send the same positions."""
    x, residual = draw(2, 1), 0.1 * draw(2, 2)
    for fraction, index in ((0.01, "int32"), (0.3, "auto"), (1.0, "int32")):
        method, found = TopK(fraction, index), []  # type: ignore[arg-type]
        for backend in ("eager", "native"):
            use_backend(backend)  # type: ignore[arg-type]
            message, left = method.encode_corrected(given_of(x, residual, 0.3), noise_of(2))
            many = [torch.stack([part, part.flip(0), part]) for part in message]
            found.append([*message, *left.values(), method.decode_mean(many, SIZES)])
        assert all(map(same_bits, *found)), fraction
    beyond = torch.tensor([[[0, 7]]])
    with pytest.raises(ValueError, match="a position is beyond the 7 values"):
        sparse_mean(beyond, torch.ones(1, 1, 2), 7)


def test_a_residual_in_bytes_has_the_bits_of_an_eager_one() -> None:
    """LoCo in both, also in place and in a step that resets it."""
    grads = dict(zip("abcdefg", draw(2, 1).split(SIZES, 1), strict=True))
    for settings in ({"bucket_size": 512}, {"bucket_size": 2048}, {"per_layer": True}):
        found = []
        for backend, in_place in (("eager", False), ("native", False), ("native", True)):
            use_backend(backend)  # type: ignore[arg-type]
            loco = LoCo(GatherExchange(NearestLevel(7, **settings)), 0.4, reset_steps=3)
            state, parts = State(), []
            for number in range(4):
                out = aggregate(loco, grads, number=number, state=state, in_place=in_place)
                state = out.state
                assert state.inner
                memory = (*state.per_worker.values(), *state.inner.per_worker.values())
                parts += [x.clone() for x in (*out.update.values(), *out.sent().values(), *memory)]
            found.append(parts)
        assert all(map(same_bits, found[0], found[1])) and all(map(same_bits, *found[1:]))


def test_values_that_are_clipped_have_the_bits_of_eager_ones() -> None:
    """Also those far from zero, with a residual, in place, and in threads."""
    names = "abcdefg"
    for workers, method in itertools.product((1, 2), (EvenLevels(level_count=3), OneBit())):
        for knobs in ({"bucket_size": 512}, {"per_layer": True}):
            clipping = SigmaClipping(GatherExchange(replace(method, **knobs)), 2.5)
            found = []
            for backend, threads in (("eager", 1), ("native", 1), ("native", 3)):
                use_backend(backend)  # type: ignore[arg-type]
                parts: list[Tensor] = []
                for compressor in (clipping, *(ErrorFeedback(clipping, 0.3, b) for b in (0.3, 1))):
                    x, old = draw(workers, 1), 0.1 * draw(workers, 2)
                    x[:, :300_000] += 3
                    grads = dict(zip(names, x.split(SIZES, 1), strict=True))
                    residual = dict(zip(names, old.split(SIZES, 1), strict=True))
                    step = Step(2, 1, range(workers), offsets_of(sizes_of(grads)), threads == 3)
                    torch.set_num_threads(threads)
                    state = State(per_worker=residual)
                    out = compressor.aggregate(grads, state, Comm(workers), step)
                    kept = out.state.per_worker
                    wanted = out.goal_of(grads)().wanted
                    parts += [*out.update.values(), *kept.values(), *wanted.values()]
                torch.set_num_threads(1)
                found.append(parts)
            assert all(map(same_bits, found[0], found[1])), clipping
            assert all(map(same_bits, found[0], found[2])), clipping


@each("workers", [1, 3])
def test_sums_of_codes_have_the_bits_of_eager_ones(workers: int) -> None:
    names, x = [*map(str, range(len(SIZES)))], draw(workers, 1)
    grads = dict(zip(names, x.split(SIZES, dim=1), strict=True))
    starts = [sum(SIZES[:i]) + 5 * (i > 2) for i in range(len(SIZES))]
    step = Step(3, 1, range(workers), dict(zip(names, starts, strict=True)))
    methods: list[Compressor] = [
        *(MaxNorm(s, norm="l2") for s in (1, 7, 255)),
        *(MultiScale((2, 6)), GlobalRandK(MaxNorm(7), k=5000)),
        *(build_exchange(QSGD(s, **b), "sum") for s in (1, 127) for b in BUCKETS),
        *(build_exchange(BinGradPB(**BUCKETS[0]), "sum"), build_exchange(ORQ(3), "sum")),
    ]
    for method in methods:
        for small in (1, 1e-38):
            scaled = {name: g * small for name, g in grads.items()}
            found = []
            for backend in ("eager", "native"):
                use_backend(backend)  # type: ignore[arg-type]
                out = method.aggregate(scaled, State(), Comm(workers), step)
                found.append([*out.update.values(), *out.sent().values()])
            assert all(map(same_bits, *found)), method


def test_powers_of_two_have_the_bits_of_eager_ones() -> None:
    x, found = draw(2, 1), []
    x[0, 3], x[1, 5], x[0, 400], x[1, 401] = torch.nan, -torch.inf, 3.4e38, -1e-40
    for backend in ("eager", "native"):
        use_backend(backend)  # type: ignore[arg-type]
        for n in (sum(SIZES), 3, 8, 9):
            sizes = SIZES if n > 9 else (n,)
            part, added = x[:, :n].clone(), torch.ones(2, n)
            noise = noise_of(2) if n > 9 else Noise(noise_of(2).keys, ((5, n),))
            message = Natural().encode(part, sizes, noise)
            Natural().decode_add(message, sizes, added)
            found.append([*message, torch.where(added.isfinite(), added, 0), added.isnan()])
    for eager, native_ in zip(found[:4], found[4:], strict=True):
        assert all(map(same_bits, eager, native_))


@pytest.mark.parametrize("kind", ["dense", "sparse", "ans"])
def test_codes_of_variable_length_have_the_bits_of_eager_ones(kind: str) -> None:
    """Of one and three rows, on one and three threads, with blocks that end inside words."""
    generator = torch.Generator().manual_seed(4)
    for levels, zeros, size in ((1, 0.9, 512), (7, 0.5, 2048), (127, 0.2, 77), (7, 1.0, 512)):
        code, blocks = CODES_OF[kind], Blocks((70_000, 5, 513, 1, 2048), size)
        n = sum(blocks.segments)
        for rows in (1, 3):
            codes = torch.randint(0, 2 * levels + 1, (rows, n), generator=generator)
            is_zero = torch.rand(rows, n, generator=generator) < zeros
            codes = codes.where(~is_zero, levels).to(torch.uint8)
            use_backend("eager")
            expected = code.write(codes, blocks, levels)
            use_backend("native")
            for threads in (1, 3):
                torch.set_num_threads(threads)
                found = code.write(codes, blocks, levels)
                assert all(map(torch.equal, found, expected)), (levels, rows)
                assert torch.equal(code.read(*found, blocks, levels), codes), (levels, rows)
            torch.set_num_threads(1)


def test_small_numbers_have_the_bits_of_eager_ones() -> None:
    for width, n in itertools.product(range(1, 8), (1, 7, 9, 63, 4096, 4097, 33333)):
        codes = torch.randint(0, 1 << width, (3, n), dtype=torch.uint8)
        packed = {}
        for backend in ("native", "eager"):
            use_backend(backend)  # type: ignore[arg-type]
            packed[backend] = pack(codes, width)
            assert packed[backend].shape == (3, packed_bytes(n, width))
            assert torch.equal(unpack(packed[backend], n, width), codes)
        assert torch.equal(packed["native"], packed["eager"])


def test_a_majority_has_the_signs_of_an_eager_one() -> None:
    for rows, n in itertools.product((1, 2, 5, 6), (1, 9, 4097, 33333)):
        signs = pack(torch.randint(0, 2, (rows, n), dtype=torch.uint8), 1)
        of_backends = []
        for backend in ("native", "eager"):
            use_backend(backend)  # type: ignore[arg-type]
            of_backends.append(majority(signs, n))
        assert torch.equal(*of_backends)


def test_threads_change_nothing() -> None:
    use_backend("native")
    threads = torch.get_num_threads()
    x, residual = draw(2, 1), draw(2, 2)
    for method in (QSGD(7, bucket_size=512), OneBit(per_layer=True), ORQ(5)):
        alone = results(method, x, residual)
        torch.set_num_threads(3)
        assert all(map(same_bits, results(method, x, residual), alone))
        torch.set_num_threads(threads)


def test_what_is_not_finite_arrives_and_stays_in_its_bucket() -> None:
    x = draw(1, 1)
    finite = x.clone()
    x[0, 5], x[0, 1030] = torch.nan, -torch.inf
    use_backend("native")
    for method in (
        QSGD(127, bucket_size=512),
        QSGD(7, bucket_size=512),
        NearestLevel(7, bucket_size=512),
        OneBit(bucket_size=512),
    ):
        decoded, of_finite = torch.zeros_like(x), torch.zeros_like(x)
        method.decode_add(method.encode(x, SIZES, noise_of(1)), SIZES, decoded)
        method.decode_add(method.encode(finite, SIZES, noise_of(1)), SIZES, of_finite)
        assert not decoded[0, 5].isfinite() and not decoded[0, 1030].isfinite()
        assert torch.equal(decoded[0, 512:1024], of_finite[0, 512:1024])
        assert torch.equal(decoded[0, 1536:], of_finite[0, 1536:])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache, and a file of one function in place of the real ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    (tmp_path / "one.cpp").write_text('extern "C" int one() { return 1; }')
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    return tmp_path / "caches" / "gcbench" / "native"


def test_the_library_is_built_once_for_each_processor(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = native._find_or_build()
    with monkeypatch.context() as patched:  # what is there needs neither a lock nor a compiler
        patched.setattr(fcntl, "flock", lambda *_: pytest.fail("locked"))
        assert native._find_or_build() == first and first.parent == cache
    assert [*cache.glob("*.so")] == [first] and cache.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(native, "_processor", lambda: "another")
    monkeypatch.setattr(subprocess, "run", lambda command, **_: Path(command[-1]).touch())
    assert native._find_or_build() != first


@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_damaged_library_is_built_anew(cache: Path, left: float) -> None:
    """Loading one that a power failure has cut off would end the process."""
    first = native._find_or_build()
    whole = first.read_bytes()
    first.write_bytes(whole[: int(len(whole) * left)])
    assert native._find_or_build().read_bytes() == whole


def test_a_disk_without_locks_has_a_library_too(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert native._find_or_build().exists()


def test_what_prevents_a_library_is_one_sentence(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str) -> None:
        with pytest.raises(RuntimeError, match=words) as raised:
            native.load_native.__wrapped__()
        assert "\n" not in str(raised.value) and not [*cache.glob("codecs*")]

    (cache.parent.parent.parent / "one.cpp").write_text("this is no C++")
    refused("do not compile on this machine: .*error: ")
    slow = cache.parent.parent.parent / "slow_compiler"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr(native, "COMPILER_SECONDS", 0.01)
        patched.setenv("CXX", str(slow))
        refused(r"took more than 0.01 s")
    cache.chmod(0o777)
    refused("XDG_CACHE_HOME: .*can be written by others")
    cache.chmod(0o700)
    (cache / "lock").unlink()
    (cache / "lock").mkdir()
    refused("cannot be built: .*Is a directory")
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.delenv("CXX", raising=False)
    refused("there is no C.. compiler")


def test_what_a_compiler_leaves_that_is_no_library_leaves_codecs_eager(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: Path(command[-1]).touch())
    with pytest.raises(RuntimeError, match="cannot be built: .*file too short"):
        native.load_native.__wrapped__()


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 3, dtype=torch.bfloat16),
        torch.zeros(2, 2),
        torch.zeros(3, 3),
        torch.zeros(3, 2).T,
    ],
)
def test_a_tensor_of_another_type_or_size_is_not_handed_to_native_code(x: Tensor) -> None:
    for take in (
        lambda: native.address(x, torch.float32, 6),
        lambda: native.addresses([x], 2, [3]),
    ):
        with pytest.raises(TypeError, match="native code takes"):
            take()
