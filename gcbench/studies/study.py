"""What a study is, and how it is found: a file of this room with a class of it."""

from __future__ import annotations

import inspect
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import import_module
from typing import Any

import gcbench.studies
from gcbench.compressors import Compressor
from gcbench.config import ConfigError, compose_words, method_node, resolve
from gcbench.launch.instantiate import make

Row = dict[str, Any]
"""`row` is its title; the others are columns: numbers, text, or lists and dictionaries for a figure."""


@dataclass(frozen=True, kw_only=True)
class Study(ABC):
    """The fields of a subclass are its settings, and their defaults those of what is kept in the repository. Its docstring says
    what is measured, of which paper, and how. Numbers are above 0; a list of names holds some of the default's."""

    outputs: str = "outputs"  # folder for studies/<name>.json

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not _fits(value, field.default):
                raise ValueError(f"{field.name}={_typed(value)}: type {_hint(field.name, field.default)}")

    @abstractmethod
    def rows(self) -> Iterator[Row]: ...

    def settings(self) -> dict[str, Any]:
        """What the numbers hang on."""
        return {k: v for k, v in asdict(self).items() if k != "outputs"}


def _fits(value: Any, kept: Any) -> bool:
    """Whether a setting may be `value` where the default is `kept`."""
    if isinstance(kept, tuple):
        if not isinstance(value, (list, tuple)) or not value:
            return False
        return all(v in kept if isinstance(kept[0], str) else _fits(v, kept[0]) for v in value)
    if isinstance(kept, (int, float)):
        kinds = int if isinstance(kept, int) else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool) and value > 0
    return True


def _hint(name: str, kept: Any) -> str:
    if isinstance(kept, tuple):
        some = "some of" if isinstance(kept[0], str) else "a list of numbers above 0, as in"
        return f"{some} {name}={_typed(kept)}"
    return f"a {'whole ' if isinstance(kept, int) else ''}number above 0, as in {name}={kept}"


def _typed(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def names() -> list[str]:
    modules = [module.name for module in pkgutil.iter_modules(gcbench.studies.__path__)]
    return [name for name in modules if _in(name)]


def class_of(name: str) -> type[Study]:
    known = names()
    if name not in known:
        raise ConfigError(f"{name}: there is no such study; type one of {', '.join(known)}, or gcbench-study list")
    return _in(name)[0]


def _in(name: str) -> list[type[Study]]:
    module = import_module(f"gcbench.studies.{name}")
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]
    return [c for c in classes if issubclass(c, Study) and not inspect.isabstract(c)]


def made(name: str, words: Sequence[str]) -> Study:
    """Of settings as they were typed, key=value."""
    kind = class_of(name)
    study: Study = make(method_node(f"{kind.__module__}.{kind.__qualname__}", words), name)
    return study


def compressor(*words: str) -> Compressor:
    """As `gcbench` makes it of these words, such as compressor=qsgd bits=4."""
    found: Compressor = make(resolve(compose_words(words))["compressor"], "compressor")
    return found
