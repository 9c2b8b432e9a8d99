"""The commands under a table make the runs that it reports."""

from __future__ import annotations

from copy import deepcopy

from results import plain_result

from gcbench.papers.tables.build import build, groups_of
from gcbench.papers.tables.configs import compose
from gcbench.papers.tables.tables import read_table
from gcbench.runner.records.store import RecordedRun

SGD = "powersgd/table3_cifar10/sgd"
BF16 = "trainer.precision=bf16"


def made(*overrides: str) -> RecordedRun:
    composition = compose(SGD, "cpu", (BF16, *overrides))
    config = deepcopy(composition.config) | {"seed": 1}
    choices = config.pop("choices")
    result = plain_result(
        config=config,
        choices=choices,
        experiment=SGD,
        identity=composition.identity,
        test={"accuracy": 84.0},
    )
    return RecordedRun(result, "x", list)


def test_those_of_tried_rates_and_of_other_runs_have_what_was_typed_with_the_table() -> None:
    runs = [made(), made("optimizer.lr=0.25"), made("trainer.batch_size=64")]
    table = read_table("powersgd/table3_cifar10")
    document = build(table, groups_of(table, runs, "cpu", (BF16,)), "cpu", (BF16,))
    (commands,) = [s.lines for s in document.sections if s.title.startswith("Commands")]
    assert len(commands) == 3 and all(BF16 in command for command in commands)
