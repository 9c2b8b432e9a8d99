"""Local steps in the user's own training loop: DiLoCo, in fragments, with any compressor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial, wraps
from types import MethodType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gcbench.core.compressor import Compressor, Grads, offsets_of, split_rows
from gcbench.core.errors import ConfigError
from gcbench.core.library.compress import read_typed, use_codecs
from gcbench.core.library.compression import JointCompression, Typed
from gcbench.core.library.exchange import Kept
from gcbench.core.library.saved import OWN_PARAMETERS, mean_of
from gcbench.core.library.states import (
    not_a_state,
    refuse_other_late,
    refuse_other_optimizer,
    refuse_other_values,
)
from gcbench.core.local_rule import LocalRounds, LocalRule, Pattern
from gcbench.core.parameters import name_without_wrappers, refuse_complex, shapes_of_parameters

KEPT = (
    "local steps",
    "shared",
    "outer",
    "model",
    "optimizer",
)  # in a state, beside compress's
_CHANGED = (
    "within shared_parameters() changes the shared parameters on this worker alone; type "
    "optimizer.step() and load_state_dict() after it"
)


def local_steps(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    every: int = 30,
    compressor: str | Compressor = "none",
    outer_lr: float = 0.7,
    outer_momentum: float = 0.9,
    outer_nesterov: bool = True,
    fragments: int = 1,
    pattern: Pattern = "sequential",
    delay: int = 0,
    mixing: float = 0.0,
    seed: int = 1,
    codec_backend: str = "auto",
    error_every: int | None = None,
    **knobs: Any,
) -> LocalTraining:
    """Let workers train alone, and exchange how far they have come after every H-th step.

        local = gcbench.local_steps(model, optimizer, every=30, compressor="qsgd", bits=4)
        for inputs, targets in batches:                     # of this worker
            loss_function(model(inputs), targets).backward()
            optimizer.step()                                # exchanges in every 30th step
            optimizer.zero_grad()
        with local.shared_parameters():
            evaluate(model)

    This is DiLoCo, `estimator=local_steps` of a run, to the bit (its formulas are in
    `gcbench.core.local_rule.LocalRule`): with the model's parameters x_i, and the parameters x
    that all workers share, of which an outer optimizer keeps the momentum. The model is a plain
    one, without DistributedDataParallel. All workers begin with the parameters and buffers of
    worker 0, and take equally many optimizer steps: who is in an exchange waits for the others.
    Steps that a GradScaler skips do not count, so prefer bf16. Buffers are not exchanged.

    `fragments=3, pattern="strided", delay=1, mixing=0.5` is Streaming DiLoCo: a third of the layers
    in every tenth step, exchanged during the next one. SparseLoCo is `compressor="sparseloco",
    outer_lr=1.0, outer_momentum=0.0, outer_nesterov=False`.

    If a worker's parameters are not finite when they are exchanged, those of all workers are NaN.

    Args:
        model: has the parameters, of which those that require a gradient are exchanged.
        optimizer: the worker's own, such as AdamW, whose state is not exchanged; or a list of all
            that step the model, such as Muon and AdamW, which take a step when each has stepped.
            One that wraps others, such as slow weights, is given in their place.
        every: the number H of optimizer steps between two exchanges of a parameter.
        compressor: as in `compress`; it codes the pseudo-gradients x - x_i.
        outer_lr: the outer learning rate; 1 with `outer_momentum=0` averages parameters.
        outer_momentum: the outer optimizer's momentum.
        outer_nesterov: whether that looks ahead along the momentum.
        fragments: parts of the model that are exchanged in turn, in different steps.
        pattern: "sequential" fragments of about as many values, or "strided": layers in turn.
        delay: steps that the worker takes while an exchange is under way.
        mixing: weight of the worker's own parameters where it takes the shared ones.
        seed, codec_backend, error_every: as in `compress`.
        **knobs: as in `compress`.

    Returns:
        A handle as of `compress`, whose `ratio` refers to fp32 gradients in every step. Its
        `state_dict()` is all that this worker needs to go on, with the model, the optimizers and
        the parameters that are shared: save it with `gather_to=0`, or on every rank.

    Raises:
        ConfigError: as `compress` does.
    """
    optimizers = optimizers_of(model, optimizer)
    typed = read_typed(compressor, knobs, seed, error_every)
    try:
        steps = LocalRule(
            every=every,
            fragments=fragments,
            pattern=pattern,
            delay=delay,
            mixing=mixing,
            outer_lr=outer_lr,
            outer_momentum=outer_momentum,
            outer_nesterov=outer_nesterov,
        )
        steps.refuse_method(model, typed.method)
    except ValueError as error:
        raise ConfigError(str(error).replace("estimator.", "")) from error
    use_codecs(codec_backend, next(model.parameters()).device.type)
    return LocalTraining(model, optimizers, steps, typed)


class LocalTraining(JointCompression):
    """The local steps of a worker, made by `local_steps`."""

    maker: ClassVar[str] = "local_steps"

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        steps: LocalRule,
        typed: Typed,
    ) -> None:
        group = dist.group.WORLD
        assert isinstance(group, dist.ProcessGroup)
        self._model, self._optimizers, self._rule = model, optimizers, steps
        self._own = trained_parameters(model)
        shapes = shapes_of_parameters(model)
        self._shapes = {name_without_wrappers(name): shape for name, shape in shapes.items()}
        offsets = offsets_of({name: p.numel() for name, p in self._own.items()})
        self._steps = self._counted = 0  # since training began, and since this was made
        device = next(iter(self._own.values())).device
        super().__init__(
            typed,
            group,
            device,
            {"parameters": Kept(typed.seed, offsets, self._shapes, steps.fragments)},
            parameters={name: list(p.shape) for name, p in self._own.items()},
        )
        self._refuse_other_arguments(
            {
                **{name: getattr(steps, name) for name in steps.__dataclass_fields__},
                "parameters": self._identity["parameters"],
            }
        )
        if steps.delay:  # an exchange under way must not meet the collectives of the user's loop
            self._exchange.take_own_group()
        take_from_first(model, group)
        self._shared = {name: nn.Parameter(p.detach().clone()) for name, p in self._own.items()}
        self._outer = steps.make_outer(self._shared)
        self._rounds = LocalRounds(steps, self._shared, [self._own])
        self._shows_shared = False
        self._counter = OptimizerSteps(optimizers, self._end_step)

    def __repr__(self) -> str:
        exchanges = self._kept["parameters"].exchanges
        return (
            f"<gcbench.local_steps {self.name}: {self._exchange.comm.workers} workers, {exchanges} "
            f"exchanges in {self._steps} steps, {self.ratio:.4g}x fewer bits than fp32 gradients "
            "in every step>"
        )

    @property
    def ratio(self) -> float:
        """Bits of fp32 gradients in every step of this handle over bits sent; NaN before."""
        bits = 32 * self._counted * sum(p.numel() for p in self._own.values())
        return bits / self._own_bits if self._own_bits else math.nan

    @contextmanager
    def shared_parameters(self) -> Iterator[None]:
        """Put the parameters that all workers share into the model, for the length of the context.

        They are those to evaluate and to publish; between exchanges, the model has the worker's.

        Raises ConfigError if they are changed: it would be on this worker alone.
        """
        own = {name: p.data for name, p in self._own.items()}
        try:
            self._shows_shared = True
            for name, p in self._own.items():
                p.data = self._shared[name].detach().clone()
            versions = {name: p._version for name, p in self._own.items()}
            yield
            for name, p in self._own.items():
                if p._version != versions[name]:
                    raise ConfigError(f"{name} {_CHANGED}")
        finally:
            self._shows_shared = False
            for name, p in self._own.items():
                p.data = own[name]

    def remove(self) -> None:
        """Let the worker train alone from now on, with the parameters that it has."""
        if self._counter.remove():
            self._exchange.close()

    @torch.no_grad()
    def _end_step(self) -> None:
        """Exchange what is due after a step of the worker's optimizers."""
        if self._shows_shared:
            raise ConfigError(f"optimizer.step() {_CHANGED}")
        self._steps += 1
        self._counted += 1
        kept = self._kept["parameters"]
        begin, take = partial(self._exchange.begin, kept), partial(self._exchange.take, kept)
        if late := self._rounds.exchange(self._steps, self._rows_of, begin, take):
            self._count(kept, sum(update.numel() for update in late.update.values()))
            late.give(self._shared)
            self._outer.step()
            self._outer.zero_grad()
        self._rounds.adopt(self._steps)

    def _rows_of(self, names: Sequence[str]) -> Grads:
        self._refuse_late_parameters()
        shapes = {name: self._own[name].shape for name in names}
        size = sum(shape.numel() for shape in shapes.values())
        flat = torch.empty(1, size, dtype=torch.float32, device=self._device)
        return split_rows(flat, shapes)

    def _refuse_late_parameters(self) -> None:
        for name in trained_parameters(self._model):
            if name not in self._own:
                raise ConfigError(
                    f"{name}: this parameter began to require a gradient after local_steps was "
                    "called; type handle.remove(), and local_steps again after requires_grad_(True)"
                )

    def _state(self) -> dict[str, Any]:
        kept = self._kept["parameters"]
        self._exchange.settle(kept)
        shared = {name: p.detach() for name, p in self._shared.items()}
        model = {name_without_wrappers(k): x for k, x in self._model.state_dict().items()}
        optimizers = [optimizer.state_dict() for optimizer in self._optimizers]
        parts = self._steps, shared, self._outer.state_dict(), model, optimizers
        return {**super()._state(), **dict(zip(KEPT, parts, strict=True))}

    def _read(self, saved: Mapping[str, Any]) -> Mapping[str, Kept]:
        read = super()._read(saved)
        for key in KEPT:
            if key not in saved:
                raise not_a_state(f"no {key}")
        steps = saved["local steps"]
        if type(steps) is not int or steps < 0:
            raise not_a_state(f"local steps={steps!r:.60}")
        refuse_other_values("shared", saved["shared"], self._shared)
        refuse_other_late(read["parameters"], self._own)
        model = {name_without_wrappers(k): x for k, x in self._model.state_dict().items()}
        refuse_other_values("model", saved["model"], model, finite=self._own)
        refuse_other_optimizer("outer", saved["outer"], self._outer)
        theirs = saved["optimizer"]
        if not isinstance(theirs, list) or len(theirs) != len(self._optimizers):
            number = f"{len(theirs)} optimizers" if isinstance(theirs, list) else "no optimizers"
            raise not_a_state(f"{number} for {len(self._optimizers)}")
        for state, optimizer in zip(theirs, self._optimizers, strict=True):
            refuse_other_optimizer("optimizer", state, optimizer)
        return read

    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        for names in self._rule.cut({name: p.numel() for name, p in self._own.items()}):
            self._refuse_other_states({k: self._shapes[k] for k in names}, [read.of(names)])
        return read

    def _unmergeable(self, states: Sequence[Mapping[str, Any]], merge: bool) -> str | None:
        return super()._unmergeable(states, merge) if merge else OWN_PARAMETERS

    def _merge(
        self, states: Sequence[Mapping[str, Any]], shares: Mapping[int, float]
    ) -> dict[str, Any]:
        """Return the state of a worker that begins from the mean of those that it replaces."""
        theirs, weights = [states[k] for k in shares], [*shares.values()]
        own = mean_of([{k: state["model"][k] for k in self._own} for state in theirs], weights)
        return {
            **super()._merge(states, shares),
            "model": {**states[0]["model"], **own},  # with worker 0's buffers, as in a run
            "optimizer": mean_of([state["optimizer"] for state in theirs], weights),
        }

    def _steps_in(self, saved: Mapping[str, Any]) -> dict[str, int]:
        return {**super()._steps_in(saved), "local": saved["local steps"]}

    @torch.no_grad()
    def _replace(self, kept: Mapping[str, Kept], saved: Mapping[str, Any]) -> None:
        self._exchange.settle(self._kept["parameters"])
        super()._replace(kept, saved)
        self._steps = saved["local steps"]
        for name, p in self._shared.items():
            p.copy_(saved["shared"][name])
        # Optimizers would go on in the tensors of the state.
        self._outer.load_state_dict(deepcopy(saved["outer"]))
        names = {name_without_wrappers(name): name for name in self._model.state_dict()}
        self._model.load_state_dict({names[k]: x for k, x in saved["model"].items()})
        for optimizer, state in zip(self._optimizers, saved["optimizer"], strict=True):
            optimizer.load_state_dict(deepcopy(state))


