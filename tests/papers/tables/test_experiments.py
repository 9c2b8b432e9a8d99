"""What the rows of the tables run, and the tables that show them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from nightly import each

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import FACTS
from gcbench.papers.claims.claim import read_claims
from gcbench.papers.tables.configs import compose, compose_row, read_key
from gcbench.papers.tables.rates import RATE
from gcbench.papers.tables.tables import TableRow, read_table, table_names
from gcbench.papers.track.track_verdicts import ENTRY
from gcbench.runner.config.choices import experiments, node_of, runs_in
from gcbench.runner.config.keys import method_keys
from gcbench.runner.identity import ABSENT
from gcbench.runner.settings.groups import RunSettings

CONF = conf_directory()
NAMES = experiments()
FOLDERS = sorted({name.rpartition("/")[0] for name in NAMES})
PAPERS = sorted({name.partition("/")[0] for name in NAMES})
TABLES = {name: read_table(name) for name in table_names()}
ROWS = {str(row.path): row for table in TABLES.values() for row in table.rows if row.experiment}
SHARED = {*yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))}
SHARED |= {*RunSettings.model_fields}


@pytest.fixture(scope="module")
def knobs() -> dict[str, set[str]]:
    """Return the keys that each compressor's file adds to a configuration."""
    return {choice: set(keys) for choice, keys in method_keys().items()}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_row_adds_no_key_of_its_own(paper: str, knobs: dict[str, set[str]]) -> None:
    """Hydra accepts a key that nothing reads, so that nobody would notice a mistyped one."""
    for name in (name for name in NAMES if name.startswith(f"{paper}/")):
        config = compose(name).config
        choices = config["choices"]
        known = {*SHARED, *choices, *knobs[choices["compressor"]]}
        assert config["experiment"] == name
        assert set(config) - {"choices", "experiment", "knobs", *FACTS} <= known, name


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_row_says_stands(folder: str) -> None:
    """A group that is chosen after a key would silently override it."""
    for name, runs in runs_in(CONF / "table" / f"{folder}.yaml").items():
        config = compose(f"{folder}/{name}").config
        said = {key: value for key, value in runs.items() if key not in ("like", "settings")}
        for key, value in said.items():
            stands = config["choices"] if key in config["choices"] else config
            assert read_key(stands, key) == value, (name, key)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("- {runs: {bits: 2}, title: A}", "name=None: a row with runs: has a name"),
        ("- {name: a, runs: qsgd, title: A}", "as in {name: rank_2, runs: {compressor: powersgd"),
        ("- {name: a, runs: {}}\n- {name: a, runs: {}}", "two rows with runs: are called a"),
    ],
)
def test_a_row_that_cannot_be_run_is_refused(tmp_path: Path, rows: str, says: str) -> None:
    file = tmp_path / "table1.yaml"
    file.write_text(f"rows:\n{rows}\n")
    with pytest.raises(ConfigError) as error:
        runs_in(file)
    assert says in str(error.value) and str(file) in str(error.value)


def test_a_row_is_made_of_another_of_settings_and_of_choices(tmp_path: Path) -> None:
    (tmp_path / "table1.yaml").write_text(
        "settings: [a, b]\nrows:\n"
        "- {name: usual, runs: {compressor: qsgd, bits: 2, optimizer.lr: 0.5}}\n"
        "- {name: own, runs: {settings: [c]}}\n"
        "- {name: like, runs: {like: p/t/r, model: mlp}, title: Shown}\n"
        "- {experiment: p/t/r, title: Elsewhere}\n"
    )
    made = {name: node_of(runs) for name, runs in runs_in(tmp_path / "table1.yaml").items()}
    assert made == {
        "usual": {
            "defaults": ["/setting/a", "/setting/b", {"override /compressor": "qsgd"}, "_self_"],
            "bits": 2,
            "optimizer": {"lr": 0.5},
        },
        "own": {"defaults": ["/setting/c", "_self_"]},
        "like": {"defaults": ["/experiment/p/t/r", {"override /model": "mlp"}, "_self_"]},
    }


def test_rows_type_knobs_that_their_experiments_have() -> None:
    for row in ROWS.values():
        config = compose(str(row.experiment)).config
        assert all(read_key(config, key) != ABSENT for key in row.settings), row.path


def test_data_that_not_everybody_has_are_needed() -> None:
    for config in (compose(name).config for name in NAMES):
        rare = config["choices"]["dataset"] in ("imagenet", "year", "gisette")
        assert config["needs"] or not rare, config["experiment"]


