"""A run that continues with other workers: the mean of what is still to be sent stays the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import each, slow_but
from sentence import run
from torch import Tensor

from gcbench.core.errors import ConfigError
from gcbench.core.library.saved import replaced_shares
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.identity import identify
from gcbench.runner.records.files import RunFiles
from gcbench.runner.records.schema import Result
from gcbench.runner.records.store import read_run
from gcbench.runner.records.summary import _facts
from gcbench.runner.train.checkpoints import Checkpoints
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.snapshot import merge_workers

LENGTH = [
    *"trainer.launcher=virtual trainer.checkpoint_steps=4 trainer.log_every=3".split(),
    *"trainer.eval_every=null trainer.keep_weights=false".split(),
]
SIX, FOUR_WORKERS = "trainer.max_steps=6", "trainer.workers=4"
RESIDUAL = ["compressor=qsgd", "min_size=0", "error_feedback=true", "alpha=0.2", "beta=0.9"]


@each("before", [1, 2, 4, 6])
@each("now", [1, 2, 3, 4, 12])
def test_the_pending_update_stays(before: int, now: int) -> None:
    drawn = torch.Generator().manual_seed(before)
    rows = torch.randn(before, 5, generator=drawn, dtype=torch.float64)
    contents: list[dict[str, Any]] = [
        {"state": [{"w": row}, {}], "late": {"wanted": row}, "carry": row, "meter": []}
        | {"loss": float(row[0])}
        for row in rows
    ]
    taken = []
    for worker in range(now):
        shares = replaced_shares(worker, now, before)
        assert sum(shares.values()) == pytest.approx(1)
        taken.append(merge_workers([contents[k] for k in shares], list(shares.values())))
    after = torch.stack([content["state"][0]["w"] for content in taken])
    late = torch.stack([content["late"]["wanted"] for content in taken])
    torch.testing.assert_close(after.mean(0), rows.mean(0))
    torch.testing.assert_close(late.mean(0), rows.mean(0))
    mean_loss = sum(content["loss"] for content in taken) / now
    assert mean_loss == pytest.approx(float(rows[:, 0].mean()))
    assert all(content["carry"] is None for content in taken)
    if now % before == 0:
        assert torch.equal(after, rows.repeat_interleave(now // before, dim=0))


def test_workers_replace_their_neighbors() -> None:
    assert [replaced_shares(i, 2, 4) for i in range(2)] == [{0: 0.5, 1: 0.5}, {2: 0.5, 3: 0.5}]
    assert [replaced_shares(i, 4, 2) for i in range(4)] == [{0: 1.0}, {0: 1.0}, {1: 1.0}, {1: 1.0}]
    assert replaced_shares(1, 2, 3) == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}


def residuals(folder: Path, step: int) -> list[dict[str, Tensor]]:
    paths = sorted((folder / "checkpoints" / f"step-{step:08d}").glob("worker-*.pt"))
    return [torch.load(path, weights_only=True)["state"][0] for path in paths]


def go_on(folder: Path, overrides: list[str]) -> dict[str, Any]:
    (folder / "result.json").unlink()
    return run(folder, *overrides)


@pytest.mark.parametrize("gpus", slow_but([2], [1, 2, 8]))
def test_a_run_with_residuals_goes_on_when_they_may_be_merged(
    tmp_path: Path, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = [*RESIDUAL, *LENGTH, SIX]
    first = run(tmp_path, *overrides, FOUR_WORKERS)
    before = residuals(tmp_path, 4)
    says = f"by 4 workers, this run has {gpus}, .* type trainer.workers=4, or resume.workers=merge"
    with pytest.raises(ConfigError, match=says):
        go_on(tmp_path, [*overrides, f"trainer.workers={gpus}"])
    (tmp_path / "result.json").write_text("{}")
    seen: list[dict[str, Tensor]] = []
    load = Checkpoints.load

    def watched(self: Checkpoints, path: Path, run: Run, progress: Progress) -> None:
        load(self, path, run, progress)
        seen.append({k: rows.clone() for k, rows in progress.kept.state.per_worker.items()})

    monkeypatch.setattr(Checkpoints, "load", watched)
    result = go_on(tmp_path, [*overrides, f"trainer.workers={gpus}", "resume.workers=merge"])
    (after,) = seen
    for name, rows in after.items():
        assert len(rows) == gpus and rows.any()
        mean = torch.stack([residual[name] for residual in before]).mean(0)
        torch.testing.assert_close(rows.mean(0), mean)
    assert result["steps"] == 6 and result["workers"] == gpus
    # A worker sends as many bits per step as before.
    assert result["bits_sent"]["per_step"] == first["bits_sent"]["per_step"]
    lines = RunFiles(tmp_path).read_metrics()
    assert [line["step"] for line in lines if line["event"] == "train"] == [3, 6]


def test_bits_on_the_wire_are_compared_with_those_of_as_many_workers(tmp_path: Path) -> None:
    """Four workers send 3/2 of a gradient in each of four steps, and two send one in two."""
    overrides = ["compressor=none", *LENGTH, "trainer.max_steps=6"]
    run(tmp_path, *overrides, "trainer.workers=4")
    wire = go_on(tmp_path, [*overrides, "trainer.workers=2"])["bits_wire"]
    gradient = 32 * json.loads((tmp_path / "result.json").read_text())["parameters"]
    assert wire["dense_per_step"] == pytest.approx(gradient * (4 * 3 / 2 + 2) / 6)
    assert wire["ratio"] == pytest.approx(1, rel=1e-3)


def test_a_run_without_residuals_goes_on_with_any_number(tmp_path: Path) -> None:
    """PowerSGD's factors are shared, so that workers have no state of their own."""
    overrides = ["compressor=powersgd", "error_feedback=false", *LENGTH, "trainer.max_steps=6"]
    run(tmp_path, *overrides, "trainer.workers=2")
    result = go_on(tmp_path, [*overrides, "trainer.workers=3"])
    assert result["steps"] == 6 and result["workers"] == 3
    assert result["resharded"] == [{"from_step": 4, "workers": 2}]
    assert result["identity"] != identify(result["config"]), "no run of three workers alone"
    assert ("workers", "2 up to step 4") in _facts(Result.parse(result))
    assert read_run(tmp_path).flat["resharded_from_step"] == [[4, 2]]


MERGED = [FOUR_WORKERS, "resume.workers=merge"]
# What a run is, the workers that continue it, and the sentence that refuses them.
REFUSED: dict[str, tuple[list[str], list[str], str]] = {
    "shards": (
        ["compressor=scaled_sign", "exchange=scatter_coded", SIX],
        MERGED,
        "a shard, whose size depends on .*; type trainer.workers=2 or resume=never",
    ),
    "codes": (
        ["compressor=loco", SIX],
        MERGED,
        "remembers codes, which have no mean .*; type trainer.workers=2 or",
    ),
    "another end": (
        ["compressor=none", "trainer.epochs=0.25", FOUR_WORKERS],
        ["trainer.workers=2"],
        "an epoch of 4 workers has .* steps and one of 2 has .*; type trainer.workers=4",
    ),
    "over": (  # at its checkpoint after 20 of 22 steps
        ["compressor=none", "trainer.epochs=0.5"],
        [FOUR_WORKERS],
        "after 11 steps with 4 workers; type trainer.max_steps=20 or",
    ),
    "an epoch of SVRG": (
        [
            "compressor=none",
            *"model=linear estimator=svrg optimizer.momentum=0".split(),
            "schedule=constant",
            SIX,
        ],
        [FOUR_WORKERS],
        "so that estimator.epoch_steps=null would mean something else; type trainer.workers=2",
    ),
    # With half as many workers, the rate of a run past its warm-up would fall back into it.
    "a warm-up": (
        ["compressor=none", "schedule=constant", "schedule.warmup_epochs=0.5", SIX, FOUR_WORKERS],
        ["trainer.workers=2"],
        "so that schedule.warmup_epochs=0.5 would .*; type trainer.workers=4. .* started with "
        "schedule.warmup_epochs=0 may",
    ),
    "rates by epochs": (
        ["compressor=none", "schedule=cosine", "schedule.interval=epoch", SIX, FOUR_WORKERS],
        ["trainer.workers=2"],
        "so that schedule.interval=epoch would .*; type trainer.workers=4. .* started with "
        "schedule.interval=step may",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_workers_that_would_compute_something_else_are_refused(
    tmp_path: Path, case: str
) -> None:
    begun, continued, says = REFUSED[case]
    assert run(tmp_path, *LENGTH, *begun)["steps"] > 4, "it has a checkpoint"
    with pytest.raises(ConfigError, match=says):
        go_on(tmp_path, [*LENGTH, *begun, *continued])


def test_a_refused_extension_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    overrides = ["compressor=none", "model=linear", *LENGTH, "trainer.keep_weights=true"]
    done = run(tmp_path, *overrides)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="this run ends after .* steps with 4 workers; type"):
        run(tmp_path, *overrides, "trainer.workers=4", "trainer.epochs=1.5")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert run(tmp_path, *overrides) == done


def test_an_extension_by_other_workers_is_no_run_of_them_alone(tmp_path: Path) -> None:
    overrides = ["compressor=none", "model=linear", *LENGTH, "trainer.keep_weights=true"]
    run(tmp_path, *overrides, "trainer.max_steps=12")
    result = run(tmp_path, *overrides, "trainer.max_steps=24", "trainer.workers=4")
    assert result["extended"][0]["from_step"] == 12
    assert result["resharded"] == [{"from_step": 12, "workers": 2}]


def test_a_start_that_kept_no_step_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["compressor=none", "model=linear", *LENGTH, "trainer.max_steps=6"]
    run(tmp_path, *overrides)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "load", fail)
        with pytest.raises(RunFailed, match="killed"):
            go_on(tmp_path, [*overrides, "trainer.workers=4"])
    result = go_on(tmp_path, overrides)
    assert result["resharded"] == [] and result["identity"] == identify(result["config"])


def fail(*_: Any) -> None:
    raise RuntimeError("killed")


def test_bits_of_merged_workers_are_their_mean() -> None:
    """With codes of variable length, workers have sent different numbers of bits."""
    kind = ("all", "ragged_gather", 2)
    empty = {"state": [{}], "late": None, "carry": None, "loss": 0.0}
    contents = [{**empty, "meter": [(kind, (3, sent, 10 * sent))]} for sent in (100, 300)]
    assert merge_workers(contents, [0.5, 0.5])["meter"] == [(kind, (3, 200, 2000))]
    assert merge_workers(contents, [0.25, 0.75])["meter"] == [(kind, (3, 250, 2500))]
