"""Experiment and table files, as files: every one is read, and one row of each folder is composed as a user would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pytest
import yaml
from sentence import compose

from gcbench import settings
from gcbench.config import conf_directory, resolve
from gcbench.report.tables import read_table, table_names

CONF = conf_directory()
SCHEMAS = {
    "trainer": settings.TrainerSettings,
    "optimizer": settings.OptimizerSettings,
    "schedule": settings.ScheduleSettings,
}
NAMES = sorted(
    str(file.relative_to(CONF / "experiment").with_suffix(""))
    for file in CONF.glob("experiment/*/*/*.yaml")
)
FOLDERS = sorted({name.rpartition("/")[0] for name in NAMES})


@dataclass(frozen=True)
class Row:
    """What Hydra makes of a row's file and of the settings that it names, without Hydra, which takes 0.2 s a row."""

    choices: dict[str, str]
    values: dict[str, Any]  # by dotted key


@cache
def loaded(path: str) -> tuple[list[Any], dict[str, Any]]:
    """The defaults of a file in conf/, and the rest of it."""
    text = (CONF / f"{path}.yaml").read_text(encoding="utf-8")
    node = yaml.safe_load(text) or {}
    return node.pop("defaults", []), node


def files_of(path: str) -> Iterator[str]:
    """A row and its settings, the stronger later."""
    for entry in loaded(path)[0]:
        if isinstance(entry, str) and entry.startswith("/"):
            yield from files_of(entry.lstrip("/"))
    yield path


@cache
def row_of(name: str) -> Row:
    entries = [
        pair for entry in loaded("config")[0] if isinstance(entry, dict) for pair in entry.items()
    ]
    choices = {group: choice for group, choice in entries if not group.startswith("override ")}
    values: dict[str, Any] = {}
    for path in files_of(f"experiment/{name}"):
        entries, node = loaded(path)
        for entry in entries:
            if isinstance(entry, dict):
                ((key, choice),) = entry.items()
                assert key.startswith("override /"), f"{path}: {key}"
                choices[key.removeprefix("override /")] = choice
        values |= dict(leaves(node))
    return Row(choices, values)


def leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache
def keys_of(group: str, choice: str) -> frozenset[str]:
    """What a chosen file brings to the composition."""
    keys = {key for key, _ in leaves(loaded(f"{group}/{choice}")[1])}
    if group != "compressor":
        keys = {f"{group}.{key}" for key in keys}
    if group in SCHEMAS:
        keys |= {f"{group}.{field.name}" for field in fields(SCHEMAS[group])}
    return frozenset(keys)


@pytest.mark.parametrize("name", NAMES)
def test_its_choices_exist_and_it_adds_no_key_of_its_own(name: str) -> None:
    """Hydra would take a key that no part reads, and nobody would notice."""
    row = row_of(name)
    known = {key for key, _ in leaves(loaded("config")[1])}
    for group, choice in row.choices.items():
        assert (CONF / group / f"{choice}.yaml").is_file(), f"{group}: {choice}"
        known |= keys_of(group, choice)
    assert set(row.values) <= known


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_row_of_each_folder_composes_to_what_its_files_say(folder: str) -> None:
    """The one with most keys; tests/experiments/test_smoke.py composes and runs all of them."""
    name = max(
        (n for n in NAMES if n.rpartition("/")[0] == folder), key=lambda n: len(row_of(n).values)
    )
    config = resolve(compose(f"+experiment/{folder}={name.rpartition('/')[2]}"))
    row = row_of(name)
    assert config["experiment"] == name
    assert config["choices"] | row.choices == config["choices"]
    assert dict(leaves(config)) | row.values == dict(leaves(config))


@pytest.mark.parametrize("name", table_names())
def test_a_table_file_finds_its_rows_and_measures(name: str) -> None:
    table = read_table(name)  # which refuses unknown keys, measures and columns
    assert set(table.experiments) <= set(NAMES)
    if not table.study:
        assert all(row.experiment or row.published for row in table.rows), (
            "a row that nobody runs has a published number"
        )
    assert table.rows or table.study


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("orq/")])
def test_buckets_of_orq_run_through_the_whole_gradient(name: str) -> None:
    """Section 5: "evenly divides the whole gradient into buckets of the same length"; only rows without buckets have none."""
    row = row_of(name)
    has_buckets = "bucket_size" in keys_of("compressor", row.choices["compressor"])
    assert row.values.get("bucket_scope") == ("gradient" if has_buckets else None)


def test_clipped_rows_of_orq_warm_up_from_a_tenth_of_the_rate() -> None:
    """Section 5: with clipping, "a linear warm-up schedule starting from base learning rate/10"."""
    ours = [
        n
        for n in NAMES
        if n.startswith(("orq/table4", "orq/table5"))
        and re.search("orq_|bingrad", n)
        and "noclip" not in n
    ]
    assert len(ours) > 10
    for name in ours:
        values = row_of(name).values
        assert (values["schedule.warmup_epochs"], values["schedule.warmup_start"]) == (5, 0.1), name


def test_every_experiment_stands_in_a_table() -> None:
    tables = [read_table(name) for name in table_names()]
    shown = {experiment for table in tables for experiment in table.experiments}
    pictured = {
        table.figure["experiment"]
        for table in tables
        if table.figure and "experiment" in table.figure
    }
    assert set(NAMES) - shown - pictured == set()


@pytest.mark.parametrize("group", ["experiment", "setting", "table"])
def test_what_no_paper_gives_says_how_it_was_chosen(group: str) -> None:
    without = [
        f"{file.relative_to(CONF)}: {line.strip()}"
        for file in sorted((CONF / group).rglob("*.yaml"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if "paper: not given" in line
        and not re.search(r"[A-Za-z]{2}", line.partition("#")[2].replace("paper: not given", ""))
    ]
    assert without == []


@pytest.mark.parametrize("group", ["experiment", "setting"])
def test_files_are_global_and_say_what_they_are(group: str) -> None:
    for file in sorted((CONF / group).rglob("*.yaml")):
        first, second, *_ = file.read_text(encoding="utf-8").splitlines()
        assert first == "# @package _global_", file
        assert second.startswith("# "), file


def test_rows_with_data_that_not_everybody_has_say_so() -> None:
    wanting = {"imagenet", "year", "gisette"}
    silent = [
        n
        for n in NAMES
        if row_of(n).choices["dataset"] in wanting and not row_of(n).values.get("needs")
    ]
    assert silent == []
