"""The folder of all configuration files, and their contents, held to types."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
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


PACKAGES = "gcbench.conf"
"""The entry points of packages that bring files, such as compressor/NAME.yaml, in a folder:

    [project.entry-points."gcbench.conf"]
    mine = "my_package:conf"
"""


@cache
def package_folders() -> tuple[Path, ...]:
    """Return the folders that installed packages bring, by their entry points `PACKAGES`.

    A package is not imported. Raises ConfigError for one without such a folder.
    """
    folders = []
    for entry in entry_points(group=PACKAGES):
        package, _, name = entry.value.partition(":")
        found = find_spec(package) if package.isidentifier() else None
        roots = (found and found.submodule_search_locations) or []
        folder = next((Path(root) / name for root in roots if (Path(root) / name).is_dir()), None)
        if folder is None:
            raise ConfigError(
                f"entry point {PACKAGES}: {entry.name} = {entry.value!r}: there is no such folder; "
                'type "my_package:conf", a folder inside of the package'
            )
        folders.append(folder)
    return tuple(folders)


def conf_folders(config_dir: str | None = None) -> list[Path]:
    """Return the folders of configuration files: ours, those of packages, and `config_dir`."""
    return [conf_directory(), *package_folders(), *([Path(config_dir)] if config_dir else [])]


def file_of(group: str, choice: str) -> Path:
    """Return the file of a choice of a group; ours, which is missing, if there is none."""
    ours, *others = (folder / group / f"{choice}.yaml" for folder in conf_folders())
    return next((path for path in reversed(others) if path.is_file()), ours)


def included_in(path: Path, name: str) -> Path:
    """Return the file that a list of defaults names: beside its own, else ours of that group."""
    here = path.parent / f"{name}.yaml"
    return here if here.is_file() else conf_directory() / path.parent.name / f"{name}.yaml"


def choices_in(group: str, config_dir: str | None = None) -> list[str]:
    """Return the choices of a group: the names of its files in all folders."""
    folders = conf_folders(config_dir)
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})


def refuse_no_folder(config_dir: str | None) -> None:
    """Raise ConfigError if the folder of a user's own files was mistyped."""
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(
            f"--config-dir {config_dir}: there is no such folder; type one with your "
            "compressor/NAME.yaml in it"
        )


def method_files(config_dir: str | None = None) -> dict[str, Path]:
    """Return the files of all methods by name, in all folders."""
    refuse_no_folder(config_dir)
    return {
        path.stem: path
        for folder in conf_folders(config_dir)
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
