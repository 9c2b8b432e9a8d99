"""The model of one process, and the gradients `[w, ...]` of the workers in it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from gcbench.core.codecs.noise import mix, site_number
from gcbench.core.comm.ddp import Arrived, DdpHook, refuse_sparse_gradient
from gcbench.core.compressor import Grads, offsets_of, split_rows
from gcbench.core.parameters import shapes_of_parameters
from gcbench.core.private import use_own_compiler_cache
from gcbench.runner.data import Task
from gcbench.runner.records.clock import Clock
from gcbench.runner.settings.groups import TrainerSettings
from gcbench.runner.train.precision import autocast_bf16
from gcbench.runner.train.scores import loss_of


class _Collector:
    """Passes each of DDP's buckets on when it is complete, and leaves its gradients as they are."""

    by_bucket = True

    def __init__(self, take: Callable[[Arrived], None]) -> None:
        self.take = take

    def begin_forward(self, ddp: DistributedDataParallel) -> None: ...

    def finish(self, taken: Any, earlier: Any, used: Any) -> None: ...


class Replica:
    """The model of a process, whose workers share the parameters.

    Each worker has its own row of gradients, dropout draws and hidden state.

    Rows are float32 whatever the type of the parameters: gradients of bf16 parameters are cast.

    Batch normalization treats each worker's batch separately; running statistics, including those
    of instance normalization, follow worker 0, as in DDP. Each worker has its own copy of all other
    buffers, such as the vectors of a spectral norm, until a test, which all make with worker 0's.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        workers: range,
        device: torch.device,
        settings: TrainerSettings,
    ):
        self.task = task
        self.workers = workers
        self.device = device
        self.recurrent = is_recurrent(model)
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.model = model.to(device)
        for module in self.model.modules():
            if isinstance(module, nn.Conv2d):
                module.to(memory_format=layout)
        self._channels_last = settings.channels_last
        if settings.compile:
            use_own_compiler_cache()
        self._forward: Callable[..., Any] = (
            torch.compile(self.model) if settings.compile else self.model
        )
        self._bf16 = settings.precision == "bf16"
        self._label_smoothing = settings.label_smoothing
        self._accumulate = settings.accumulate
        self.parameters = {k: p for k, p in self.model.named_parameters() if p.requires_grad}
        self.flat, self.grads = self._make_rows()
        self._arrived: list[set[str]] = []  # names per worker, in this step
        self.unused: set[str] = set()  # parameters that did not affect the last loss
        self._other: tuple[Tensor, Grads] | None = None
        self._plain_forward = self._forward
        self._hooked: DistributedDataParallel | None = None
        self._buckets: DistributedDataParallel | None = None  # set if steps go through it
        self.shapes = shapes_of_parameters(self.model)
        self.offsets = offsets_of({k: p.numel() for k, p in self.parameters.items()})
        self.carries: list[Any] = [None] * len(workers)
        modules = [*self.model.modules()]
        self._norms = [m for m in modules if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        # They update their statistics whatever track_running_stats says, unless the momentum is 0.
        self._momenta = {
            m: m.momentum
            for m in modules
            if isinstance(m, nn.modules.instancenorm._InstanceNorm) and m.track_running_stats
        }
        with_statistics = {*self._norms, *self._momenta}
        self._buffers = [
            (m, name)
            for m in modules
            if m not in with_statistics
            for name, _ in m.named_buffers(recurse=False)
        ]
        self._own_buffers: dict[int, list[Tensor]] = {}  # of all rows but the first

    @property
    def numel(self) -> int:
        return self.flat.shape[1]

    @property
    def dense_bits(self) -> int:
        """Return the bits of a gradient in fp32, which ratios refer to for any parameters."""
        return 32 * self.numel

    def _make_rows(self) -> tuple[Tensor, Grads]:
        """Return rows for all gradients `[w, n]`, and a view of each parameter's part of them."""
        shapes = {k: p.shape for k, p in self.parameters.items()}
        numel = sum(shape.numel() for shape in shapes.values())
        flat = torch.zeros(len(self.workers), numel, dtype=torch.float32, device=self.device)
        return flat, split_rows(flat, shapes)

    def swap_rows(self) -> None:
        """Keep the rows of the last step, and use the other set of rows for the next."""
        last = self.flat, self.grads
        self.flat, self.grads = self._other or self._make_rows()
        self._other = last

    def hook_buckets(self, mib: float, on_bucket: Callable[[Grads], None]) -> None:
        """Make backward passes call `on_bucket` with a bucket's rows once these are complete.

        Buckets hold `mib` MiB of parameters or a little more. DDP itself exchanges only the order
        in which rank 0 saw the gradients, once, after the first step, which has a single bucket:
        later buckets follow that order. `p.grad` holds the worker's own gradient.
        """
        names = {p: name for name, p in self.parameters.items()}

        def collect(arrived: Arrived) -> None:
            bucket = {names[p]: gradient for p, gradient in arrived.gradients.items()}
            for name, gradient in bucket.items():
                self.grads[name][0].copy_(gradient)
            on_bucket({name: rows for name, rows in self.grads.items() if name in bucket})

        for name, p in self.parameters.items():  # DDP fails on a sparse one before it is collected
            p.register_hook(partial(refuse_sparse_gradient, name))
        with warnings.catch_warnings():
            # Newer versions of PyTorch have another name for `broadcast_buffers`.
            warnings.simplefilter("ignore", FutureWarning)
            self._hooked = DistributedDataParallel(
                self._plain_forward,
                broadcast_buffers=False,
                bucket_cap_mb=mib,
                gradient_as_bucket_view=True,
            )
        DdpHook.of(self._hooked).receiver = _Collector(collect)
        self.use_hook(True)

    def use_hook(self, used: bool) -> None:
        """Choose whether the next steps go through the hook of `hook_buckets`."""
        self._buckets = self._hooked if used else None
        self._forward = self._plain_forward if self._buckets is None else self._buckets

    def begin(self) -> None:
        """Prepare for the gradients of a step, which replace those in the rows."""
        self.model.train()
        self._arrived = [set() for _ in self.workers]
        for row in range(1, len(self.workers)):
            if row not in self._own_buffers:
                self._own_buffers[row] = [buffer.clone() for buffer in self.buffers_of(0)]

    @contextmanager
    def parameters_at(self, point: Sequence[Tensor]) -> Iterator[None]:
        """Replace the parameters' data by these tensors, one each, within the context."""
        before = [p.data for p in self.parameters.values()]
        self._set(point)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, point: Sequence[Tensor]) -> None:
        for p, tensor in zip(self.parameters.values(), point, strict=True):
            p.data = tensor

    def backward(
        self,
        row: int,
        batch: tuple[Tensor, Tensor],
        key: tuple[int, int],
        clock: Clock,
        weight: float = 1.0,
    ) -> Tensor:
        """Add `weight` times the gradient of a worker's batch to its row; return the mean loss.

        `key` is (seed, step), from which dropout is seeded.
        """
        worker = self.workers[row]
        self._seed_dropout(mix(key[0], site_number("dropout"), key[1], worker) >> 1)
        for norm in self._norms:
            norm.track_running_stats = worker == 0
        for instance_norm, momentum in self._momenta.items():
            instance_norm.momentum = momentum if worker == 0 else 0.0
        for p in self.parameters.values():
            p.grad = None
        losses = []
        collecting = self._collecting(row) if self._buckets is None else nullcontext()
        with self._with_buffers(row), collecting:
            for i, (inputs, targets) in enumerate(_micro_batches(batch, self._accumulate)):
                clock.lap("forward")
                last = i == self._accumulate - 1
                with nullcontext() if self._buckets is None or last else self._buckets.no_sync():
                    outputs = self._outputs(inputs, row)
                    loss = loss_of(self.task, outputs, targets, self._label_smoothing)
                    loss = loss / (len(batch[0]) / len(inputs))
                    clock.lap("backward")
                    loss.backward(torch.full_like(loss, weight))
                losses.append(loss.detach())
        return torch.stack(losses).sum()

    def buffers_of(self, row: int) -> list[Tensor]:
        """Return a worker's buffers, without the statistics of norms, which are worker 0's."""
        own = self._own_buffers.get(row)
        return [getattr(m, name) for m, name in self._buffers] if own is None else own

    def set_buffers(self, row: int, tensors: Sequence[Tensor]) -> None:
        """Make these a worker's buffers."""
        if row == 0:
            self._swap_buffers(tensors)
        else:
            self._own_buffers[row] = [*tensors]

    @contextmanager
    def _with_buffers(self, row: int) -> Iterator[None]:
        """Replace the model's buffers, which are those of the first row, by another row's."""
        if row == 0:
            yield
            return
        first = self._swap_buffers(self._own_buffers[row])
        try:
            yield
        finally:
            self._own_buffers[row] = self._swap_buffers(first)

    def _swap_buffers(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Make these the model's buffers; return those before."""
        before = [getattr(m, name) for m, name in self._buffers]
        for (m, name), tensor in zip(self._buffers, tensors, strict=True):
            setattr(m, name, tensor)
        return before

    @contextmanager
    def _collecting(self, row: int) -> Iterator[None]:
        """Make backward passes move each gradient to a worker's row as soon as it is complete.

        This passes over memory less often than zeroing the rows and adding gradients to them.
        """
        arrived = self._arrived[row]

        def collect(name: str, p: Tensor) -> None:
            assert p.grad is not None
            refuse_sparse_gradient(name, p.grad)
            if name in arrived:
                self.grads[name][row] += p.grad
            else:
                self.grads[name][row].copy_(p.grad)
                arrived.add(name)
            p.grad = None

        handles = [
            p.register_post_accumulate_grad_hook(partial(collect, name))
            for name, p in self.parameters.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self.unused = self.grads.keys() - arrived
        for name in self.unused:
            self.grads[name][row].zero_()
            arrived.add(name)

    def _seed_dropout(self, seed: int) -> None:
        """Seed dropout with the same effect as torch.manual_seed, but faster.

        That function formats the stack on every call in a process that has not used a GPU yet.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(seed)

    def evaluate(self, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """Return the outputs for a test batch, and the hidden state after it."""
        with torch.inference_mode(), self._autocast():
            inputs = self._to_layout(inputs)
            if self.recurrent:
                outputs, carry = self.model(inputs, carry)
                return outputs, carry
            return self.model(inputs), None

    def begin_evaluation(self) -> None:
        self.model.eval()
        self._own_buffers = {}
        for norm in self._norms:
            norm.track_running_stats = True

    def forget_carries(self) -> None:
        """Reset the hidden states, as the text begins anew at the start of an epoch."""
        self.carries = [None] * len(self.workers)

    def _outputs(self, inputs: Tensor, row: int) -> Tensor:
        with self._autocast():
            if not self.recurrent:
                outputs: Tensor = self._forward(self._to_layout(inputs))
                return outputs
            outputs, carry = self._forward(inputs, self.carries[row])
        self.carries[row] = tree_map_only(Tensor, Tensor.detach, carry)
        return outputs

    def _to_layout(self, inputs: Tensor) -> Tensor:
        if self._channels_last and inputs.dim() == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast_bf16(self.device.type) if self._bf16 else nullcontext()


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a model carries a hidden state from one window of text to the next."""
    return bool(getattr(model, "recurrent", False))


def _micro_batches(batch: tuple[Tensor, Tensor], count: int) -> list[tuple[Tensor, Tensor]]:
    inputs, targets = batch
    return list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
