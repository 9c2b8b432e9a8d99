"""The folder of all configuration files, and their contents, held to types."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from pydantic import BeforeValidator, ConfigDict, ValidationError

from gcbench.core.errors import ConfigError, near

Config = dict[str, Any]
T = TypeVar("T")

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times faster


def conf_directory() -> Path:
    """Return conf/ of the checkout, or its copy inside an installed package."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout / "conf" if (checkout / "pyproject.toml").is_file() else package / "conf"


def choices_in(group: str, config_dir: str | None = None) -> list[str]:
    """Return the choices of a group: the names of its files, ours and those in `config_dir`."""
    folders = [conf_directory(), *([Path(config_dir)] if config_dir else [])]
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def refuse_no_folder(config_dir: str | None) -> None:
    """Raise ConfigError if the folder of a user's own files was mistyped."""
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(
            f"--config-dir {config_dir}: there is no such folder; type one with your "
            "compressor/NAME.yaml in it"
        )


def method_files(config_dir: str | None = None) -> dict[str, Path]:
    """Return the files of all methods by name, ours and those in `config_dir`."""
    refuse_no_folder(config_dir)
    folders = [conf_directory(), *([Path(config_dir)] if config_dir else [])]
    return {
        path.stem: path
        for folder in folders
        for path in sorted((folder / "compressor").glob("*.yaml"))
    }


def form_in(path: Path) -> str:
    """Return whose form of its method a file has: `paper`, `code`, or `ours` if it does not say."""
    return str((read_yaml(path) or {}).get("form", "ours"))


def top_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the top of a file, without Hydra's `@package` line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in comment if "@package" not in line]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise ConfigError if it is not valid YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


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
