"""The folders of configuration files, and their contents."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from gcbench.core.errors import ConfigError

Config = dict[str, Any]

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


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raise ConfigError if it is not valid YAML."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