class OptimizerSteps:
    """Calls `done` when each of some optimizers has stepped since the last call."""

    def __init__(self, optimizers: Sequence[Optimizer], done: Callable[[], None]) -> None:
        self._done: Callable[[], None] | None = done
        self._everyone = set(range(len(optimizers)))
        self._waiting = set(self._everyone)
        for k, optimizer in enumerate(optimizers):
            _watch(optimizer, partial(self._count, k))

    def remove(self) -> bool:
        """Call `done` no more; return whether it would have been called until now."""
        was, self._done = self._done, None
        return was is not None

    def _count(self, optimizer: int) -> None:
        self._waiting.discard(optimizer)
        if not self._waiting and self._done:
            self._waiting = set(self._everyone)
            self._done()


def _watch(optimizer: Optimizer, stepped: Callable[[], None]) -> None:
    """Call `stepped` at the end of each step of an optimizer.

    One that wraps another may do more after the other's step, such as moving slow weights, or skip
    that, as where gradients overflowed; and its own `step` may not be what is called.
    """
    wrapped = [x for x in vars(optimizer).values() if isinstance(x, Optimizer)]
    # Only these call the hooks of PyTorch: `Optimizer.__init__` arranges that.
    if not wrapped and getattr(type(optimizer).step, "hooked", False):
        optimizer.register_step_post_hook(lambda *_: stepped())
        return
    inside, moved = False, False

    def note() -> None:
        nonlocal moved
        moved = True
        if not inside:
            end()

    def end() -> None:
        nonlocal moved
        if moved or not wrapped:
            moved = False
            stepped()

    for inner in wrapped:
        _watch(inner, note)
    step = optimizer.step

    @wraps(step)
    def watched(_: Optimizer, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            result = step(*args, **kwargs)
        finally:
            inside = False
        end()
        return result

    # A method, as learning rate schedules take its function.
    optimizer.step = MethodType(watched, optimizer)  # type: ignore[method-assign]


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, by their names in the user's model."""
    return {
        name_without_wrappers(name): p for name, p in model.named_parameters() if p.requires_grad
    }


@torch.no_grad()
def take_from_first(model: nn.Module, group: dist.ProcessGroup) -> None:
    """Give the model the parameters and buffers of worker 0."""
    for x in (*model.parameters(), *model.buffers()):
        message = x.detach().contiguous()
        dist.broadcast(message, group=group, group_src=0)
        x.copy_(message)


def optimizers_of(model: nn.Module, given: Optimizer | Sequence[Optimizer]) -> Sequence[Optimizer]:
    """Return the optimizers that step the model. Raises ConfigError for no local steps."""
    if isinstance(model, (DistributedDataParallel, FSDPModule)):
        raise ConfigError(
            f"{type(model).__name__} averages gradients in every step; type local_steps(model, "
            "optimizer, ...) with a model that is not wrapped"
        )
    optimizers: list[Any] = [*given] if isinstance(given, (list, tuple)) and given else [given]
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"{type(optimizer).__name__} is not a torch.optim.Optimizer; type the one that "
                "steps the model, as in local_steps(model, optimizer), or a list of all that do"
            )
    refuse_complex(dict(model.named_parameters()))
    stepped = {p for one in optimizers for group in one.param_groups for p in group["params"]}
    trained = trained_parameters(model)
    if stepped.isdisjoint(trained.values()):
        raise ConfigError(
            "the optimizer has none of this model's parameters; type local_steps(model, optimizer) "
            "with the optimizer that was made from model.parameters()"
        )
    if left := [name for name, p in trained.items() if p not in stepped]:
        raise ConfigError(
            f"{left[0]}: no given optimizer steps this parameter; type "
            "local_steps(model, [optimizer, other]) with all that step the model, or "
            "requires_grad_(False) if none does"
        )
    if not dist.is_initialized():
        raise ConfigError(
            "there is no process group; type local_steps inside of gcbench.join(), or after "
            "init_process_group"
        )
    return optimizers
