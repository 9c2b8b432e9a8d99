"""The base class of all studies, and functions that find them in the modules of this package."""

from __future__ import annotations

import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import gcbench.studies
from gcbench.compressors import Compressor
from gcbench.config import ConfigError, compose_overrides, read_keys, resolve
from gcbench.launch.instantiate import make_compressor
from gcbench.predict.payload import Shapes
from gcbench.predict.subject import facts_of, shapes_of_model

Row = dict[str, Any]
"""A row: `row` is its title, the others are columns: numbers, text, or lists for a figure."""


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """A measurement, whose settings are the fields of its class.

    The defaults are the settings of the results that are kept in the repository. The docstring of
    a subclass says what is measured, for which paper, and how. Numbers must be above 0, and a list
    of names may only hold names of the default.
    """

    outputs: str = "outputs"  # folder for studies/<name>.json

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """Measure, and yield one row at a time."""

    def settings(self) -> dict[str, Any]:
        """Return the settings on which the numbers depend."""
        return {k: v for k, v in asdict(self).items() if k != "outputs"}


def study_names() -> list[str]:
    modules = [module.name for module in pkgutil.iter_modules(gcbench.studies.__path__)]
    return [name for name in modules if _in(name)]


def class_of(name: str) -> type[Study]:
    known = study_names()
    if name not in known:
        raise ConfigError(
            f"{name}: there is no such study; type one of {', '.join(known)}, or gcbench study list"
        )
    return _in(name)[0]


def _in(name: str) -> list[type[Study]]:
    module = import_module(f"gcbench.studies.{name}")
    classes = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__
    ]
    return [c for c in classes if issubclass(c, Study) and not inspect.isabstract(c)]


def make_study(name: str, arguments: Sequence[str]) -> Study:
    """Return a study with the settings that were typed as key=value.

    Raises ConfigError for an unknown study, key or value.
    """
    kind = class_of(name)
    return kind(**read_keys(kind, arguments))


def compressor(*overrides: str) -> Compressor:
    """Return the compressor that overrides such as compressor=qsgd bits=4 choose."""
    return make_compressor(resolve(compose_overrides(overrides)).compressor)


def model_shapes(*overrides: str) -> Shapes:
    """Return the shapes of the parameters of a model, by overrides such as model=resnet18."""
    config = resolve(compose_overrides(overrides))
    return shapes_of_model(config.model, facts_of(config.choices["model"], None))