@each("name", TABLES)
def test_a_table_file_finds_its_rows_and_measures(name: str) -> None:
    table = TABLES[name]  # reading it refuses unknown keys, measures and columns
    assert set(table.experiments) <= set(NAMES)
    if not table.study:
        assert all(row.experiment or row.published for row in table.rows), (
            "a row that nobody runs has a published number"
        )
    assert table.rows or table.study


def test_several_tables_have_each_shared_note() -> None:
    shared = yaml.safe_load((CONF / "table/notes.yaml").read_text(encoding="utf-8"))
    for paper, notes in shared.items():
        listed = Counter(
            note for name, table in TABLES.items() if name.startswith(paper) for note in table.notes
        )
        assert all(listed[text] > 1 for text in notes.values()), paper


def test_a_name_stands_for_the_same_run_in_every_table() -> None:
    for table in TABLES.values():
        for row in table.rows:
            if row.experiment:
                same = ROWS[str(row.path)]
                assert (row.experiment, row.overrides) == (same.experiment, same.overrides), (
                    row.path
                )


def test_rows_of_one_experiment_differ_in_the_values_of_the_same_keys() -> None:
    """A row without a key that another row sets would count the other's runs as its own.

    Those of another rate are its tries.
    """
    keys: dict[str, set[str]] = {}
    overrides: dict[str, set[tuple[str, ...]]] = {}
    for row in ROWS.values():
        set_here = set(row.settings) - {RATE}
        assert keys.setdefault(str(row.experiment), set_here) == set_here, row
        seen = overrides.setdefault(str(row.experiment), set())
        assert row.overrides not in seen, row.path
        seen.add(row.overrides)


@each("budget", ["paper", "cpu", "smoke"])
def test_a_budget_bounds_what_rows_type(budget: str) -> None:
    """No budget changes a typed override, so a row's workers are bounded before they are typed."""
    row = ROWS["powersgd/figure3/rank_2_gloo_workers_16"]
    expected = {"paper": 16, "cpu": 4, "smoke": 2}[budget]
    config = compose_row(row, budget).config
    assert config["trainer"]["workers"] == expected
    assert config["trainer"]["backend"] == "gloo"
    alone = TableRow("", experiment=row.experiment, workers=1)
    assert compose_row(alone, budget).config["trainer"]["workers"] == 1


def test_rows_of_claims_stand_in_tables() -> None:
    """Only runs of tables are kept."""
    asked = {path for claim in read_claims() for part in claim.rows for path in part.paths}
    assert asked - set(ROWS) == set()


ORQ = [name for name in NAMES if name.startswith("orq/")]


@each("name", ORQ)
def test_buckets_of_orq_run_through_the_whole_gradient(name: str) -> None:
    """Section 5: "evenly divides the whole gradient into buckets of the same length"."""
    assert compose(name).config.get("bucket_scope", "gradient") == "gradient"


@each("name", [name for name in ORQ if "table4" in name])
def test_clipped_rows_of_orq_warm_up_from_a_tenth_of_the_rate(name: str) -> None:
    """Section 5: with clipping, "a linear warm-up schedule starting from base learning rate/10"."""
    schedule = compose(name).config["schedule"]
    warmup = (5, 0.1) if re.search("(orq|bingrad).*_clip", name) else (0, None)
    assert (schedule["warmup_epochs"], schedule["warmup_start"]) == warmup


def test_every_experiment_stands_in_a_table() -> None:
    shown = {experiment for table in TABLES.values() for experiment in table.experiments}
    assert set(NAMES) == shown | {f"modern/track/{ENTRY}"}


@each("group", ["setting", "table"])
def test_what_no_paper_gives_says_how_it_was_chosen(group: str) -> None:
    without = [
        f"{file.relative_to(CONF)}: {line.strip()}"
        for file in sorted((CONF / group).rglob("*.yaml"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if "paper: not given" in line
        and not re.search(r"[A-Za-z]{2}", line.partition("#")[2].replace("paper: not given", ""))
    ]
    assert without == []


def test_files_are_global_and_say_what_they_are() -> None:
    for file in sorted((CONF / "setting").rglob("*.yaml")):
        first, second, *_ = file.read_text(encoding="utf-8").splitlines()
        assert first == "# @package _global_", file
        assert second.startswith("# "), file
