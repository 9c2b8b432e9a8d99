"""The arguments of a subcommand: plain ones, and key=value for the fields of a dataclass."""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from math import inf
from numbers import Number
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from gcbench.config.errors import ConfigError
from gcbench.identity import format_value


def key(default: Any, about: str, *, name: str | None = None, choices: Collection[str] = ()) -> Any:
    """Return a field that is typed as key=value; `name` is its key if no field can be called so."""
    return field(default=default, metadata={"about": about, "name": name, "choices": choices})


def option(about: str) -> Any:
    """Return a field that is typed as --name DIR, like an option of Hydra for a run."""
    return field(default=None, metadata={"about": about, "option": True})


@dataclass
class Arguments:
    """Arguments that were typed after a subcommand.

    A subclass has the keys as fields, and its docstring is the text of --help.
    """

    usage: ClassVar[str]
    examples: ClassVar[str] = ""
    takes_other_keys: ClassVar[bool] = False

    plain: tuple[str, ...] = field(init=False, default=())  # arguments that are not key=value
    others: tuple[str, ...] = field(
        init=False, default=()
    )  # key=value without a field, if `takes_other_keys`
    given: Collection[str] = field(init=False, default=())  # the fields that were typed


A = TypeVar("A", bound=Arguments)


def read_arguments(kind: type[A], typed: Sequence[str]) -> A:
    """Return the arguments that were typed; --help prints the help and exits.

    Raises ConfigError for a mistake, with one sentence.
    """
    options = vars(_parser(kind).parse_intermixed_args(typed))
    plain = tuple(argument for argument in options["arguments"] if "=" not in argument)
    pairs = [argument for argument in options.pop("arguments") if "=" in argument]
    known = _fields_by_key(kind)
    others = tuple(
        argument
        for argument in pairs
        if kind.takes_other_keys and argument.partition("=")[0] not in known
    )
    values = read_keys(kind, [argument for argument in pairs if argument not in others])
    arguments = kind(**values, **options)
    arguments.plain, arguments.others, arguments.given = plain, others, values.keys()
    return arguments


