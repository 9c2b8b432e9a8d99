"""Groups of parameters that have options, or an optimizer, of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from gcbench.runner.settings.optimizer import OptimizerSettings

CLASS = ("kind", "_target_")  # the keys that name a class, of conf/optimizer or any


class SeveralClasses(Optimizer):
    """Optimizers as one, each of which steps parameters of its own: Muon and AdamW, for example.

    Its groups are theirs, and so is its state, which is saved and loaded like that of any other.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        """Give the parts the groups and the state of the whole."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state


def options_by_group(optimizer: OptimizerSettings) -> list[dict[str, Any]]:
    """Return the optimizer's options, followed by those of each group.

    Those of a group without a class of its own are merged over the optimizer's.
    """
    options = optimizer.as_dict()
    merged = (group if has_class(group) else {**options, **group} for group in optimizer.groups)
    return [options, *merged]


def has_class(group: Mapping[str, Any]) -> bool:
    """Return whether a group's parameters have an optimizer of another class."""
    return any(key in group for key in CLASS)


def hidden_matrices(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that Muon is for: matrices inside of the model.

    They have two dimensions and are neither an embedding's nor those of the output layer, which is
    the last `nn.Linear` in the order in which the model registers its modules.
    """
    embeddings = [m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    outputs = [m for m in model.modules() if isinstance(m, nn.Linear)][-1:]
    others = {id(p) for m in [*embeddings, *outputs] for p in m.parameters()}
    return {id(p) for p in model.parameters() if p.dim() == 2} - others


def parameter_groups(
    model: nn.Module, lr: float, groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the parameters of a model in groups, in the form that torch's optimizers take.

    A parameter has the options of the first of `groups` whose regular expression `match` is found
    in its name, and whose `hidden` says whether it is one of `hidden_matrices`. Its rate is the
    group's `lr`, or else `lr`, times the group's `lr_scale`. Parameters in no group come first.
    Batch normalization has no weight decay unless its group sets one. Raises ValueError for an
    invalid `match` and for a group without parameters.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    undecayed = {id(p) for m in norms for p in m.parameters()}
    hidden = hidden_matrices(model)
    names = {name: p for name, p in model.named_parameters() if p.requires_grad}
    patterns = [_compile(group.get("match", "")) for group in groups]
    parts: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, p in names.items():
        fitting = (
            i
            for i, group in enumerate(groups)
            if patterns[i].search(name) and group.get("hidden") in (None, id(p) in hidden)
        )
        parts.setdefault((next(fitting, len(groups)), id(p) in undecayed), []).append(p)
    for i, group in enumerate(groups):
        if not {(i, False), (i, True)} & parts.keys():
            raise ValueError(_no_parameter(group, [*names]))
    torch_groups = []
    ungrouped_first = sorted(parts.items(), key=lambda part: part[0][0] < len(groups))
    for (i, is_undecayed), params in ungrouped_first:
        options = dict(groups[i]) if i < len(groups) else {}
        rate = options.pop("lr", lr) * options.pop("lr_scale", 1)
        for key in ("match", "hidden"):
            options.pop(key, None)
        decay = {"weight_decay": 0.0} if is_undecayed else {}
        torch_groups.append({"params": params, "lr": rate, "initial_lr": rate, **decay, **options})
    return torch_groups


def _compile(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        raise ValueError(
            f"optimizer.groups: match={match} is not a regular expression ({error}); type a part "
            "of parameters' names, as in match=bias"
        ) from error


def _no_parameter(group: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the error message for a group that has no parameters."""
    if group.get("hidden") is not None:
        return (
            f"optimizer.groups: hidden={str(group['hidden']).lower()} fits no parameter that an "
            "earlier group has left; leave this group out of optimizer.groups"
        )
    return (
        f"optimizer.groups: match={group['match']} is in no parameter's name that an earlier group "
        f"has left; type a part of such names as {', '.join(names[:4])}"
    )
