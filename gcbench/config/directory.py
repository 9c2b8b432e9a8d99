"""The folder of all configuration files."""

from __future__ import annotations

from pathlib import Path


def conf_directory() -> Path:
    """Return conf/ of the checkout, or the copy inside the package where that is installed."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent
    return checkout / "conf" if (checkout / "pyproject.toml").is_file() else package / "conf"


def choices_in(group: str) -> list[str]:
    """Return the choices of a group: the names of its files."""
    return sorted(path.stem for path in (conf_directory() / group).glob("*.yaml"))
