"""Arguments of subcommands are read into the fields of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pytest
from nightly import each
from pydantic import Field

from gcbench.core.errors import ConfigError
from gcbench.runner.arguments import Arguments, Option, read_arguments, read_keys
from gcbench.runner.settings.groups import OneOf


class Own(Arguments):
    """Says what it
    does."""

    usage = "gcbench own FOLDER [key=value ...]"
    examples = "gcbench own here"

    steps: int = 3
    """of each run"""
    seconds: float | None = None
    """of a step"""
    overlap: bool = False
    """true: under the backward pass"""
    form: Annotated[str, OneOf(("csv", "latex"))] = "csv"
    """csv or latex"""
    folders: tuple[str, ...] = ()
    """with runs"""
    numbers: tuple[int, ...] | None = Field((1, 2), alias="in")
    """some"""
    config_dir: Annotated[str | None, Option()] = None
    """a folder"""


class Open(Own):
    takes_other_keys = True


@dataclass(frozen=True, kw_only=True)
class Settings:
    norms: Sequence[str] = ("l2", "linf")
    scales: Sequence[float] | None = None
    note: str | None = None


def test_values_have_the_types_of_their_fields() -> None:
    typed = "a steps=5 seconds=1e-3 overlap=true form=latex in=[4,5] b --config-dir c in=6".split()
    arguments = read_arguments(Own, typed)
    facts = (arguments.steps, arguments.seconds, arguments.overlap, arguments.form)
    assert facts == (5, 0.001, True, "latex")
    facts = (arguments.plain, arguments.numbers, arguments.config_dir)
    assert facts == (("a", "b"), (4, 5, 6), "c")
    assert set(arguments.given) == {"steps", "seconds", "overlap", "form", "numbers"}
    assert read_arguments(Own, []).numbers == (1, 2)
    assert read_arguments(Own, ["in=null"]).numbers is None


def test_commas_inside_brackets_split_nothing() -> None:
    assert read_arguments(Own, ["folders=a,x=[1,2],b=c"]).folders == ("a", "x=[1,2]", "b=c")
    assert read_arguments(Own, ["folders=[a=[1,2], 'b']"]).folders == ("a=[1,2]", "b")


def test_other_keys_are_left_to_those_who_take_them() -> None:
    arguments = read_arguments(Open, ["rank=1,2", "steps=2", "+levels=3"])
    assert arguments.others == ("rank=1,2", "+levels=3") and arguments.steps == 2


def test_settings_of_any_dataclass() -> None:
    typed = ["norms=[linf]", "scales=0.5,2", "note=null"]
    assert read_keys(Settings, typed) == {"norms": ("linf",), "scales": (0.5, 2.0), "note": None}


@each(
    ("arguments", "says"),
    [
        (["stesp=1"], "stesp=1: no such key; type steps= or seconds="),
        (["xyz=1"], "xyz=1: no such key; type steps=, seconds=, overlap=, form=, folders=, in="),
        (["steps="], "steps=: type steps= and of each run"),
        (["steps=0"], "steps=0: type a whole number of at least 1, as in steps=3"),
        (["steps=1.5"], "steps=1.5: type a whole number of at least 1, as in steps=3"),
        (["in=1,x"], "in=1,x: type a whole number of at least 1, as in in=1,2"),
        (["in=1,,2"], "in=1,,2: type a whole number of at least 1, as in in=1,2"),
        (["seconds=-1"], "seconds=-1: type a number above 0, as in seconds=0.1"),
        (["seconds=nan"], "seconds=nan: type a number above 0, as in seconds=0.1"),
        (["overlap=yes"], "overlap=yes: type true or false, as in overlap=false"),
        (["form=latx"], "form=latx: type form=latex"),
        (["form=pdf"], "form=pdf: type form=csv, latex"),
        (["--config-dri", "c"], "unrecognized arguments: --config-dri; type gcbench own --help"),
        (["--config=c"], "unrecognized arguments: --config=c; type gcbench own --help"),
        (["--config-dir"], "argument --config-dir: expected one argument; type gcbench own --help"),
    ],
)
def test_slips_are_answered_in_one_sentence(arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_arguments(Own, arguments)
    assert str(caught.value) == says


def test_names_of_a_setting_are_some_of_its_default() -> None:
    with pytest.raises(ConfigError, match="norms=l2,l3: type norms=l2"):
        read_keys(Settings, ["norms=l2,l3"])


def test_help_has_every_key_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_arguments(Own, ["--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and told.startswith(
        "usage: gcbench own FOLDER [key=value ...]\n\nSays what it does.\n"
    )
    assert "\ngcbench own here\n\nkeys:\n  steps=   of each run (3)\n  seconds= of a step\n" in told
    assert "  in=      some (1,2)\n" in told and "--config-dir DIR  a folder" in told
