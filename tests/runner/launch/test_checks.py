"""Checks: the parent refuses mistakes before any worker starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence import config_of, run

from gcbench.core.errors import ConfigError
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.launch import memory
from gcbench.runner.launch.instantiate import make
from gcbench.runner.launch.plan import Machine, make_plan
from gcbench.runner.records.schema import Result
from gcbench.runner.records.summary import _facts


@pytest.mark.parametrize("name", ["Open", "Real"])
def test_a_model_of_the_users_gets_shape_and_outputs_from_the_data(
    tmp_path: Path, name: str
) -> None:
    result = run(
        tmp_path,
        f"model._target_=own_models.{name}",
        "trainer.launcher=virtual",
        "trainer.max_steps=1",
    )
    assert result["parameters"] == {"Open": 64 * 5 + 5 + 5 * 10 + 10, "Real": 64 * 10 + 10}[name]


def test_what_is_typed_for_a_model_of_the_users_stays(tmp_path: Path) -> None:
    overrides = [
        *"model._target_=own_models.Open +model.outputs=12 trainer.launcher=virtual".split(),
        "trainer.max_steps=1",
    ]
    assert run(tmp_path, *overrides)["parameters"] == 64 * 5 + 5 + 5 * 12 + 12


@pytest.mark.parametrize(
    ("wrong", "beside", "says"),
    [
        ("update", "", "the compressor returned no tensor for 3.bias"),
        ("name", "", "the compressor returned a tensor for extra, which has no gradient"),
        (
            "shape",
            "",
            "the compressor returned an update of 3.bias with the shape (2, 10), not (1,",
        ),
        ("update", "+compressor.min_size=12", "the compressor returned no tensor for"),
        (
            "sent",
            "+compressor.error_feedback=true +compressor.alpha=0.5",
            "the compressor returned no tensor for",
        ),
    ],
)
def test_a_method_that_breaks_its_contract_is_told_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], wrong: str, beside: str, says: str
) -> None:
    typed = "compressor=none compressor.method._target_=own_models.Forgetful trainer.max_steps=2"
    method = ("~compressor.method.dtype", f"+compressor.method.wrong={wrong}")
    with pytest.raises(RunFailed) as error:
        run(tmp_path, *typed.split(), *method, *beside.split(), "trainer.launcher=virtual")
    assert says in str(error.value) and "gcbench check" in str(error.value)
    assert "Traceback" not in capfd.readouterr().err


def test_virtual_copies_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 19)
    says = (
        r"trainer.workers=64: gradients of .* need about .* GiB are free; type trainer.workers=\d+"
    )
    with pytest.raises(ConfigError, match=says):
        run(tmp_path, "trainer.launcher=virtual", "trainer.workers=64")


@pytest.mark.parametrize(
    ("overrides", "workers", "copies"),
    [
        ("compressor=none", 1, 6.9),
        ("compressor=none", 4, 9.9),
        ("compressor=qsgd", 1, 15.9),
        ("compressor=qsgd", 8, 30.9),
        ("compressor=qsgd error_feedback=true", 8, 69.5),
        ("compressor=orq", 4, 22.1),
        ("compressor=orq", 8, 34.0),
        ("compressor=top_k", 8, 60.1),
        ("compressor=powersgd", 8, 33.4),
        ("compressor=maxnorm", 8, 44.4),
        ("compressor=signum", 8, 48.8),
        ("compressor=onebit", 8, 61.5),
        ("compressor=none estimator=local_steps", 1, 6.7),
        ("compressor=none estimator=local_steps", 8, 29.4),
        ("compressor=none estimator=local_steps optimizer=adamw", 8, 36.1),
        ("compressor=top_k estimator=local_steps optimizer=adamw", 8, 90.5),
    ],
)
def test_memory_is_what_was_measured_or_more(
    monkeypatch: pytest.MonkeyPatch, overrides: str, workers: int, copies: float
) -> None:
    """`copies` is the measured growth of a process's peak memory, in sizes of the parameters."""
    config = config_of(
        *overrides.split(),
        f"trainer.workers={workers}",
        "trainer.launcher=virtual",
        "trainer.device=cpu",
    )
    plan, compressor = make_plan(config, Machine.detect()), make(config.compressor, "compressor")
    estimator = make(config.estimator.as_dict(), "estimator")
    needed = memory.needed_bytes(plan, 1_000_000, compressor, estimator, workers) / 4e6
    assert 0.9 * copies <= needed <= 2 * copies
    monkeypatch.setattr(memory, "free_bytes", lambda: int(4e6 * needed) - 1)
    with pytest.raises(
        ConfigError, match=r"type trainer.workers=\d" if workers > 1 else "choose a smaller model="
    ):
        memory.check_memory(plan, 1_000_000, compressor, estimator)


def test_text_cannot_be_cut_into_micro_batches(tmp_path: Path) -> None:
    folder = tmp_path / "wikitext-2"
    folder.mkdir()
    for name in ("train", "valid", "test"):
        (folder / f"{name}.txt").write_text(" ".join(["a", "b", "c"] * 400) + "\n")
    with pytest.raises(ConfigError, match="trainer.accumulate=2: model=lstm carries hidden state"):
        run(
            tmp_path / "out",
            *"model=lstm model.width=8 dataset=wikitext2".split(),
            f"data.root={tmp_path}",
            "trainer.batch_size=2",
            "trainer.accumulate=2",
        )


