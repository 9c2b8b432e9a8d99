"""Settings of the papers, and where rows deviate from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gcbench.papers.tables import build as reports
from gcbench.papers.tables.build import Setting, build, groups_of, list_deviations
from gcbench.papers.tables.configs import compose, read_key
from gcbench.papers.tables.tables import read_table
from gcbench.runner.config.choices import experiments

BATCH: dict[str, Any] = {"rows": ["orq/table5"], "key": "trainer.batch_size"}


def find_contradictions() -> Iterator[str]:
    """Yield a sentence for each stated setting that the rows contradict or that is incomplete."""
    for setting in reports.read_settings():
        rows = [experiment for experiment in experiments() if setting.covers(experiment)]
        if not rows:
            yield f"{', '.join(setting.rows)}: there are no such rows"
        if setting.deviates and (setting.ours == setting.paper or not setting.why):
            yield f"{setting.key} of {setting.rows[0]}: ours is the paper's, or has no reason"
        for experiment in rows if setting.key else ():
            value = read_key(compose(experiment).config, str(setting.key))
            stated = setting.ours if setting.deviates else setting.paper
            if value != stated:
                yield f"{experiment}: {setting.key} is {value}, and {stated} is stated"


def test_what_is_stated_is_what_the_rows_resolve_to() -> None:
    assert list(find_contradictions()) == []


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({**BATCH, "paper": 64}, None),
        ({**BATCH, "paper": 256, "ours": 64, "why": "a worker"}, None),
        ({**BATCH, "paper": 256}, "trainer.batch_size is 64, and 256 is stated"),
        ({**BATCH, "paper": 64, "ours": 32, "why": "smaller"}, "is 64, and 32 is stated"),
        ({**BATCH, "paper": 64, "ours": 64, "why": "none"}, "ours is the paper's"),
        ({**BATCH, "paper": 256, "ours": 64}, "has no reason"),
        ({"rows": ["orq/table9"], "paper": "much"}, "there are no such rows"),
    ],
)
def test_what_contradicts_the_rows_is_named(
    monkeypatch: pytest.MonkeyPatch, setting: dict[str, Any], sentence: str | None
) -> None:
    monkeypatch.setattr(reports, "read_settings", lambda: [Setting(**setting)])
    found = list(find_contradictions())
    assert found == [] if sentence is None else sentence in found[0]


def test_deviations_are_listed_and_stand_below_their_table() -> None:
    table = read_table("orq/table5")
    listed = list_deviations([table])
    clipped = next(row for row in listed.rows if "compressor.clip_sigma" in row)
    assert clipped[0] == "orq/table5" and "QSGD-5" in clipped[1] and clipped[3:5] == ["None", "2.5"]
    document = build(table, groups_of(table, [], "paper"), "paper")
    notes = [line for section in document.sections for line in section.lines]
    assert any("compressor.clip_sigma: the paper has nothing, ours is 2.5" in n for n in notes)
