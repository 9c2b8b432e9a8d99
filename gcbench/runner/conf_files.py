"""Files of conf/, held to types, and what their comments and defaults say."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BeforeValidator, ConfigDict, ValidationError

from gcbench.core.conf import conf_folders, read_yaml
from gcbench.core.errors import ConfigError, near

T = TypeVar("T")


def file_of(group: str, choice: str) -> Path:
    """Return the file of a choice of a group; ours, which is missing, if there is none."""
    ours, *others = (folder / group / f"{choice}.yaml" for folder in conf_folders())
    return next((path for path in reversed(others) if path.is_file()), ours)


def form_in(path: Path) -> str:
    """Return whose form of its method a file has: `paper`, `code`, or `ours` if it does not say."""
    return str((read_yaml(path) or {}).get("form", "ours"))


def top_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the top of a file, without Hydra's `@package` line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in comment if "@package" not in line]


CHECKED = ConfigDict(extra="forbid")
Texts = Annotated[  # a single text may be written without brackets
    tuple[str, ...], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]


def build_checked(kind: type[T], node: Any, place: str | Path) -> T:
    """Return a `kind` made from a node of YAML.

    Raises ConfigError with the place and the first mistake.
    """
    if not isinstance(node, dict) or not all(isinstance(key, str) for key in node):
        raise ConfigError(f"{place}: type the keys {', '.join(get_type_hints(kind))}")
    try:
        return kind(**node)
    except ValidationError as error:
        raise ConfigError(f"{place}: {_describe_problem(kind, error)}") from error


def _describe_problem(kind: type, error: ValidationError) -> str:
    # A mistyped key is also reported as missing, which says less.
    problem = min(error.errors(), key=lambda one: one["type"] == "missing")
    key = ".".join(map(str, problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"{key} is missing"
        case "unexpected_keyword_argument" | "extra_forbidden":
            *path, name = problem["loc"]
            allowed = sorted(get_type_hints(_kind_at(kind, path)))
            return f"{key}: no such key; type {near(str(name), allowed) or ', '.join(allowed)}"
        case "literal_error":
            expected = problem["ctx"]["expected"].replace("'", "")
            return f"{key}={problem['input']}; type {expected}"
    return f"{key} is {problem['input']!r:.60}: {problem['msg']}"


def _kind_at(kind: type, path: list[int | str]) -> type:
    """Return the type to which the keys of a path lead; numbers in it are indices of lists."""
    for key in path:
        if get_origin(kind) is dict:
            kind = get_args(kind)[1]
        elif isinstance(key, str):
            field = get_type_hints(kind)[key]
            kind = field if get_origin(field) is dict else (get_args(field) or (field,))[0]
    return kind