SAVES_LITTLE = "(matrices of which factors save too little for min_ratio=1 are sent whole; type a "


@pytest.mark.parametrize(
    ("typed", "share", "says"),
    [
        ("", 0, "(tensors of fewer than 10,000 values are sent whole; type min_size="),
        ("min_size=17", 1184 / 1210, None),
        ("min_size=0", 1, None),
        ("compressor=none", 0, None),
        ("compressor=fp16", 1, None),
        ("compressor=powersgd", 1184 / 1210, None),
        ("compressor=powersgd rank=64", 0, SAVES_LITTLE),
        ("compressor=qsgd_by_kind min_size=200", 1024 / 1210, None),
        ("min_size=0 dense_steps=1", 0.5, None),
        ("min_size=0 dense_steps=9", 0, "(the first 9 steps send all whole; type dense_"),
        (
            "compressor=onebit_adam optimizer=frozen_adam optimizer.freeze_steps=9",
            0,
            "(the first 9 steps send all whole)",
        ),
        (
            "compressor=scaled_sign error_feedback=true estimator=zero_one_adam "
            "optimizer=frozen_adam",
            0,
            None,
        ),
        (
            "min_size=17 dense_steps=2",
            0,
            "type min_size=0, and the first 2 steps send all whole; type dense_steps=0)",
        ),
    ],
)
def test_a_run_says_how_much_of_the_gradient_it_compresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, typed: str, share: float, says: str | None
) -> None:
    result = run(tmp_path, "trainer.launcher=virtual", "trainer.max_steps=2", *typed.split())
    assert result["compressed_share"] == pytest.approx(share)
    facts = dict(_facts(Result.parse(result)))
    assert facts["compressed"].startswith(f"{100 * share:.3g} % of the gradient's values")
    warned = [record.message for record in caplog.records if "compressed" in record.message]
    assert len(warned) == (says is not None)
    assert says is None or (says in warned[0] and says in facts["compressed"])


def test_experts_of_a_run_are_matrices_and_a_1d_convolution_is_one(tmp_path: Path) -> None:
    """The bits are those of `gcbench.compress` (tests/library)."""
    keys = ["trainer.launcher=virtual", "trainer.max_steps=2", "compressor=powersgd", "rank=1"]
    result = run(tmp_path, *keys, "model._target_=own_models.Mixture")
    floats = (6 + 4 * 5) + 3 * (8 + 10) + (10 + 46) + 5
    assert result["bits_sent"]["per_step"] == 32 * floats
    whole = 6 * 4 * 5 + 3 * 8 * 10 + 10 * 46
    assert result["compressed_share"] == pytest.approx(whole / (whole + 5))


def test_a_run_says_that_it_sends_more_than_fp32(tmp_path: Path) -> None:
    """Factors of rank 16 of 64 x 16 and of rank 10 of 16 x 10 are larger than these matrices."""
    keys = ["trainer.launcher=virtual", "trainer.max_steps=2", "compressor=powersgd", "rank=64"]
    larger = dict(_facts(Result.parse(run(tmp_path, *keys, "min_ratio=0"))))
    assert larger["compressed"].startswith("97.9 % of")
    floats = 16 * (64 + 16) + 10 * (16 + 10) + 26
    assert larger["sent"].endswith(
        f", {floats / 1210:.4g}x as many as fp32 gradients, {2 * floats / 1210:.4g}x as many as "
        "bf16; type min_ratio=1"
    )


@pytest.mark.parametrize(
    ("warmup", "budget", "warned"),
    [("0.2", "paper", 1), ("0.01", "paper", 0), ("9", "smoke", 0), ("0.2", "cpu", 1)],
)
def test_a_run_that_ends_in_its_warmup_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, warmup: str, budget: str, warned: int
) -> None:
    length = "trainer.epochs=0.05" if budget == "cpu" else "trainer.max_steps=2"
    steps = ["trainer.launcher=virtual", length, f"budget={budget}"]
    run(tmp_path, *steps, f"schedule.warmup_epochs={warmup}")
    said = [r.message for r in caplog.records if "before the learning rate reaches" in r.message]
    assert len(said) == warned


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("compressor=dgc min_size=0", "type optimizer.momentum=0"),
        ("compressor=dgc min_size=0 optimizer.nesterov=true",
         "type optimizer.momentum=0 optimizer.nesterov=false"),
        ("compressor=dgc min_size=0 optimizer.momentum=0", None),
        ("compressor=qsgd", None),
    ],
)  # fmt: skip
def test_two_momenta_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, typed: str, says: str | None
) -> None:
    run(tmp_path, "trainer.launcher=virtual", "budget=smoke", *typed.split())
    said = [r.message for r in caplog.records if "a momentum of its own" in r.message]
    assert [message.partition("; ")[2] for message in said] == ([says] if says else [])
