"""Groups whose `_target_` may name any class, which has keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from typing_extensions import Self

from gcbench.core.fields import Settings

# Keys that mean the same for any `_target_`; the class itself checks all others.
OF_ANY_TARGET = ("lr", "groups", "match", "hidden", "lr_scale", "interval")


def is_ours(target: Any) -> bool:
    """Return whether a class is gcbench's; keys of any other mean what only that class knows."""
    return target is None or str(target).startswith("gcbench.")


class OpenSettings(Settings):
    """The base class of groups that may have a `_target_`, and with it more keys than its fields.

    Of a class that is not gcbench's only the keys in OF_ANY_TARGET are checked. Without a
    `_target_` a `closed` group has only its fields.
    """

    model_config = ConfigDict(extra="allow")
    closed: ClassVar[bool] = True

    @property
    def target(self) -> str | None:
        """Return the name of the class, or None where `kind` names one."""
        return (self.model_extra or {}).get("_target_")

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, node: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(node, Mapping):
            return handler(node)
        if not is_ours(node.get("_target_")):
            handler({key: node[key] for key in OF_ANY_TARGET if key in node})
            return cls.of(node)
        made = handler(node)
        if cls.closed and made.target is None and made.model_extra:
            name, value = next(iter(made.model_extra.items()))
            problem: Any = {"type": "extra_forbidden", "loc": (name,), "input": value}
            raise ValidationError.from_exception_data(cls.__name__, [problem])
        return made
