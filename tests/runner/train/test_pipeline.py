"""Exchanges that overlap with the backward pass, or with the next step."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gloo_pool import pool
from method_cases import CHOICES, compressor_of
from nightly import each, slow_but
from pipeline_cases import Trained, messages_of_a_continued_run, train_steps
from sentence import SMALL, config_of, run
from torch import Tensor

from gcbench.core.compressor import State
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.control import LocalControl
from gcbench.runner.identity import fingerprint, relevant_config
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train import pipeline
from gcbench.runner.train.pipeline import TURN_STEPS, TURNS

OVERRIDES = ("model.widths=[24,24]", "trainer.workers=2", "trainer.error_every=null")
# A bucket of 0.001 MiB has 262 values, so that there are at least three buckets.
BUCKETS = ("trainer.overlap=true", "trainer.bucket_mib=0.001")
VIRTUAL, REAL = "trainer.launcher=virtual", "trainer.launcher=local"
GLOBAL = ["ef21_muon", "global_randk", "global_randk_multiscale", "maxnorm", "maxnorm_multiscale"]
BY_TENSOR = sorted(set(CHOICES) - set(GLOBAL))


def config(choice: str, *overrides: str) -> RunConfig:
    whole = config_of(*SMALL, *OVERRIDES, f"compressor={choice}", *overrides)
    # Tensors have several quantization buckets, and none is sent uncompressed.
    for small, knob in (("bucket_size", 64), ("min_size", 0)):
        if whole.compressor.get(small):
            whole.compressor[small] = knob
    return whole


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("choice", CHOICES)
def test_the_list_above_has_the_methods_of_global_scope(choice: str) -> None:
    scope = compressor_of(choice, "as it is").properties.scope
    assert scope == ("global" if choice in GLOBAL else "tensor")


@pytest.mark.filterwarnings("error:Detected call of")  # torch would say that a rate is skipped
def test_the_error_of_the_first_late_exchange_is_sampled(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        *SMALL,
        *"trainer.launcher=virtual trainer.double_buffering=true trainer.max_steps=4".split(),
        *"schedule._target_=torch.optim.lr_scheduler.StepLR schedule.step_size=1".split(),
    )
    assert result["compression_error"]["samples"] == 1


@pytest.mark.parametrize(
    "choice", slow_but(("none", "powersgd", "qsgd", "top_k", "onebit_adam", "ef21"), BY_TENSOR)
)
def test_overlap_gives_the_same_bits(choice: str) -> None:
    """With more than two workers, an all-reduce of another length may sum in another order.

    PowerSGD and Dion are only close, as they multiply matrices of the same shape in one batch, and
    a batched product may round differently than a single one.
    """
    clipped = ["+compressor.clip_sigma=1"] if choice == "none" else []  # which is no error
    plain: list[Trained] = pool(2).run(train_steps, config(choice, *clipped), 4)
    overlapped: list[Trained] = pool(2).run(train_steps, config(choice, *clipped, *BUCKETS), 4)
    assert choice != "none" or overlapped[0].sample["relative"] < 1e-6
    for a, b in zip(plain, overlapped, strict=True):
        assert b.buckets >= 3
        if choice in ("powersgd", "dion"):
            torch.testing.assert_close(b.parameters, a.parameters, rtol=0, atol=5e-6)
            assert b.sample == pytest.approx(a.sample, rel=1e-4)
        else:
            assert [same(x, y) for x, y in zip(a.parameters, b.parameters, strict=True)] == [
                True
            ] * 4
            assert a.sample == b.sample
        assert 0.5 < sum(b.sent_bits) / sum(a.sent_bits) < 1.5  # codes are padded per bucket


def test_a_run_that_continues_sends_the_same_messages() -> None:
    """DDP's first step in a process has a single bucket, later ones have more."""
    for whole, continued in pool(2).run(messages_of_a_continued_run, config("qsgd", *BUCKETS)):
        assert whole == continued > 2


def test_a_trial_tells_whether_overlap_pays() -> None:
    """Whichever way it chooses, the updates and the bits that are sent stay the same."""
    steps = 2 * TURN_STEPS * (1 + TURNS) + 2
    plain, _ = pool(2).run(train_steps, config("qsgd", "compressor=qsgd"), steps)
    tried, other = pool(2).run(
        train_steps,
        config("qsgd", "compressor=qsgd", "trainer.bucket_mib=0.001", "trainer.overlap=auto"),
        steps,
    )
    assert [same(x, y) for x, y in zip(plain.parameters, tried.parameters, strict=True)] == [
        True
    ] * steps
    assert tried.overlap_ratio is not None and tried.overlap_ratio == other.overlap_ratio > 0
    assert (tried.buckets > 0) == (tried.overlap_ratio < 1)  # buckets of the last step
    assert tried.sent_bits == plain.sent_bits


