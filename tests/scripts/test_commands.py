"""The commands printed in the documentation are valid: each is parsed, and none is started."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from needed import patience
from nightly import slow_but
from processes import command

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.papers.claims.claims_report import Claims
from gcbench.papers.commands import OF_PAPERS
from gcbench.papers.dashboards import Dashboards
from gcbench.papers.figures.study_figures import STUDIES
from gcbench.papers.studies.study import make_study
from gcbench.papers.tables.report import REPORTS, Deviations, Figures, List, Tables
from gcbench.papers.tables.tables import tables_of
from gcbench.papers.track.enter import Entry
from gcbench.papers.tune import Tune
from gcbench.runner.arguments import Arguments, read_arguments
from gcbench.runner.check.command import Check, Methods
from gcbench.runner.command.example import Example
from gcbench.runner.command.folders import Remove, Where
from gcbench.runner.command.subcommands import SUBCOMMANDS
from gcbench.runner.config.choices import row_names
from gcbench.runner.config.compose import resolve_overrides
from gcbench.runner.config.hydra_versions import VERSION_BASE
from gcbench.runner.config.keys import method_keys
from gcbench.runner.config.resolve import resolve_benchmark
from gcbench.runner.predict.arguments import read_predict
from gcbench.runner.records.store import find_runs
from gcbench.runner.report.command import Runs, form_of_report

ROOT = Path(__file__).parents[2]
# The changelog is history; the commands in claims.md are those of tables, which other tests cover.
GENERATED = {"CHANGELOG.md", "outputs/claims.md"}
PAGES = sorted(
    page
    for path in [*ROOT.glob("*.md"), *ROOT.glob("[cgos]*/**/*.md")]
    if "tables" not in path.parts and (page := path.relative_to(ROOT).as_posix()) not in GENERATED
)
# Printed as examples of what is refused.
REFUSED = {"compressor=qsgd rank=2"}
# Printed placeholders, and what they are replaced with here.
PLACEHOLDERS = {"table=NAME": "table=powersgd/table4"}


def commands(text: str) -> list[str]:
    """Return what follows `gcbench` in the indented lines and the inline code of a page."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", text)  # join commands that continue on the next line
    indented = re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE)
    inline = [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", text)]
    lines = [line.partition(" #")[0] for line in [*indented, *inline]]
    parts = [part.strip() for line in lines for part in re.split("&&|;", line)]
    found = [re.search(r"(.*\s|^)gcbench( .*)?$", part) for part in parts]
    typed = [
        (match[2] or "").strip()
        for match in found
        if match and not re.search(r"\b(?:import|pip|python)\b", match[1])
    ]
    return list(dict.fromkeys(typed))


def resolves(typed: str) -> None:
    """Parse the arguments of a command. Raises ConfigError if it would be refused."""
    for placeholder, name in PLACEHOLDERS.items():
        typed = typed.replace(placeholder, name)
    first, *rest = shlex.split(typed) or [""]
    if first in READERS:
        READERS[first](rest)
    elif first != "--help":
        resolve_overrides(one_point([override for override in [first, *rest] if override]))


def one_point(overrides: Sequence[str]) -> list[str]:
    """Return the first point of a sweep, or a bound of a search."""
    options = {"-m", "--cfg", "job", "--config", "FILE"}
    typed = [
        override.replace("=NAME", "=qsgd")
        for override in overrides
        if override not in options and not override.startswith(("hydra/", "hydra."))
    ]
    return [_first(override) for override in OverridesParser.create().parse_overrides(typed)]


def _first(override: Override) -> str:
    line = str(override.input_line)
    if not override.is_sweep_override():
        return line
    group = override.key_or_group
    if "glob(" in line:
        return f"+{group}={min(row_names(group.removeprefix('experiment/')))}"
    if override.is_interval_sweep():
        return f"{line.partition('=')[0]}={override.value().start}"
    return f"{line.partition('=')[0]}={next(override.sweep_string_iterator())}"


def _report(arguments: Sequence[str]) -> None:
    asked = form_of_report(arguments, REPORTS, Figures, Tables)
    assert asked.plain[:1] in ((), ("html",), ("diff",))
    for name in filter(None, (getattr(asked, key, None) for key in ("table", "figure"))):
        if name not in ("which_method", "runs", "all", *STUDIES):
            tables_of(name)


def _bench(overrides: Sequence[str]) -> None:
    with initialize_config_dir(str(conf_directory()), **VERSION_BASE):
        resolve_benchmark(compose("bench", one_point(overrides), return_hydra_config=True))


def _predict(arguments: Sequence[str]) -> None:
    knobs = {key for keys in method_keys().values() for key in keys}
    for override in read_predict(arguments).others:
        if override.partition("=")[0] not in knobs:
            raise ConfigError(f"{override}: no method has such a knob")


def _study(arguments: Sequence[str]) -> None:
    if arguments and arguments != ["list"]:
        make_study(arguments[0], arguments[1:])


def _of_runs(arguments: Sequence[str]) -> tuple[type[Arguments], Sequence[str]]:
    parts = {"rm": Remove, "where": Where}
    first = arguments[0] if arguments else ""
    return (parts[first], arguments[1:]) if first in parts else (Runs, arguments)


def _tune(arguments: Sequence[str]) -> None:
    resolve_overrides(one_point(read_arguments(Tune, arguments).others))


READERS: dict[str, Callable[[Sequence[str]], object]] = {
    "report": _report,
    "again": lambda arguments: resolve_overrides(one_point(arguments[1:])),
    "runs": lambda arguments: read_arguments(*_of_runs(arguments)),
    "predict": _predict,
    "bench": _bench,
    "methods": lambda arguments: read_arguments(Methods, arguments),
    "check": lambda arguments: read_arguments(Check, arguments),
    "dashboards": lambda arguments: read_arguments(Dashboards, arguments),
    "example": lambda arguments: read_arguments(Example, arguments),
    "papers": lambda arguments: OF_PAPERS_READERS[arguments[0]](arguments[1:]),
}
OF_PAPERS_READERS: dict[str, Callable[[Sequence[str]], object]] = {
    "tables": lambda arguments: read_arguments(List, arguments),
    "deviations": lambda arguments: read_arguments(Deviations, arguments),
    "claims": lambda arguments: read_arguments(Claims, arguments),
    "studies": _study,
    "tune": _tune,
    "track": lambda arguments: read_arguments(Entry, arguments),
}


@pytest.mark.parametrize("page", slow_but(["README.md"], PAGES))
def test_every_command_of_a_page_resolves(page: str) -> None:
    for typed in commands((ROOT / page).read_text(encoding="utf-8")):
        if "--config-dir my_conf" in typed and typed.split()[0] not in READERS:
            continue  # needs the reader's own files, which a test below makes
        if typed in REFUSED:
            with pytest.raises(ConfigError):
                resolves(typed)
        else:
            resolves(typed)


def test_every_subcommand_is_read_and_mistakes_are_seen() -> None:
    assert READERS.keys() == SUBCOMMANDS.keys() and OF_PAPERS_READERS.keys() == OF_PAPERS.keys()
    text = "`gcbench runs`\n\n    srun -n2 gcbench -m bits=2,4 # two\n    pip install gcbench\n"
    assert commands(text) == ["-m bits=2,4", "runs"]
    for wrong in (
        "papers studies svd_cots",
        "report table=powersgd/table44",
        "bits=2,4 rank=3",
        "-m '+experiment/powersgd/table44=glob(*)'",
        "bench sizes=[ten]",
        "papers tune tires=6",
        "predict pays netwrk=1gbit",
    ):
        with pytest.raises((ConfigError, ValueError)):
            resolves(wrong)


def test_the_method_in_the_page_trains_from_an_empty_folder(tmp_path: Path) -> None:
    text = (ROOT / "gcbench/core/methods/README.md").read_text(encoding="utf-8")
    python, yaml = (
        textwrap.dedent(re.search(rf"^ +```{kind}\n(.*?)^ +```", text, re.DOTALL | re.MULTILINE)[1])
        for kind in ("python", "yaml")
    )
    (tmp_path / "my_conf" / "compressor").mkdir(parents=True)
    (tmp_path / "mine.py").write_text(python)
    (tmp_path / "my_conf" / "compressor" / "mine.yaml").write_text(yaml)
    (printed,) = (typed for typed in commands(text) if typed.startswith("--config-dir"))
    overrides = (
        "model=linear trainer.max_steps=60 trainer.launcher=virtual logger.mode=disabled".split()
    )
    environment = {**os.environ, "WANDB_MODE": "offline"}
    done = command([*printed.split(), *overrides], tmp_path, environment, timeout=patience(120))
    assert done.returncode == 0, done.stderr
    (run,) = find_runs([tmp_path / "outputs"]).runs
    assert run.result.test is not None and run.result.test["accuracy"] > 90
    assert run.result.bits_sent is not None and 3.9 < run.result.bits_sent.ratio < 4
