"""Compressors in a training loop of the user's own."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gcbench.codecs.kernels import use_backend
from gcbench.compressors import Compressor, compressed_share
from gcbench.config import (
    Config,
    ConfigError,
    compose_methods,
    method_keys,
    near,
    register,
    resolve_overrides,
    to_overrides,
)
from gcbench.launch.instantiate import make_compressor
from gcbench.launch.plan import Machine, choose_codec_backend
from gcbench.library.compression import Compression
from gcbench.library.ddp import DdpCompression, parameters_of, refuse_ddp
from gcbench.library.fsdp import (
    FsdpCompression,
    is_carried,
    refuse_fsdp,
    shapes_of_groups,
    shards_of,
)
from gcbench.records.summary import advice_on_share, share_in_words


def compress(
    module: nn.Module,
    compressor: str | Compressor,
    *,
    seed: int = 1,
    replicas: dist.ProcessGroup | None = None,
    codec_backend: str = "auto",
    **knobs: Any,
) -> Compression:
    """Let backward passes of DDP or FSDP2 modules exchange gradients by a compressor.

        model = DistributedDataParallel(model)
        compression = gcbench.compress(model, "powersgd", rank=2)
        ...  # the loop stays as it is, with any optimizer, no_sync() and autocast
        print(compression.bits_sent)

    The optimizer finds in `p.grad` the update that all workers agree on, in place of the mean
    gradient. With AdamW it is this update from which both moments are made; error feedback stays
    with the gradients, before the optimizer. `p.grad` of micro-batches is compressed once, when
    all but the last run under `no_sync()`, or `set_requires_gradient_sync(False)` of FSDP2.

    **DistributedDataParallel.** A method sees the whole gradient of a step. Its exchange begins
    when the last bucket of DDP is complete, so none of it is hidden under the backward pass, as
    part of DDP's own is. Under `ddp.join()` a worker without inputs takes part with zeros.

    A step whose update is not finite leaves the error-feedback residual as it was, so that
    `torch.amp.GradScaler` can skip it. When its scale changes, the residual keeps the old one.

    **FSDP2** (`torch.distributed.fsdp.fully_shard`). A method sees one parameter group at a time,
    flat and with FSDP's padding, so that only methods which promise to be `divisible` work; others
    are refused by name. The group counts as one tensor: buckets run through it, and `per_layer`,
    `min_size`, `clip_sigma` and the K of `top_k` are of it.

        fully_shard(model)                                          # over all processes
        compression = gcbench.compress(model, "qsgd", bits=4)       # compressed reduce-scatter

        mesh = init_device_mesh("cuda", (nodes, 8), mesh_dim_names=("node", "gpu"))
        fully_shard(model, mesh=mesh["gpu"])                        # whole inside a node,
        compression = gcbench.compress(                             # compressed between nodes
            model, "qsgd", bits=4, replicas=mesh["node"].get_group()
        )

    The first form replaces FSDP's reduce-scatter: codes of shards travel by an all-to-all, and each
    owner averages what they decode to. It takes methods whose codes have one length. Error feedback
    keeps a residual of the whole unsharded gradient: 4 bytes for every parameter of the model on
    every process, which no sharding divides. The second form follows FSDP's reduce-scatter, and
    stands for the all-reduce of HSDP, which PyTorch does not let one replace. Its residual is of
    the shard, 4 bytes for every parameter of it. Nodes must begin with equal parameters, and after
    `remove()` they average whole.

    A parameter group whose update, or own residual, is not finite keeps its old residual. Other
    groups of that step go on: what they sent is lost if a GradScaler skips the step.

    Args:
        module: a DistributedDataParallel, or a model on which fully_shard was called; over gloo or
            NCCL, with one model a process. It has one compressor at a time, and takes another one
            after `remove()`.
        compressor: a choice of conf/compressor, as `gcbench methods` lists them, or a Compressor,
            as `gcbench.compressors.build` makes them.
        seed: of random rounding; equal on all workers.
        replicas: with FSDP2, the processes that hold the same shard as this one, one in each node.
        codec_backend: `compiled` fuses the codecs of this process with torch.compile, in the first
            steps, which needs g++ and then takes seconds; `eager` does not. `auto` compiles on a
            GPU, where that spares most of the launches, and goes on eager with a warning where it
            fails; on a CPU it leaves the process as it is. Both compute the same to the bit, but
            for sums of floats (PowerSGD's products, means of signs).
        **knobs: the keys of conf/compressor/<compressor>.yaml, such as `rank`, `bits`,
            `error_feedback`, `dense_steps` (first steps without compression) and `min_size`
            (tensors of fewer values travel whole). Those that are left out have the file's values.
            `onebit_adam` wants `momentum` and `dense_steps`, as your optimizer has them.

    Returns:
        A handle that counts bits, and saves and loads the compressor's state.

    Raises:
        ConfigError: the module, the compressor or a knob does not fit; what to type instead.
    """
    if isinstance(module, FSDPModule):
        refuse_fsdp(module, replicas)
        if shards_of(module) == 1 and replicas is None:
            warnings.warn(
                "FSDP2 exchanges nothing between shards of one process, so that nothing is "
                "compressed; start more processes, or type compress with replicas=",
                stacklevel=2,
            )
        method, config = _make_compressor(compressor, knobs)
        if not is_carried(method, between_nodes=replicas is not None):
            raise ConfigError(_name_carried(method, compressor, knobs, replicas))
        _warn_if_mostly_whole(method, config, shapes_of_groups(module, replicas))
        _use_codecs(codec_backend, module)
        return FsdpCompression(module, method, seed, replicas)
    if not isinstance(module, DistributedDataParallel):
        raise ConfigError(
            f"{type(module).__name__} is no DistributedDataParallel, and fully_shard did not shard "
            "it; type compress(DistributedDataParallel(model), ...)"
        )
    if replicas is not None:
        raise ConfigError("replicas: only modules of fully_shard take them; leave them out")
    refuse_ddp(module)
    method, config = _make_compressor(compressor, knobs)
    _warn_if_mostly_whole(method, config, [p.shape for p in parameters_of(module)])
    _use_codecs(codec_backend, module)
    return DdpCompression(module, method, seed)


def _use_codecs(asked: str, module: nn.Module) -> None:
    device = next(module.parameters()).device.type
    compiler = Machine.detect().compiler
    backend = choose_codec_backend(asked, device, compiler, "codec_backend")
    if (asked, backend) == ("auto", "eager"):
        return
    try:
        use_backend(backend, may_fall_back=asked == "auto")
    except ValueError as error:  # others may write the compiler's cache
        if asked == "auto":
            warnings.warn(f"codecs stay eager: {error}", stacklevel=3)
        else:
            raise ConfigError(f"codec_backend={asked}: {error}") from error


def _make_compressor(
    compressor: str | Compressor, knobs: Mapping[str, Any]
) -> tuple[Compressor, Config]:
    """Return a choice of conf/compressor and its configuration, which a Compressor lacks."""
    if not isinstance(compressor, str):
        if knobs:
            raise ConfigError(
                f"{next(iter(knobs))}: a Compressor has its knobs already; type them where it is "
                "made"
            )
        return compressor, {}
    known = method_keys()
    if compressor not in known:
        raise ConfigError(
            f"compressor={compressor}: there is no such method; type "
            f"{near(compressor, known) or ', '.join(known)}"
        )
    overrides = [f"compressor={compressor}"]
    config, _ = resolve_overrides(overrides)
    coded_momentum = {}
    if config["compressor"].get("momentum") is not None:
        coded_momentum = {key: f"compressor.{key}" for key in ("momentum", "dense_steps")}
    if missing := [key for key in coded_momentum if key not in knobs]:
        raise ConfigError(
            f"compressor={compressor} codes your optimizer's momentum, which compress does not "
            f"see; type {', '.join(f'{key}=...' for key in missing)}, as your optimizer has them"
        )
    keys = {key: key for key in known[compressor]} | coded_momentum
    for key in knobs:
        if key not in keys:
            raise ConfigError(
                f"{key}: compressor={compressor} has no such knob; it has {', '.join(keys)}"
            )
    if knobs:
        typed = to_overrides({keys[key]: value for key, value in knobs.items()})
        config, _ = resolve_overrides([*overrides, *typed])
    return make_compressor(config["compressor"]), config


def _name_carried(
    method: Compressor,
    compressor: str | Compressor,
    knobs: Mapping[str, Any],
    replicas: dist.ProcessGroup | None,
) -> str:
    """Return the sentence that refuses a method, and names those which FSDP2 carries."""
    name = f"compressor={compressor}" if isinstance(compressor, str) else repr(compressor)
    overrides = [name, *(f"{key}={value}" for key, value in knobs.items())]
    why = (
        "a reduce-scatter takes codes of one length, each of one shard, and this sends others"
        if method.properties.divisible
        else "fully_shard cuts gradients into shards, and this needs them whole"
    )
    return (
        f"{' '.join(overrides)}: {why}; type compress(DistributedDataParallel(model)"
        f", ...), or, as they come, one of {', '.join(_carried_choices(replicas is not None))}"
    )


@cache
def _carried_choices(between_nodes: bool) -> list[str]:
    register()
    nodes = compose_methods(list(method_keys()))
    return [
        name
        for name, (node, _) in nodes.items()
        if is_carried(make_compressor(node), between_nodes)
    ]


def _warn_if_mostly_whole(
    compressor: Compressor, config: Config, shapes: Sequence[Sequence[int]]
) -> None:
    share = compressed_share(compressor, shapes, exchanges=sys.maxsize)
    if config and (advice := advice_on_share(share, config)):
        warnings.warn(f"compressed: {share_in_words(share)} {advice}", stacklevel=3)
