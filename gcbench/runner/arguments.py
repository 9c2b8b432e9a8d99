"""What users type after a subcommand, as typed values: key=value, held to the fields of a model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, ValidationError

from gcbench.core.errors import ConfigError, as_known, near
from gcbench.core.fields import (
    Count,
    Positive,
    choices_of_kind,
    format_value,
    kinds_of,
    refusal,
    validated,
    wanted,
)
from gcbench.runner.config.checks import refuse_twice
from gcbench.runner.terminal import fold


class Option(NamedTuple):
    """A mark of a field that is typed as --name DIR, like an option of Hydra for a run."""


class Arguments(BaseModel):
    """Arguments that were typed after a subcommand.

    A subclass has the keys as fields, and its docstring is the text of --help. Numbers must be
    above 0 if their type does not say otherwise.
    """

    model_config = ConfigDict(
        use_attribute_docstrings=True, validate_by_name=True, defer_build=True
    )

    usage: ClassVar[str]
    examples: ClassVar[str] = ""
    takes_other_keys: ClassVar[bool] = False

    plain: tuple[str, ...] = ()
    """arguments that are not key=value"""
    others: tuple[str, ...] = ()
    """key=value without a field, if `takes_other_keys`"""

    @property
    def given(self) -> Collection[str]:
        """Return the fields that were typed as key=value."""
        return self.model_fields_set

    def check(self) -> None:
        """Raise ConfigError if what was typed does not fit together."""


A = TypeVar("A", bound=Arguments)
Forms = Mapping[str, type[Arguments]]  # of a command, by what is typed for each
NO_FORMS: Forms = {}
T = TypeVar("T")


def read_arguments(kind: type[A], typed: Sequence[str], forms: Forms = NO_FORMS) -> A:
    """Return the arguments that were typed; --help prints the help and exits.

    `forms` are those of a command with several, of which `kind` is one: a key that it does not read
    is refused with those that do. Raises ConfigError for a mistake, with one sentence.
    """
    options = vars(_parser(kind, forms).parse_intermixed_args(typed))
    arguments = options.pop("arguments")
    pairs = [argument for argument in arguments if "=" in argument]
    known = _keys_of(kind)
    for pair in pairs:
        readers = [form for form, one in forms.items() if pair.partition("=")[0] in _keys_of(one)]
        if readers and kind not in map(forms.get, readers):
            own = next(form for form, one in forms.items() if one is kind)
            raise ConfigError(
                f"{pair}: {own} does not read it; leave it out, or type {' or '.join(readers)}"
            )
    others = [p for p in pairs if kind.takes_other_keys and p.partition("=")[0] not in known]
    refuse_twice(others)
    values = read_keys(kind, [pair for pair in pairs if pair not in others])
    plain = tuple(argument for argument in arguments if "=" not in argument)
    made = kind.model_construct({*values}, **values, **options, plain=plain, others=tuple(others))
    made.check()
    return made


def read_keys(kind: type[Any], typed: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a model or a dataclass that were typed as key=value.

    Several values are separated by commas, with or without brackets, and a key may be typed again
    for more. Several texts of a dataclass are some of its default. Raises ConfigError for a
    mistake.
    """
    known = _keys_of(kind)
    refuse_twice([one for one in typed if not _takes_several(known, one)])
    values: dict[str, Any] = {}
    for argument in typed:
        name, _, text = argument.partition("=")
        if name not in known:
            raise ConfigError(
                f"{argument}: no such key; type {near(name, known, '=') or '=, '.join(known) + '='}"
            )
        key = known[name]
        if not text:
            about = key.about or f"a value, as in {name}={key.shown}"
            raise ConfigError(f"{argument}: type {name}= and {about}")
        value = _value(argument, key)
        before = values.get(key.field, ())
        values[key.field] = (*before, *value) if isinstance(value, tuple) else value
    return values


def _takes_several(known: Mapping[str, _Key], argument: str) -> bool:
    key = known.get(argument.partition("=")[0])
    return key is not None and key.several


