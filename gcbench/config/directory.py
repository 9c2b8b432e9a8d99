"""The folder of all configuration files, and their content."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from gcbench.config.errors import ConfigError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times faster


def conf_directory() -> Path:
    """Return conf/ of the checkout, or the copy inside the package where that is installed."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout / "conf" if (checkout / "pyproject.toml").is_file() else package / "conf"


def choices_in(group: str) -> list[str]:
    """Return the choices of a group: the names of its files."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))


def top_comment(path: Path) -> list[str]:
    """Return the comment on top of a file, a text a line, without where Hydra puts its keys."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("#"), lines)
    return [line.lstrip("# ") for line in comment if "@package" not in line]


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; ConfigError where it is none."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
