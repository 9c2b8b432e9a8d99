"""Every key admits what is just inside its range and refuses by name what is just outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from abc import ABC
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from inspect import isabstract
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from knob_values import example, inside, outside
from needed import patience
from nightly import each
from processes import command
from pydantic import Field
from sentence import config_of

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.core.fields import Checked, Positive, checked_hints, format_value, hints_of, refusal
from gcbench.core.fields import example as typed_like
from gcbench.core.method_files import NO_KNOBS, read_method, sort_keys
from gcbench.core.method_keys import MethodSettings
from gcbench.core.methods.dense import Dense
from gcbench.core.methods.powersgd import PowerSGD
from gcbench.core.methods.qsgd import QSGD
from gcbench.core.wrappers import build as compressors
from gcbench.runner.config.checks import validate
from gcbench.runner.config.keys import method_keys
from gcbench.runner.settings.__main__ import json_schema
from gcbench.runner.settings.config import MODELS, SCHEMAS
from gcbench.runner.settings.groups import BenchSettings, NetworkSettings, RunSettings

TOP = (MethodSettings, RunSettings, BenchSettings)
KEYS = [(None, schema, name) for schema in TOP for name in schema.model_fields]
NODE_KEYS = [
    (group, schema, name) for group, schema in SCHEMAS.items() for name in schema.model_fields
]
CHOICES = sorted(method_keys())


@each(("group", "schema", "name"), [*KEYS, *NODE_KEYS])
def test_the_command_line_is_held_to_the_range(group: str | None, schema: Any, name: str) -> None:
    hint, prefix = hints_of(schema)[name], f"{group}." if group else ""
    others = {} if schema is not NetworkSettings else {"bandwidth": "1gbit", "latency": "50us"}
    for value in inside(hint):
        assert getattr(validate(schema, {**others, name: value}, prefix), name) == value
    for value in outside(hint):
        typed = f"{prefix}{name}"
        with pytest.raises(ConfigError) as error:
            validate(schema, {**others, name: value}, prefix)
        said = f"{typed}={format_value(value)}: type ", f"{typed}={value!r}: type "
        assert str(error.value).startswith(said)
        assert "\n" not in str(error.value)


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def is_base(kind: type[Any]) -> bool:
    return isabstract(kind) or ABC in kind.__bases__


MADE = sorted(
    {c for c in subclasses(Checked) if c.__module__.startswith("gcbench.") and not is_base(c)},
    key=lambda c: c.__name__,
)


def make(kind: type[Any], **settings: Any) -> Any:
    """Return an instance with `settings`; other required ones are examples of their knobs."""
    hints = checked_hints(kind)
    needed = {
        field.name: example(hints[field.name]) if field.name in hints else Dense()
        for field in fields(kind)
        if field.default is MISSING
    }
    return kind(**{**needed, **settings})


@each(("kind", "name"), [(kind, name) for kind in MADE for name in checked_hints(kind)])
def test_methods_and_wrappers_are_held_to_it_too(kind: type[Any], name: str) -> None:
    hint = checked_hints(kind)[name]
    for value in inside(hint):
        assert getattr(make(kind, **{name: value}), name) == value
    for value in outside(hint):
        with pytest.raises(ValueError) as error:
            make(kind, **{name: value})
        assert str(error.value).startswith(f"{name}={format_value(value)}: type ")


@each("name", checked_hints(compressors.build))
def test_arguments_of_build_are_held_to_it_too(name: str) -> None:
    hint = checked_hints(compressors.build)[name]
    needed = {"exchange": "hierarchical"} if name == "workers_per_node" else {}
    method = PowerSGD(2) if name == "min_ratio" else QSGD(7)
    for value in inside(hint):
        compressors.build(method, **{**needed, name: value})
    for value in outside(hint):
        with pytest.raises(ValueError) as error:
            compressors.build(method, **{**needed, name: value})
        assert str(error.value).startswith(f"{name}={format_value(value)}: type ")


def test_configurations_are_checked_when_they_are_resolved() -> None:
    for sentence in ("bits=9", "seed=-1", "trainer.epochs=0", "optimizer.weight_decay=-1"):
        with pytest.raises(ConfigError, match=f"^{sentence}: type "):
            config_of(sentence)


@each(
    ("hint", "value", "says"),
    [
        (Annotated[int, Field(gt=0), typed_like(2)], 0, "a whole number above 0, as in x=2"),
        (Annotated[int, Field(ge=2, le=8)], 9, "a whole number from 2 to 8"),
        (Annotated[float, Field(gt=0, le=1)], 0, "a number above 0 and up to 1"),
        (Annotated[float, Field(ge=0, lt=1)], 1, "a number of at least 0 and below 1"),
        (Annotated[int, Field(lt=2**63)], 2**63, "a whole number below 2^63"),
        (Literal[3, 5, 9], 4, "x=3, 5 or 9"),
        (Positive | None, 0, "a number above 0, or null"),
        (Annotated[Positive | None, typed_like(7)], 0, "a number above 0, as in x=7, or null"),
        (list[Annotated[float, Field(gt=0, lt=1)]], [2], "numbers between 0 and 1"),
        (Annotated[list[Positive], Field(min_length=2, max_length=2)], [2], "2 numbers above 0"),
        (list[Literal["a", "b"]], ["c"], "some of a or b"),
        (Literal["a", "b", "c"], "d", "x=a, b or c"),
        (bool, 1, "x=true or false"),
        (bool | None, 1, "x=true or false, or null"),
        (str, 1, "a text"),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_type(hint: Any, value: Any, says: str) -> None:
    assert refusal("x", value, hint) == f"x={format_value(value)}: type {says}"


def test_a_method_may_have_a_narrower_range_than_its_key() -> None:
    @dataclass
    class Narrow(Checked):
        rank: Annotated[int, Field(ge=3)]

    assert Narrow(3).rank == 3
    with pytest.raises(ValueError, match="rank=2: type a whole number of at least 3"):
        Narrow(2)


def test_every_key_has_a_range_and_a_meaning() -> None:
    for choice, keys in method_keys().items():
        assert set(keys) <= set(MethodSettings.model_fields), choice
    for schema in (*TOP, *SCHEMAS.values()):
        for name, field in schema.model_fields.items():
            assert field.description, f"{schema.__name__}.{name} has no docstring"
        assert dict(checked_hints(schema)) == dict(hints_of(schema))


def test_keys_of_a_method_are_those_of_its_files() -> None:
    read = {name: sort_keys(read_method(name).keys() - NO_KNOBS) for name in CHOICES}
    assert read == method_keys()


def test_help_has_every_key_with_the_methods_that_have_it(tmp_path: Path) -> None:
    text, of_bench = (
        command(arguments, tmp_path, os.environ, timeout=patience(60)).stdout
        for arguments in (["--help", "all"], ["bench", "--help"])
    )
    keys = method_keys()
    for name in MethodSettings.model_fields:
        entry = re.search(rf"^  {name}=.*?\[([a-z][^]]*)]$", text, re.MULTILINE | re.DOTALL)
        assert entry, name
        listed = entry[1].split()
        if listed[:2] == ["all", "but"]:
            listed = [choice for choice in CHOICES if choice not in listed[2:]]
        assert listed in (["all"], [choice for choice in CHOICES if name in keys[choice]]), name
    for group, _, name in NODE_KEYS:
        key = f"{group}.{name}"
        assert f" {key}=" in text
    assert all(f" {name}=" in of_bench for name in BenchSettings.model_fields)


def test_a_share_of_a_process_is_refused() -> None:
    hint = hints_of(BenchSettings)["workers"]
    assert refusal("workers", [2], hint) is None
    assert str(refusal("workers", [2.5], hint)).startswith("workers=[2.5]: type whole numbers of")


def test_an_editor_knows_every_key_of_our_files() -> None:
    for group in MODELS:
        schema = json_schema(group)
        for file in (conf_directory() / group).glob("*.yaml") if group else ():
            unknown = yaml.safe_load(file.read_text()).keys() - schema["properties"].keys()
            assert not unknown or schema["additionalProperties"], f"{file}: {unknown}"
    run = json_schema()["properties"]
    assert run["rank"]["anyOf"][0]["minimum"] == 1 and run["rank"]["description"]
    trainer = run["trainer"]["anyOf"][0]
    assert trainer["properties"].keys() == {"defaults", *SCHEMAS["trainer"].model_fields}
    assert not trainer["additionalProperties"] and json_schema("optimizer")["additionalProperties"]
    assert json.loads(printed("estimator")) == json_schema("estimator")
    assert "trainre: type one of compressor, dataset, trainer, " in printed("trainre")


def printed(group: str) -> str:
    asked = [sys.executable, "-m", "gcbench.runner.settings", group]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr
