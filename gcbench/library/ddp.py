"""Compressors in a training loop of the user's own, under DistributedDataParallel."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gcbench.comm import Comm, GlooTransport, NcclTransport, WholeGradient
from gcbench.compressors import Compressor, State, compressed_share, refuse_other_tensors
from gcbench.compressors.virtual import aggregate
from gcbench.config import ConfigError, conf_directory, method_keys, near, resolve_words, to_words
from gcbench.launch.instantiate import make
from gcbench.records.summary import advice_on_share, share_in_words


def compress(
    module: nn.Module, compressor: str | Compressor, *, seed: int = 1, **knobs: Any
) -> Compression:
    """Let backward passes of a DistributedDataParallel exchange gradients by a compressor.

        model = DistributedDataParallel(model)
        compression = gcbench.compress(model, "powersgd", rank=2)
        ...  # the loop stays as it is, with any optimizer, no_sync() and autocast
        print(compression.bits_sent)

    The optimizer finds in `p.grad` the update that all workers agree on, in place of the mean
    gradient. With AdamW it is this update from which both moments are made; error feedback stays
    with the gradients, before the optimizer. `p.grad` of micro-batches is compressed once, when
    all but the last run under `no_sync()`.

    A method sees the whole gradient of a step. Its exchange begins when the last bucket of DDP is
    complete, so none of it is hidden under the backward pass, as part of DDP's own is.

    A step whose update is not finite leaves the error-feedback residual as it was, so that
    `torch.amp.GradScaler` can skip it. When its scale changes, the residual keeps the old one.

    Args:
        module: the DistributedDataParallel, over gloo or NCCL, with one model a process. It takes
            one communication hook in its life; after `remove()` it takes another compressor.
        compressor: a choice of conf/compressor, as `gcbench methods` lists them, or a Compressor,
            as `gcbench.compressors.build` makes them.
        seed: of random rounding; equal on all workers.
        **knobs: the keys of conf/compressor/<compressor>.yaml, such as `rank`, `bits`,
            `error_feedback`, `dense_steps` (first steps without compression) and `min_size`
            (tensors of fewer values travel whole). Those that are left out have the file's values.

    Returns:
        A handle that counts bits, and saves and loads the compressor's state.

    Raises:
        ConfigError: the module, the compressor or a knob does not fit; what to type instead.
    """
    ddp = _refuse_other_modules(module)
    if isinstance(compressor, str):
        return Compression(ddp, _make_compressor(ddp, compressor, knobs), seed)
    if knobs:
        raise ConfigError(
            f"{next(iter(knobs))}: a Compressor has its knobs already; type them where it is made"
        )
    return Compression(ddp, compressor, seed)


class Compression:
    """A compressor in the backward passes of a DistributedDataParallel, made by `compress`."""

    def __init__(self, ddp: DistributedDataParallel, compressor: Compressor, seed: int) -> None:
        self.compressor = compressor
        self._seed = seed
        self._parameters = _parameters_of(ddp)
        self._comm = _comm_of(ddp)
        self._step = 0
        self._state = State()
        self._hook = _free_hook_of(ddp)
        self._hook.on_gradients = self._exchange

    @property
    def bits_sent(self) -> int:
        """Payload bits that this worker handed to collectives so far, as in `result.json`."""
        return self._comm.meter.sent_bits[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the bits and the compressor's state, for `torch.save`.

        The residual is this worker's own: every worker saves its state, and loads it again.
        """
        return {
            "compressor": repr(self.compressor),
            "workers": self._comm.workers,
            "worker": self._comm.local.start,
            "step": self._step,
            "state": [(layer.shared, layer.per_worker) for layer in self._state.layers()],
            "traffic": self._comm.meter.state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned. Raises ConfigError: it is of another worker."""
        expected = self.state_dict()
        for key in ("compressor", "workers", "worker"):
            if state_dict[key] != expected[key]:
                raise ConfigError(
                    f"this state has {key}={state_dict[key]}, where {expected[key]} goes on; load "
                    "the state that this worker saved, with the same compressor and number of "
                    "workers"
                )
        device = next(iter(self._parameters)).device
        self._step = state_dict["step"]
        self._state = State.of_layers(
            [
                (_to(device, shared), _to(device, per_worker))
                for shared, per_worker in state_dict["state"]
            ]
        )
        self._comm.meter.load(state_dict["traffic"])

    def remove(self) -> None:
        """Let the module average gradients as DDP does without a hook."""
        if self._hook.on_gradients == self._exchange:
            self._hook.on_gradients = None

    @torch.no_grad()
    def _exchange(self, gradients: Mapping[nn.Parameter, Tensor]) -> None:
        """Replace this worker's gradients by the update that all workers agree on."""
        rows = {
            name: gradients[p].float().contiguous().unsqueeze(0)
            for p, name in self._parameters.items()
        }
        device = next(iter(rows.values())).device
        with torch.autocast(device.type, enabled=False):  # A backward pass may run under autocast.
            out = aggregate(
                self.compressor,
                rows,
                number=self._step,
                seed=self._seed,
                state=self._state,
                comm=self._comm,
            )
        refuse_other_tensors(out.update, rows)
        self._step += 1
        if torch.stack([update.isfinite().all() for update in out.update.values()]).all():
            self._state = out.state
        for p, name in self._parameters.items():
            gradients[p].copy_(out.update[name].view(p.shape))


def _refuse_other_modules(module: nn.Module) -> DistributedDataParallel:
    """Return `module`, a DistributedDataParallel whose gradients a compressor can exchange."""
    kind = type(module).__name__
    if isinstance(module, FSDPModule):
        raise ConfigError(
            f"{kind} is sharded by fully_shard, whose reduce-scatter no compressor can take over; "
            "type compress(DistributedDataParallel(model), ...) with a model that is not sharded"
        )
    if not isinstance(module, DistributedDataParallel):
        raise ConfigError(
            f"{kind} is no DistributedDataParallel; type "
            "compress(DistributedDataParallel(model), ...)"
        )
    if module.find_unused_parameters:
        raise ConfigError(
            "find_unused_parameters=True: DDP drops what error feedback sends for a parameter that "
            "no worker used; type find_unused_parameters=False, and requires_grad_(False) for "
            "parameters that are never used"
        )
    if len({p.device for p in _parameters_of(module)}) > 1:
        raise ConfigError(
            "the parameters lie on several devices; type compress with a model that lies on one"
        )
    return module


def _make_compressor(
    ddp: DistributedDataParallel, name: str, knobs: Mapping[str, Any]
) -> Compressor:
    known = method_keys(conf_directory())
    if name not in known:
        raise ConfigError(
            f"compressor={name}: there is no such method; type "
            f"{near(name, known) or ', '.join(known)}"
        )
    for key in knobs:
        if key not in known[name]:
            raise ConfigError(
                f"{key}: compressor={name} has no such knob; it has {', '.join(known[name])}"
            )
    config, _ = resolve_words([f"compressor={name}", *to_words(knobs)])
    compressor: Compressor = make(config["compressor"], "compressor")
    shapes = [p.shape for p in _parameters_of(ddp)]
    share = compressed_share(compressor, shapes, steps=sys.maxsize)
    if advice := advice_on_share(share, config):
        warnings.warn(f"compressed: {share_in_words(share)} {advice}", stacklevel=3)
    return compressor


def _parameters_of(ddp: DistributedDataParallel) -> dict[nn.Parameter, str]:
    """Return the names of the parameters that DDP exchanges, in the model's order."""
    return {
        p: name
        for name, p in ddp.module.named_parameters()
        if p.requires_grad and name not in ddp.parameters_to_ignore
    }


def _comm_of(ddp: DistributedDataParallel) -> Comm:
    """Return the collectives over the process group of `ddp`."""
    group = ddp.process_group
    on_gpu = next(iter(_parameters_of(ddp))).device.type == "cuda"
    nccl = on_gpu and "cuda:nccl" in dist.get_backend_config(group)
    transport = NcclTransport(group) if nccl else GlooTransport(group)
    on_host = os.environ.get("LOCAL_WORLD_SIZE")  # torchrun's
    return Comm(group.size(), transport, workers_per_host=int(on_host) if on_host else None)


def _free_hook_of(ddp: DistributedDataParallel) -> WholeGradient:
    try:
        hook = WholeGradient.of(ddp)
        free = hook.on_gradients is None
    except RuntimeError:  # It has a hook that is not ours.
        free = False
    if not free:
        raise ConfigError(
            "this DistributedDataParallel has a communication hook, and takes only one; type "
            "handle.remove() where it is a compressor's, or make it anew without register_comm_hook"
        )
    return hook


def _to(device: torch.device, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
