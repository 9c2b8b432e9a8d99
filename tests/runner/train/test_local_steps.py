"""Local steps: workers train by themselves, and exchange how far their parameters have moved."""

from __future__ import annotations

import math
import threading
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from inner_cases import VIRTUAL, N, W, build, shared, take_steps, train_losses
from nightly import each, slow_but
from sentence import run, untimed_metrics
from torch import Tensor, nn

from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import Aggregated, Compressor, Grads, State, Step
from gcbench.core.errors import ConfigError
from gcbench.core.local_rule import cut_fragments
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.train.checkpoints import Checkpoints
from gcbench.runner.train.estimators import batch_of
from gcbench.runner.train.loop import train_step
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.scores import loss_of

LOCAL = ("estimator=local_steps", "estimator.every=4")
STREAMING = ("estimator.delay=1", "estimator.mixing=0.5", "estimator.pattern=strided")
FAMILIES = {
    "none": [],
    "qsgd": [],
    "powersgd": ["rank=2"],
    "scaled_sign": ["error_feedback=true"],
    "top_k": [],
    "signum": ["estimator.outer_lr=0.002"],
    "orq": [],
    "maxnorm": [],
}

GLOBAL = ("maxnorm",)  # has one scale for all tensors, so it takes no fragments


class Numbered:
    """A compressor that records the step numbers that it gets, by tensor."""

    def __init__(self, inner: Compressor) -> None:
        self.inner, self.properties = inner, inner.properties
        self.numbers: dict[str, list[int]] = {}

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        for name in grads:
            self.numbers.setdefault(name, []).append(step.number)
        return self.inner.aggregate(grads, state, comm, step)


@pytest.mark.parametrize("fragments", [1, 3])
def test_methods_count_exchanges_and_not_steps(tmp_path: Path, fragments: int) -> None:
    """Signum's sign of 0, LoCo's reset and dense_steps rely on it; steps may all be odd."""
    run, progress = build(tmp_path, "compressor=none", *LOCAL, f"estimator.fragments={fragments}")
    numbered = Numbered(run.compressor)
    run.exchange.compressor = numbered
    take_steps((run, progress), 16)
    assert numbered.numbers == dict.fromkeys(run.replica.grads, [0, 1, 2, 3])