def read_keys(kind: type[Any], typed: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a dataclass that were typed as key=value.

    Numbers must be above 0. Several values are separated by commas, with or without brackets, and a
    key may be typed again for more. A field of several texts that was not made by `key` takes only
    values that its default has. Raises ConfigError for a mistake.
    """
    known, hints = _fields_by_key(kind), get_type_hints(kind)
    values: dict[str, Any] = {}
    for argument in typed:
        name, _, text = argument.partition("=")
        if name not in known:
            raise ConfigError(
                f"{argument}: no such key; type {near(name, known, '=') or '=, '.join(known) + '='}"
            )
        of = known[name]
        if not text:
            about = of.metadata.get("about", f"a value, as in {name}={_show(of)}")
            raise ConfigError(f"{argument}: type {name}= and {about}")
        value = _value(argument, of, hints[of.name])
        values[of.name] = (*values.get(of.name, ()), *value) if isinstance(value, tuple) else value
    return values


def refuse_unread(
    arguments: Arguments, command: str, form: str, reads: Mapping[str, Collection[str]]
) -> None:
    """Raise ConfigError for a typed key that this form of a command does not read.

    `reads` maps every form of the command to the fields that it reads.
    """
    keys = {field.name: key for key, field in _fields_by_key(type(arguments)).items()}
    for name in arguments.given:
        if name not in reads[form]:
            value = getattr(arguments, name)
            values = value if isinstance(value, tuple) else [value]
            typed = f"{keys[name]}={','.join(map(format_value, values))}"
            others = [f"{command} {other}".strip() for other in reads if name in reads[other]]
            raise ConfigError(
                f"{typed}: {f'{command} {form}'.strip()} does not read it; leave it out, or type "
                f"{' or '.join(others)}"
            )


def to_overrides(keys: Mapping[str, Any]) -> list[str]:
    """Return Python keys and values as key=value overrides in Hydra's grammar.

    For example, trainer={"epochs": 1} becomes trainer.epochs=1.
    """
    overrides = []
    for name, value in keys.items():
        if isinstance(value, Mapping):
            overrides += to_overrides({f"{name}.{inner}": below for inner, below in value.items()})
        else:
            overrides.append(f"{name}={_quote(name, value)}")
    return overrides


def _quote(name: str, value: Any) -> str:
    if getattr(value, "ndim", None) == 0:  # a number of NumPy or PyTorch
        value = value.item()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(_quote(name, entry) for entry in value)}]"
    if isinstance(value, (str, Path)):
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
    if value is not None and not isinstance(value, (Number, dict)):
        raise ConfigError(
            f"{name}: a {type(value).__name__} is no value of a key; type a number, a text, True, "
            "False or None, or a list of them"
        )
    return format_value(value)


def near(typed: str, known: Collection[str], ending: str = "") -> str:
    """Return the names like `typed`, joined by "or"; an empty text if there are none."""
    return " or ".join(
        name + ending for name in get_close_matches(typed, list(known), n=3, cutoff=0.5)
    )


def _fields_by_key(kind: type[Any]) -> dict[str, Field[Any]]:
    typed = [f for f in fields(kind) if f.init and not f.metadata.get("option")]
    return {f.metadata.get("name") or f.name: f for f in typed}


def _value(argument: str, of: Field[Any], hint: Any) -> Any:
    name, _, text = argument.partition("=")
    if get_origin(hint) in (Union, types.UnionType):  # a type or None
        if text == "null":
            return None
        hint = get_args(hint)[0]
    several = get_origin(hint) is not None
    kind = get_args(hint)[0] if several else hint
    names = of.default if several and kind is str else ()
    choices = of.metadata.get("choices", names) or ()
    values = []
    for part in _parts(text) if several else [text]:
        if choices and part not in choices:
            raise ConfigError(
                f"{argument}: type {name}={near(part, choices) or ', '.join(choices)}"
            )
        try:
            values.append(_read(kind, part))
        except (KeyError, ValueError):
            raise ConfigError(
                f"{argument}: type {NEEDED[kind]}, as in {name}={_show(of) or EXAMPLES[kind]}"
            ) from None
    return tuple(values) if several else values[0]


def _parts(text: str) -> list[str]:
    """Split at the commas that are not in brackets, other than the outermost ones."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [part.strip(" '\"") for part in re.split(r",(?![^\[]*\])", inner)]


def _show(of: Field[Any]) -> str:
    """Return the default as it would be typed; an empty text if there is none."""
    if isinstance(of.default, tuple):
        return ",".join(map(str, of.default))
    if of.default is None:
        return ""
    text = str(of.default)
    return text.lower() if isinstance(of.default, bool) else text


def _read(kind: Callable[[str], Any], text: str) -> Any:
    if kind is bool:
        return {"true": True, "false": False}[text]
    value = kind(text)
    if kind is not str and not 0 < value < inf:
        raise ValueError
    return value


NEEDED = {int: "a whole number of at least 1", float: "a number above 0", bool: "true or false"}
EXAMPLES = {int: "4", float: "0.1"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; type {self.prog} --help")


def _parser(kind: type[Arguments]) -> _Parser:
    known = _fields_by_key(kind)
    width = max(map(len, known), default=0) + 2
    keys = [
        f"  {k + '=':{width}}{f.metadata['about']}{f' ({_show(f)})' if _show(f) else ''}"
        for k, f in known.items()
    ]
    parts = [
        " ".join((kind.__doc__ or "").split()),
        kind.examples.strip("\n"),
        "\n".join(["keys:", *keys] if keys else []),
    ]
    parser = _Parser(
        prog=" ".join(kind.usage.split()[:2]),
        usage=kind.usage,
        description="\n\n".join(filter(None, parts)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    for f in fields(kind):
        if f.metadata.get("option"):
            parser.add_argument(
                f"--{f.name.replace('_', '-')}", metavar="DIR", help=f.metadata["about"]
            )
    return parser