class _Key(NamedTuple):
    field: str
    hint: Any  # of a value, or of each of several
    default: Any
    about: str
    several: bool
    choices: Collection[str]
    may_be_null: bool

    @property
    def takes_text(self) -> bool:
        return bool(self.choices) or refusal("", "text", self.hint) is None

    @property
    def shown(self) -> str:
        """The default as it would be typed; an empty text if there is none."""
        if isinstance(self.default, tuple):
            return ",".join(map(format_value, self.default))
        return "" if self.default is None else format_value(self.default)


def _keys_of(kind: type[Any]) -> dict[str, _Key]:
    """Return what may be typed as key=value, by key."""
    hints, keys = get_type_hints(kind, include_extras=True), {}
    if not issubclass(kind, BaseModel):
        for f in fields(kind):
            key = _key(f.name, hints[f.name], f.default, "")
            some = key.default if key.several and key.hint is str else None
            keys[f.name] = key._replace(choices=some or key.choices)
        return keys
    for name, field in kind.model_fields.items():
        if name not in Arguments.model_fields and Option() not in field.metadata:
            about = " ".join((field.description or "").split())
            keys[field.alias or name] = _key(name, hints[name], field.default, about)
    return keys


def _key(name: str, hint: Any, default: Any, about: str) -> _Key:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    of = next(kind for kind in kinds if kind is not NoneType)
    several = get_origin(of) in (tuple, Sequence)
    of = get_args(of)[0] if several else of
    of = {int: Count, float: Positive}.get(of, of)
    choices = [] if of is bool else [c for kind in kinds_of(of) for c in choices_of_kind(kind)]
    return _Key(name, of, default, about, several, choices, NoneType in kinds)


def _value(argument: str, key: _Key) -> Any:
    name, _, text = argument.partition("=")
    if text == "null" and key.may_be_null:
        return None
    values = []
    for part in _parts(text) if key.several else [text]:
        part = as_known(part, key.choices)
        if key.choices and part not in key.choices:
            likely = near(part, key.choices) or ", ".join(key.choices)
            raise ConfigError(f"{argument}: type {name}={likely}")
        try:
            values.append(validated(part if key.takes_text else _read(part), key.hint))
        except ValidationError:
            shown = key.shown or EXAMPLES[kinds_of(key.hint)[0]["type"]]
            what = wanted(name, key.hint).removeprefix(f"{name}=")
            raise ConfigError(f"{argument}: type {what}, as in {name}={shown}") from None
    return tuple(values) if key.several else values[0]


def _read(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


EXAMPLES = {"integer": "4", "number": "0.1"}


def _parts(text: str) -> list[str]:
    """Split at the commas that are not in brackets, other than the outermost ones."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [part.strip(" '\"") for part in re.split(r",(?![^\[]*\])", inner)]


def _list_keys(kind: type[Arguments]) -> str:
    known = _keys_of(kind)
    width = max(map(len, known), default=0) + 2
    keys = [
        f"  {f'{name}=':{width}}{key.about}{f' ({key.shown})' if key.shown else ''}"
        for name, key in known.items()
    ]
    return "\n".join(["keys:", *keys] if keys else [])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; type {self.prog} --help")

    def format_help(self) -> str:
        return fold(super().format_help())


def _parser(kind: type[Arguments], forms: Forms) -> _Parser:
    others = [f"{form} --help" for form, one in forms.items() if one is not kind]
    parts = [
        " ".join((kind.__doc__ or "").split()),
        kind.examples.strip("\n"),
        _list_keys(kind),
        f"keys of other forms: {', '.join(others)}" if others else "",
    ]
    parser = _Parser(
        prog=" ".join(kind.usage.split()[:2]),
        usage=kind.usage,
        description="\n\n".join(filter(None, parts)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    for name, field in kind.model_fields.items():
        if Option() in field.metadata:
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, metavar="DIR", help=field.description)
    return parser