def test_an_exchange_every_step_is_sgd(tmp_path: Path) -> None:
    """x - mean of (x - (x - a g_i)) is x - a (mean of g_i), apart from rounding x - a g_i."""
    overrides = ("compressor=none", "optimizer.momentum=0", "optimizer.lr=0.1")
    outer = ("estimator.outer_lr=1", "estimator.outer_momentum=0", "estimator.outer_nesterov=false")
    local = build(tmp_path, *overrides, "estimator=local_steps", "estimator.every=1", *outer)
    plain = build(tmp_path, *overrides)
    for built in (local, plain):
        take_steps(built, 20)
    for ours, theirs in zip(shared(local[0]).values(), shared(plain[0]).values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert local[0].comm.meter.sent_bits == plain[0].comm.meter.sent_bits


def diloco(
    run: Run, steps: int, every: int, parts: list[list[int]], delay: int, mixing: float
) -> dict[str, Tensor]:
    """Return the shared parameters after (Streaming) DiLoCo on the batches of `run`.

    Of `parts`, which number the parameters, part k is sent in the steps t with t - floor(k H / P)
    divisible by H, arrives `delay` steps later, and is then mixed with what workers have there.
    """
    model = deepcopy(run.replica.model)
    models = [deepcopy(model) for _ in range(W)]
    inner = [torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1) for m in models]
    xs = [p.detach() for p in model.parameters()]
    own = [[p.detach() for p in m.parameters()] for m in models]
    velocities = [torch.zeros_like(x) for x in xs]
    arrivals: dict[int, list[tuple[int, Tensor]]] = {}
    for step in range(steps):
        for worker, (m, optimizer) in enumerate(zip(models, inner, strict=True)):
            inputs, targets = batch_of(run, step, worker)
            optimizer.zero_grad()
            loss_of("classification", m(inputs), targets).backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            optimizer.step()
        for k, part in enumerate(parts):
            if (step + 1 - k * every // len(parts)) % every == 0:
                sent = [(i, torch.stack([xs[i] - of[i] for of in own]).mean(0)) for i in part]
                arrivals[step + delay] = sent
        for i, pseudo_gradient in arrivals.pop(step, []):
            velocities[i].mul_(0.9).add_(pseudo_gradient)
            xs[i] -= 0.7 * (pseudo_gradient + 0.9 * velocities[i])
            for of in own:
                of[i].copy_(mixing * of[i] + (1 - mixing) * xs[i])
    return {k: p.detach() for k, p in model.named_parameters()}


@each(
    ("parts", "delay", "mixing", "typed"),
    [
        ([[0, 1, 2, 3]], 0, 0.0, ()),
        ([[0, 1, 2, 3]], 3, 0.0, ("estimator.delay=3",)),
        (
            [[0, 1], [2, 3]],
            1,
            0.5,
            ("estimator.fragments=2", *STREAMING),
        ),
    ],
)
def test_it_is_the_papers_algorithm(
    parts: list[list[int]],
    delay: int,
    mixing: float,
    typed: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    adamw = ("optimizer=adamw", "optimizer.lr=0.01", "optimizer.weight_decay=0.1")
    overrides = ("compressor=none", "schedule=constant", *adamw, *LOCAL, "estimator.clip_norm=1")
    built = build(tmp_path_factory.mktemp("run"), *overrides, *typed)
    expected = diloco(built[0], 14, 4, parts, delay, mixing)
    before = shared(built[0])
    take_steps(built, 14)
    for name, value in shared(built[0]).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
        assert not torch.equal(value, before[name])


def test_a_delayed_exchange_runs_while_workers_take_steps(tmp_path: Path) -> None:
    """It has a thread of its own, so that the steps after it need not wait for its collectives."""
    run, progress = build(tmp_path, "compressor=none", *LOCAL, "estimator.delay=2")
    threads, go = [], threading.Event()

    class Waiting(Numbered):
        def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
            threads.append(threading.current_thread().name)
            assert go.wait(60)
            return super().aggregate(grads, state, comm, step)

    run.exchange.compressor = Waiting(run.compressor)
    built = run, progress
    before = shared(run)
    take_steps(built, 5)
    go.set()
    assert all(torch.equal(x, before[k]) for k, x in shared(run).items())
    take_steps(built, 1)
    assert not any(torch.equal(x, before[k]) for k, x in shared(run).items())
    assert threads == ["exchange"]


@pytest.mark.parametrize(
    ("method", "fragments"),
    slow_but(
        [("none", 2), ("qsgd", 1), ("powersgd", 2), ("top_k", 1), ("maxnorm", 1)],
        [
            *((name, 1) for name in FAMILIES),
            *((name, 2) for name in FAMILIES if name not in GLOBAL),
        ],
    ),
)
def test_every_family_learns_from_pseudo_gradients(
    tmp_path: Path, method: str, fragments: int
) -> None:
    """It sends as much as for a gradient, once in H steps, and keeps what it does not send."""
    overrides = (
        f"compressor={method}",
        *FAMILIES[method],
        "schedule=constant",
        "optimizer.momentum=0",
    )
    if method not in ("none", "signum", "maxnorm"):
        overrides = (*overrides, "min_size=0")
    plain = build(tmp_path, *(w for w in overrides if "estimator" not in w))
    train_step(*plain)
    local = build(tmp_path, *LOCAL, f"estimator.fragments={fragments}", *overrides)
    first = train_losses(local, 4)
    bits = local[0].comm.meter.sent_bits
    take_steps(local, 32)
    last = train_losses(local, 4)
    assert last < 0.9 * first
    assert local[1].kept.exchanges == 10 * fragments
    # A fragment may need scales or matrices of its own, but sends no value twice.
    sent, once = local[0].comm.meter.sent_bits[0], plain[0].comm.meter.sent_bits[0]
    assert sent == pytest.approx(10 * once, rel=0.2 if fragments > 1 else 0.0)
    assert bits[0] <= 2 * once
    for inner in local[0].inner:  # step 40 exchanged all, or the first fragment
        equal = [
            torch.equal(p, local[0].replica.parameters[k]) for k, p in inner.parameters.items()
        ]
        assert all(equal) if fragments == 1 else any(equal) and not all(equal)


def test_what_is_not_sent_is_sent_later(tmp_path: Path) -> None:
    """With error feedback, updates plus residual are the sum of all pseudo-gradients."""
    outer = ("estimator.outer_lr=1", "estimator.outer_momentum=0", "estimator.outer_nesterov=false")
    overrides = ("compressor=top_k", "error_feedback=true", "min_size=0", *LOCAL, *outer)
    run, progress = build(tmp_path, "estimator.fragments=2", *overrides)
    start, moved = shared(run), dict.fromkeys(run.replica.parameters, torch.zeros(()))
    for _ in range(12):
        exchanged = train_step(run, progress)
        for name in exchanged.update if exchanged else ():
            moved[name] = moved[name] + run.replica.grads[name].mean(0)
    residuals = [layer.per_worker for layer in progress.kept.state.layers() if layer.per_worker]
    for name, x in shared(run).items():
        left = residuals[0][name].mean(0)
        torch.testing.assert_close(start[name] - x + left, moved[name], rtol=1e-4, atol=1e-6)
        assert left.abs().max() > 0


def test_fragments_take_turns(tmp_path: Path) -> None:
    """Each is exchanged every H steps at its own offset: the same bits, but fewer at a time."""
    overrides = ("compressor=none", "estimator=local_steps", "estimator.every=6")
    run, progress = build(tmp_path, *overrides, "estimator.fragments=3")
    names = cut_fragments({k: p.numel() for k, p in run.replica.parameters.items()}, 3)
    moves: dict[str, list[int]] = {k: [] for k in run.replica.parameters}
    bits = []
    for step in range(1, 25):
        before, sent = shared(run), run.comm.meter.sent_bits[0]
        train_step(run, progress)
        bits.append(run.comm.meter.sent_bits[0] - sent)
        for name, p in run.replica.parameters.items():
            if not torch.equal(p, before[name]):
                moves[name].append(step)
    offsets = [6, 2, 4]
    for fragment, first in zip(names, offsets, strict=True):
        for name in fragment:
            assert moves[name] == list(range(first, 25, 6))
    sizes = [32 * sum(run.replica.parameters[k].numel() for k in part) for part in names]
    assert [b for b in bits if b] == [sizes[1], sizes[2], sizes[0]] * 4
    assert sum(bits) == 4 * 32 * N


@each("sizes", [[5], [1, 1, 1, 1], [9, 1, 1, 1], [1, 1, 1, 9], [3, 8, 2, 7, 5]])
def test_fragments_are_all_tensors_in_order_and_none_is_empty(sizes: list[int]) -> None:
    named = {str(i): n for i, n in enumerate(sizes)}
    for count in range(1, len(sizes) + 1):
        parts = cut_fragments(named, count)
        assert [name for part in parts for name in part] == list(named)
        assert len(parts) == count and all(parts)
    assert cut_fragments(dict.fromkeys("abcdef", 2), 3) == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_layers_are_dealt_out_in_turn() -> None:
    """A layer is what has one number in its name, as a block of a GPT, or else one module."""
    block = ("norm.weight", "qkv.weight")
    names = ["words.weight", *(f"blocks.{i}.{k}" for i in range(3) for k in block), "head.weight"]
    sizes = dict.fromkeys([*names, "head.bias"], 1)
    assert cut_fragments(sizes, 2, "strided") == [
        ["words.weight", *(f"blocks.1.{k}" for k in block), "head.weight", "head.bias"],
        [f"blocks.{i}.{k}" for i in (0, 2) for k in block],
    ]


@pytest.mark.capability
@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize(
    "overrides",
    [
        ("compressor=qsgd", "error_feedback=true", "alpha=0.2", "optimizer=muon"),
        pytest.param(
            ("compressor=top_k", "model=resnet8", "trainer.batch_size=4", "optimizer=adamw"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_virtual_and_real_workers_are_equal_to_the_bit(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    length = ("trainer.max_steps=13", "trainer.log_every=1", "trainer.error_every=3")
    local = (*LOCAL, "estimator.fragments=2", "estimator.clip_norm=0.5", *STREAMING)
    typed = (
        *overrides,
        "min_size=0",
        *length,
        *local,
        f"trainer.workers={W}",
        "trainer.accumulate=2",
    )
    results = {
        processes: run(tmp_path / str(processes), *typed, *where)
        for processes, where in {
            1: ("trainer.launcher=virtual",),
            2: ("trainer.launcher=local", "trainer.processes=2"),
            4: ("trainer.launcher=local", "trainer.drift_every=1"),
        }.items()
    }
    assert [result["processes"] for result in results.values()] == [1, 2, 4]
    kept = [torch.load(tmp_path / str(p) / "weights.pt", weights_only=True) for p in results]
    lines = [untimed_metrics(tmp_path / str(p)) for p in results]
    for one, other in pairwise(results.values()):
        for key in ("test", "bits_sent", "bits_wire", "estimator", "compression_error"):
            assert one[key] == other[key]
    assert lines[0] == lines[1] == lines[2] and len(lines[0]) > 13
    for weights in kept[1:]:
        assert all(torch.equal(weights[name], kept[0][name]) for name in kept[0])


def test_the_result_says_what_an_exchange_sends(tmp_path: Path) -> None:
    overrides = (
        *VIRTUAL,
        "compressor=none",
        *LOCAL,
        "trainer.max_steps=10",
        "optimizer.nesterov=true",
    )
    result = run(tmp_path, *overrides, "trainer.error_every=5")
    assert result["estimator"] == {"every": 4, "fragments": 1, "bits_per_exchange": 32 * N}
    assert result["bits_sent"]["per_worker"] == 2 * 32 * N
    assert result["bits_sent"]["per_step"] == pytest.approx(2 * 32 * N / 10)
    assert result["bits_sent"]["ratio"] == pytest.approx(5)
    # Both exchanges are sampled, as each is the first after a multiple of five steps.
    assert result["compression_error"]["samples"] == 2
    assert result["compression_error"]["relative"] < 1e-6
    rates = [line["lr"] for line in untimed_metrics(tmp_path) if line["event"] == "train"]
    assert rates != [0.7], "the rate of the workers' own steps is logged"


def test_a_sample_is_taken_of_what_was_aggregated(tmp_path: Path) -> None:
    """It excludes Nesterov's momentum, which torch adds to the gradient in place."""
    overrides = (*VIRTUAL, "compressor=none", "trainer.max_steps=4", "trainer.error_every=1")
    result = run(tmp_path, *overrides, "optimizer.nesterov=true", "optimizer.weight_decay=0")
    assert result["compression_error"]["relative"] < 1e-6


def test_running_statistics_are_those_of_worker_0(tmp_path: Path) -> None:
    built = build(tmp_path, "model=resnet8", "compressor=none", *LOCAL, "trainer.batch_size=4")
    take_steps(built, 5)
    norms = [m for m in built[0].replica.model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and {int(norm.num_batches_tracked) for norm in norms} == {5}


def test_workers_that_differ_are_merged_if_that_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on from the mean of parameters and moments of those that they replace."""
    overrides = (*LOCAL, "compressor=none", "trainer.launcher=virtual", "trainer.batch_size=8")
    overrides += ("optimizer=adamw", "trainer.keep_weights=true")
    run(tmp_path, *overrides, "trainer.workers=4", "trainer.max_steps=6")
    longer = (*overrides, "trainer.workers=2", "trainer.max_steps=12")
    with pytest.raises(ConfigError, match="parameters of its own .*, or resume.workers=merge"):
        run(tmp_path, *longer)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []
    load = Checkpoints.load

    def watched(self: Checkpoints, path: Path, run: Run, progress: Progress) -> None:
        load(self, path, run, progress)
        theirs = [torch.load(path / f"worker-{k:05d}.pt")["inner"] for k in range(4)]
        for worker, own in enumerate(run.inner):
            a, b = theirs[2 * worker : 2 * worker + 2]
            for i, (name, p) in enumerate(own.parameters.items()):
                m = own.optimizer.state[p]["exp_avg"]
                moments = [x["optimizer"]["state"][i]["exp_avg"] for x in (a, b)]
                pairs.append((p.detach().clone(), a["parameters"][name], b["parameters"][name]))
                pairs.append((m.clone(), *moments))

    monkeypatch.setattr(Checkpoints, "load", watched)
    assert run(tmp_path, *longer, "resume.workers=merge")["steps"] == 12
    assert len(pairs) == 2 * 2 * 4
    for merged, a, b in pairs:
        assert torch.equal(merged, 0.5 * a + 0.5 * b) and not torch.equal(a, b)


def test_the_rates_of_workers_own_steps_follow_the_steps(tmp_path: Path) -> None:
    """The schedule counts the 40 steps, not the 10 exchanges."""
    cosine = ("schedule=cosine", "schedule.warmup_epochs=0", "optimizer.lr=0.5")
    built = build(tmp_path, "compressor=none", *LOCAL, *cosine)
    rates = []
    for _ in range(10):
        train_step(*built)
        rates.append(built[0].learning_rate)
    assert rates == pytest.approx([0.25 * (1 + math.cos(math.pi * t / 40)) for t in range(10)])


def test_fragments_are_whole_in_their_own_first_exchanges(tmp_path: Path) -> None:
    """Each fragment has two exchanges, of which the first is sent uncompressed."""
    typed = ("min_size=0", "dense_steps=1", "estimator=local_steps", "estimator.every=2")
    length = ("estimator.fragments=2", "trainer.max_steps=4")
    assert run(tmp_path, *VIRTUAL, *typed, *length)["compressed_share"] == 0.5


@pytest.mark.usefixtures("copied_workers")
def test_processes_agree_that_one_workers_own_weights_have_diverged(tmp_path: Path) -> None:
    """They overflow in a local step of worker 1, though its gradient does not."""
    overrides = [*LOCAL[:1], "estimator.every=2", "compressor=none"]
    overrides += ["optimizer.lr=1e36", "optimizer.weight_decay=0"]
    overrides += ["model._target_=own_models.Steep", "optimizer.momentum=0"]
    overrides += ["schedule=constant", "trainer.launcher=local", "trainer.workers=2"]
    with pytest.raises(RunFailed, match="diverged: the weights were not finite after step 2"):
        run(tmp_path, *overrides, "trainer.max_steps=3", "trainer.eval_every=null")


@pytest.mark.parametrize("fragments", [1, 4])
def test_a_warm_up_is_most_of_few_exchanges_however_they_are_cut(
    tmp_path: Path, fragments: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each parameter is exchanged 6 times, of which 5 are not compressed."""
    cut = f"estimator.fragments={fragments}"
    overrides = ["compressor=qsgd", "min_size=0", "dense_steps=5", "trainer.max_steps=24"]
    run(tmp_path, *LOCAL, *VIRTUAL, cut, *overrides)
    assert "16.7 % of the gradient's values are compressed" in caplog.text
