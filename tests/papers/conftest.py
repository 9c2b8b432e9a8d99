"""Gradients of a small network, and a small table with a working directory for results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from gcbench.papers.claims.claims_report import claims
from gcbench.papers.tables import report as reports
from gcbench.papers.tables import tables
from gcbench.runner.data.digits import digits
from gcbench.runner.models.mlp import MLP
from gcbench.runner.report.command import runs

RECORDED = (0, 10, 60)


@pytest.fixture(scope="session")
def real_gradients() -> dict[int, Tensor]:
    """Return the gradients `[2, n]` of two batches of digits, by training step.

    The first are those of the initial network, the last those of one that has learned.
    """
    torch.manual_seed(0)
    images, labels = digits().train
    model, found = MLP((1, 8, 8), 10, (256, 256)), {}
    for step in range(max(RECORDED) + 1):
        rows = []
        for _ in range(2):
            batch = torch.randint(len(labels), (32,))
            loss = cross_entropy(model(images[batch] / 16 - 0.3), labels[batch])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            rows.append(torch.cat([g.flatten() for g in gradient]))
        if step in RECORDED:
            found[step] = torch.stack(rows)
        with torch.no_grad():
            for p, g in zip(
                model.parameters(),
                torch.stack(rows).mean(0).split([p.numel() for p in model.parameters()]),
                strict=True,
            ):
                p -= 0.3 * g.view_as(p)
    assert loss.item() < 1, "it learns"
    return found


TABLE = """
title: "A small table: 100 % of it"
source: somebody, table 1
spread: range
seeds: 3
notes: [mind the gap]
columns:
  accuracy: {title: Test accuracy, unit: "%", measure: accuracy, better: higher}
  data:
    {title: Data per epoch, unit: MiB, measure: data_mib_per_epoch, steps_per_epoch: 24,
     budget: bits, digits: 3}
  time: {title: Time per batch, unit: ms, measure: step_milliseconds, better: lower}
rows:
  - {experiment: powersgd/table4/sgd, title: No compression,
     published: {accuracy: 94.3, data: 0.1, time: 312}}
  - {experiment: powersgd/table4/rank_7, title: Rank_7, group: medium,
     published: {accuracy: 94.6, time: 285}, note: a note}
  - {title: Projected, published: {accuracy: 99.0}}
"""

STUDY = """
title: A study
source: somebody, table 2
study: times
notes: [a slip]
columns:
  time: {title: Time, unit: ms, better: lower}
rows:
  - {title: AlexNet, published: {time: 195}}
  - {title: VGG, published: {time: 460}}
"""

Report = Callable[..., str]
OTHERS = {"runs": runs, "tables": reports.tables, "claims": claims}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "table" / "small"
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text(TABLE)
    (folder / "times.yaml").write_text(STUDY)
    monkeypatch.setattr(tables, "table_directory", lambda: tmp_path / "table")
    work = tmp_path / "work"
    (work / "outputs").mkdir(parents=True)
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Report:
    """Return a function of the arguments of `gcbench report` that returns what it prints.

    A first argument of `runs` stands for `gcbench runs`, and that of OTHERS for `gcbench papers`.
    """

    def run(*arguments: str) -> str:
        first = next(iter(arguments), "")
        OTHERS.get(first, reports.report)(arguments[first in OTHERS :])
        return capsys.readouterr().out

    return run
