"""What is told at a key, and nowhere else: type and range, meaning, an example, what it is for.

    @dataclass(frozen=True)
    class PowerSGD(Checked):
        rank: Annotated[Count, example(2)]
        \"\"\"columns r of the factors\"\"\"

Checks, sentences, `--help`, hashes and the tests of ranges are derived from it, for keys of methods
by way of one model, which scripts/keys makes of their classes. A range of pydantic's,
`Annotated[float, Field(gt=0)]`, may stand at a field of any dataclass that is `Checked`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, partial, wraps
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import Self

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, lt=1)]
Weight = Annotated[float, Field(ge=0, le=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Bits = Annotated[int, Field(ge=1, le=8)]
Period = Annotated[int, Field(ge=10)]  # in steps, of what costs more than a step
Text = Annotated[str, Field(min_length=1)]


def _all_differ(values: Sequence[int]) -> Sequence[int]:
    if len(set(values)) < len(values):
        raise ValueError
    return values


Distinct = Annotated[
    Sequence[T],
    Field(min_length=1, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_all_differ),
]


def example(value: Any) -> Any:
    """Return a mark with a value to type; a key without one has its default as the example."""
    return Field(examples=[value])


@dataclass(frozen=True)
class Neutral:
    """A mark of a key that was added when runs had already been kept.

    A configuration with this value is the same as one without the key.
    """

    value: Any = field(hash=False)


@dataclass(frozen=True)
class Needs:
    """A mark of a key that is read only if another has one of some values.

    The first is the one to type. A number stands for all but 0 and null.
    """

    key: str
    values: tuple[Any, ...]

    def met_by(self, value: Any) -> bool:
        return any(value == v or (type(v) is int and bool(value)) for v in self.values)


WITH_FEEDBACK = Needs("error_feedback", (True, "loco", "ef21"))


class Settings(BaseModel):
    """The base class of all models of keys: types are strict, and instances cannot be changed.

    With `total = False` any key may be missing, as from the file of a choice that does not take it.
    A missing key reads as its default, or as None.
    """

    total: ClassVar[bool] = True

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        defer_build=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for key in cls.model_fields.values() if not cls.total else ():
            if key.is_required():
                key.default = None

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """Return a model of values that were checked before, such as those of a kept result."""
        return cls.model_construct(**node)

    def as_dict(self) -> dict[str, Any]:
        """Return the values from which it was made, as a result keeps them."""
        given = {name: value for name, value in self if name in self.model_fields_set}
        return {
            name: value.as_dict() if isinstance(value, Settings) else value
            for name, value in {**(self.model_extra or {}), **given}.items()
        }


@cache
def hints_of(target: Any) -> Mapping[str, Any]:
    """Return the annotations of a model, of a dataclass, or of the arguments of a callable."""
    takes = target.__init__ if inspect.isclass(target) and not _has_fields(target) else target
    hints = get_type_hints(takes, include_extras=True)
    fields = target.model_fields if _is_model(target) else inspect.signature(target).parameters
    return {
        name: _with_example(hints[name], f.default) for name, f in fields.items() if name in hints
    }


@cache
def checked_hints(target: Any) -> Mapping[str, Any]:
    """Return the annotations by which values can be checked: of numbers, texts and lists."""
    return {name: hint for name, hint in hints_of(target).items() if _is_plain(hint)}


def is_float(hint: Any) -> bool:
    """Return whether a hint allows numbers that are not whole."""
    return float in _leaves(hint)


def refusal(name: str, value: Any, hint: Any) -> str | None:
    """Return the error message for a value that `name` cannot have; None if it fits the hint."""
    if not _is_plain(hint):
        return None
    try:
        validated(value, hint)
    except ValidationError:
        return f"{name}={_format_refused(value, hint)}: type {wanted(name, hint)}"
    return None


class Checked:
    """Base class of dataclasses that raise ValueError for a field outside its range."""

    def __post_init__(self) -> None:
        own: Any = type(self)
        for name, hint in checked_hints(own).items():
            _refuse(name, getattr(self, name), hint)


def own_fields(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the values that are fields of a dataclass."""
    return {field.name: values[field.name] for field in fields(kind) if field.name in values}


def fields_as_arguments(*kinds: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function, in place of its `**keys`, the fields of these dataclasses as arguments.

    Signature and annotations are those of the fields, whose classes check the values.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        first = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keys = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
            for kind in kinds
            for field in fields(kind)
        ]
        signature = inspect.Signature([*first, *keys])

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            signature.bind(*args, **kwargs)  # raises TypeError for any other key
            return function(*args, **kwargs)

        own = {parameter.name: function.__annotations__[parameter.name] for parameter in first}
        call.__annotations__ = own | {k: v for kind in kinds for k, v in hints_of(kind).items()}
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__checked__ = True  # type: ignore[attr-defined]
        return call

    return decorate


def checks_itself(target: Any) -> bool:
    """Return whether a class or a function raises ValueError for a value outside its range."""
    of_class = inspect.isclass(target) and issubclass(target, Checked)
    return of_class or hasattr(target, "__checked__")


def _refuse(name: str, value: Any, hint: Any) -> None:
    if sentence := refusal(name, value, hint):
        raise ValueError(sentence)


def validated(value: Any, hint: Any) -> Any:
    """Return the value as `hint` has it, 5 as 5.0 for a float. Raises ValidationError."""
    return _adapter(hint).validate_python(value)