@pytest.mark.parametrize("slow", [False, True])
def test_the_faster_way_is_taken(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake clock that only the two ways advance makes one or the other slower."""
    now = 0.0

    class Way:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds
            self.steps = 0

        def gradients(self, run: Any, progress: Any) -> Tensor:
            nonlocal now
            now += self.seconds
            self.steps += 1
            return torch.zeros(1)

    used: list[bool] = []
    replica = SimpleNamespace(device=torch.device("cpu"), use_hook=used.append, unused=set())
    laps: list[str] = []
    clock = SimpleNamespace(take=lambda: ["a trial's"])
    run = SimpleNamespace(replica=replica, control=LocalControl(), clock=clock)
    ledger = SimpleNamespace(add=lambda taken: laps.extend(*taken), begin_anew=laps.clear)
    progress = SimpleNamespace(ledger=ledger)
    monkeypatch.setattr(pipeline.time, "perf_counter", lambda: now)
    after, under = Way(1.0), Way(1.2 if slow else 0.5)
    trial = pipeline.ByTrial(cast(Any, after), cast(Any, under))
    for _ in range(2 * TURN_STEPS * (1 + TURNS) + 7):
        trial.gradients(cast(Any, run), cast(Any, progress))
        laps += ["a step's"]
    assert laps == ["a step's"] * 7, "the times are those of the way that was taken"
    assert trial.overlap_ratio == pytest.approx(under.seconds)
    turns = TURN_STEPS * (1 + TURNS)
    assert (after.steps, under.steps) == ((turns + 7, turns) if slow else (turns, turns + 7))
    assert used == [False, True] * (1 + TURNS) + [not slow]


@each("model", ["resnet8", "lstm_small"])
def test_overlap_gives_the_same_update_in_any_layout(model: str) -> None:
    """Convolution weights are stored channels last, and an LSTM carries hidden state along."""
    data = "dataset._target_=own_data.text" if model == "lstm_small" else "dataset=digits"
    overrides = [f"model={model}", data, "trainer.batch_size=4", "compressor=powersgd"]
    whole = config_of(*SMALL[:1], *SMALL[2:], *overrides, "trainer.workers=2")
    trainer = whole.trainer.model_copy(update={"overlap": True, "bucket_mib": 0.1})
    overlapped = whole.model_copy(update={"trainer": trainer})
    (a, _), (b, _) = pool(2).run(train_steps, whole, 2), pool(2).run(train_steps, overlapped, 2)
    assert b.buckets > 1
    torch.testing.assert_close(b.parameters[-1], a.parameters[-1], rtol=0, atol=1e-7)


def test_micro_batches_are_exchanged_once() -> None:
    a, _ = pool(2).run(train_steps, config("qsgd", "trainer.accumulate=4"), 3)
    b, _ = pool(2).run(train_steps, config("qsgd", "trainer.accumulate=4", *BUCKETS), 3)
    assert same(a.parameters[-1], b.parameters[-1])


def test_hidden_and_exposed_exchange_are_told_apart() -> None:
    """Time that the step waits for an exchange is part of the step, hidden time is not.

    There are 40 steps because on busy cores a few steps may hide nothing.
    """
    plain, hidden = (
        pool(2).run(train_steps, config("none", *overrides), 40)[0].seconds
        for overrides in ((), ("trainer.double_buffering=true",))
    )
    assert plain["hidden_exchange"]["mean"] == 0 < plain["exchange"]["mean"]
    assert hidden["hidden_exchange"]["mean"] > 0
    parts = ("data", "forward", "backward", "encode", "exchange", "wait", "decode", "update")
    for seconds in (plain, hidden):
        assert sum(seconds[part]["mean"] for part in parts) == pytest.approx(
            seconds["step"]["mean"], rel=1e-6
        )


@pytest.mark.parametrize(
    "choice", slow_but(["qsgd", "maxnorm"], ["none", "powersgd", "qsgd", "maxnorm"])
)
def test_double_buffering_applies_the_update_of_the_step_before(choice: str) -> None:
    """The update is x_{t+1} = x_t - lr update(g_{t-1}).

    The first step changes nothing, and the second applies the update of the first.
    """
    overrides = ("schedule.kind=constant", "schedule.warmup_epochs=0")
    plain = pool(2).run(train_steps, config(choice, *overrides), 1)
    late = pool(2).run(train_steps, config(choice, *overrides, "trainer.double_buffering=true"), 4)
    assert same(late[0].parameters[1], plain[0].parameters[0])
    for x, y in pairwise(late[0].parameters):
        assert not same(x, y)
    assert same(late[0].parameters[-1], late[1].parameters[-1])
    assert late[0].sample == pytest.approx(late[1].sample)


def test_a_resumed_run_applies_what_was_under_way(tmp_path: Path) -> None:
    overrides = [
        VIRTUAL,
        "trainer.double_buffering=true",
        "compressor=powersgd",
        # The error is that of momenta, which a checkpoint keeps beside the update.
        "+compressor.momentum=0.9",
        "optimizer=sgd",
        "optimizer.momentum=0.9",
        "trainer.log_every=2",
        "trainer.error_every=2",
    ]
    run(tmp_path / "whole", *overrides, "trainer.max_steps=8", "schedule.kind=constant")
    run(
        tmp_path / "parts",
        *overrides,
        *"trainer.max_steps=8 schedule.kind=constant trainer.checkpoint_steps=4".split(),
    )
    (tmp_path / "parts" / "result.json").unlink()  # as if killed after its first checkpoint
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000008")
    resumed = run(
        tmp_path / "parts",
        *overrides,
        *"trainer.max_steps=8 schedule.kind=constant trainer.checkpoint_steps=4".split(),
    )
    assert resumed["resumed_step"] == 4
    a, b = ((tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts"))
    assert a == b


@pytest.mark.usefixtures("copied_workers")
@pytest.mark.parametrize(
    "overrides",
    [(VIRTUAL,), ("compressor=maxnorm", REAL), ("trainer.double_buffering=true", REAL)],
    ids=["virtual", "global", "double buffering"],
)
def test_where_nothing_can_overlap_auto_does_not(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    result = run(
        tmp_path, *overrides, "trainer.overlap=auto", "trainer.workers=2", "trainer.max_steps=3"
    )
    assert result["status"] == "done" and result["overlap_ratio"] is None


@pytest.mark.usefixtures("copied_workers")
def test_parameters_that_the_loss_does_not_depend_on(tmp_path: Path) -> None:
    """Their buckets are never complete: `auto` trains without overlap, and `true` is an error."""
    overrides = ["model._target_=own_models.Spare", "compressor=none", REAL, "trainer.workers=2"]
    overrides += [f"trainer.max_steps={TURN_STEPS + 2}"]
    plain = run(tmp_path / "plain", *overrides)
    tried = run(tmp_path / "auto", *overrides, "trainer.overlap=auto")
    assert tried["test"] == plain["test"] and tried["overlap_ratio"] is None
    with pytest.raises(RunFailed, match="does not depend on all parameters; type trainer.overlap="):
        run(tmp_path / "true", *overrides, "trainer.overlap=true")


@pytest.mark.slow  # its run without overlap is fast: a unit test of the replica
@pytest.mark.usefixtures("copied_workers")
def test_a_sparse_gradient_is_named_beside_a_backward_pass(tmp_path: Path) -> None:
    overrides = ["model._target_=own_models.Sparse", "+model.is_module=false", REAL]
    with pytest.raises(RunFailed, match="table.weight: a compressor takes no sparse gradients"):
        run(tmp_path, *overrides, "compressor=none", "trainer.workers=2", "trainer.overlap=true")


@pytest.mark.usefixtures("copied_workers")
def test_processes_agree_that_some_parameters_are_skipped(tmp_path: Path) -> None:
    """In the fifth step one process uses all parameters, and the other does not."""
    overrides = ["model._target_=own_models.Skipping", "compressor=none", REAL, "trainer.workers=2"]
    overrides += [f"trainer.max_steps={5 * TURN_STEPS}", "trainer.timeout_seconds=30"]
    plain = run(tmp_path / "plain", *overrides)
    tried = run(tmp_path / "auto", *overrides, "trainer.overlap=auto")
    assert tried["test"] == plain["test"] and tried["overlap_ratio"] is None


def test_runs_with_overlap_continue_those_without_but_have_names_of_their_own() -> None:
    plain, overlapped, late = (
        config("qsgd", *overrides).as_dict()
        for overrides in ((), BUCKETS, ("trainer.double_buffering=true",))
    )
    assert fingerprint(plain) == fingerprint(overlapped) != fingerprint(late)
    assert relevant_config(plain) != relevant_config(overlapped)
    assert not {"overlap", "bucket_mib", "double_buffering"} & set(
        relevant_config(plain)["trainer"]
    )


def test_a_state_in_parts_is_the_state() -> None:
    x, y, z = (torch.full((1,), value) for value in (1.0, 2.0, 3.0))
    state = State({"a": x}, {"a": x, "b": y}, State(per_worker={"b": z}))
    parts = [state.select(["a"]), state.select(["b"])]
    assert parts[0].shared == {"a": x} and not parts[1].shared
    whole = State()
    for part in parts:
        whole = whole.replace(part)
    assert [(s.shared, s.per_worker) for s in whole.layers()] == [
        (s.shared, s.per_worker) for s in state.layers()
    ]