_adapter = cache(partial(TypeAdapter, config=ConfigDict(strict=True, allow_inf_nan=False)))


def kinds_of(hint: Any) -> Sequence[Mapping[str, Any]]:
    """Return the JSON schemas of the types that a hint allows."""
    schema = TypeAdapter(hint).json_schema()  # not a cached one, of the same choices in any order
    return [{**schema, **kind} for kind in schema.get("anyOf", [schema])]


def choices_of_kind(kind: Mapping[str, Any]) -> list[str]:
    """Return the texts that may be typed; empty if there are too many to list."""
    if "enum" in kind or "const" in kind:
        return [format_value(value) for value in kind.get("enum", [kind.get("const")])]
    return ["true", "false"] if kind.get("type") == "boolean" else []


def interval_of(kind: Mapping[str, Any]) -> str:
    """Return a range in words, for example `from 2 to 8`; an empty text if there is none."""
    entry = kind.get("items", kind)
    bounds = {word: _number(entry[key]) for key, word in BOUNDS.items() if key in entry}
    for (low, high), (first, second) in PAIRS.items():
        if {low, high} == bounds.keys():
            return f"{first} {bounds[low]} {second} {bounds[high]}"
    return " and ".join(f"{word} {bound}" for word, bound in bounds.items())


BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "up to",
    "exclusiveMaximum": "below",
}
PAIRS = {("of at least", "up to"): ("from", "to"), ("above", "below"): ("between", "and")}
ONE = {"integer": "a whole number", "number": "a number", "string": "a text", "object": "keys"}
SEVERAL = {"integer": "whole numbers", "number": "numbers", "string": "texts", "object": "groups"}


def wanted(name: str, hint: Any) -> str:
    """Return what to type, for example `a number above 0, as in x=2, or null`."""
    kinds = kinds_of(hint)
    choices = dict.fromkeys(choice for kind in kinds for choice in choices_of_kind(kind))
    ways = [f"{name}={either([*choices])}"] if choices else []
    others = [kind for kind in kinds if not choices_of_kind(kind) and kind.get("type") != "null"]
    ways += [_describe(name, kind) for kind in others]
    ways += ["null"] if any(kind.get("type") == "null" for kind in kinds) else []
    return ", or ".join(ways)


def _describe(name: str, kind: Mapping[str, Any]) -> str:
    entry, least, most = kind.get("items", kind), kind.get("minItems"), kind.get("maxItems")
    nouns = ONE if entry is kind else SEVERAL
    choices = choices_of_kind(entry) if entry is not kind else []
    noun = (
        f"some of {either(choices)}"
        if choices
        else entry.get("title") or nouns.get(entry.get("type"), "a value")
    )
    number = f"{least} " if least is not None and least == most else ""
    wanted = f"{'different ' * ('uniqueItems' in kind)}{number}{noun} {interval_of(kind)}".strip()
    examples = kind.get("examples")
    return f"{wanted}, as in {name}={format_value(examples[0])}" if examples else wanted


def _format_refused(value: Any, hint: Any) -> str:
    """Return a value as text in which 4.0 and "4" do not look like the whole number 4."""
    alike = isinstance(value, float) or (isinstance(value, str) and value.isdigit())
    whole = int in _leaves(hint) and not is_float(hint)
    return repr(value) if alike and whole else format_value(value)


def _with_example(hint: Any, default: Any) -> Any:
    """Return the hint of a key, to which its default is an example if it has no other."""
    is_one = isinstance(default, (int, float, tuple)) and not isinstance(default, bool)
    has = any(isinstance(mark, FieldInfo) and mark.examples for mark in marks_in(hint))
    return Annotated[hint, example(default)] if is_one and not has else hint


def marks_in(hint: Any) -> Iterator[Any]:
    """Yield what annotates a hint, or a type inside it."""
    for one in get_args(hint):
        yield from marks_in(one)
        yield one


def _leaves(hint: Any) -> Iterator[Any]:
    """Yield the types that a hint consists of, those of lists' entries included."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _leaves(inside[0])
    elif origin in (Union, UnionType, list, Sequence):
        for one in inside:
            yield from _leaves(one)
    else:
        yield origin or hint


def _is_plain(hint: Any) -> bool:
    return set(_leaves(hint)) <= {int, float, str, bool, NoneType, Literal, dict}


def _has_fields(target: Any) -> bool:
    return is_dataclass(target) or _is_model(target)


def _is_model(target: Any) -> bool:
    return inspect.isclass(target) and issubclass(target, BaseModel)


def _number(bound: float) -> str:
    """Return a bound as text, with large powers of two as `2^n`."""
    if isinstance(bound, int) and bound >= 2**31 and bound.bit_count() == 1:
        return f"2^{bound.bit_length() - 1}"
    return str(bound)


def either(texts: Sequence[str]) -> str:
    """Return `a, b or c`."""
    *first, last = texts
    return f"{', '.join(first)} or {last}" if first else last


def format_value(value: Any) -> str:
    """Return `value` as it is typed on a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(format_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{format_value(v)}' for key, v in value.items())}}}"
    return str(value)


def to_floats(node: dict[str, Any], schema: type[Settings]) -> None:
    """Convert whole numbers of float keys to floats, so that lr=1 and lr=1.0 are the same run."""
    for name, hint in hints_of(schema).items():
        if name in node and is_float(hint):
            node[name] = _to_float(node[name])


def _to_float(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_float(entry) for entry in value]
    return float(value) if type(value) is int else value
