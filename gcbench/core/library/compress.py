"""Compressors for the user's own training loop."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import signature
from numbers import Integral
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gcbench.core.codec import Codec
from gcbench.core.codecs.kernels import choose_codec_backend, use_backend
from gcbench.core.codecs.native import find_compiler, load_native
from gcbench.core.compressor import Compressor
from gcbench.core.conf import Config, choices_in
from gcbench.core.errors import ConfigError
from gcbench.core.fields import Count, Seed, format_value, refusal
from gcbench.core.library.compression import Compression, Typed
from gcbench.core.library.ddp import (
    DdpCompression,
    parameters_of,
    refuse_ddp,
    refuse_nodes,
    refuse_unused,
    shapes_of,
)
from gcbench.core.library.fsdp import (
    FlatCompression,
    is_carried,
    refuse_fsdp,
    shapes_of_groups,
    shards_of,
)
from gcbench.core.library.named_shards import NamedCompression, refuse_between_nodes
from gcbench.core.library.overlap import Overlap
from gcbench.core.method_files import keys_of_optimizer, make_compressor, read_method
from gcbench.core.method_keys import LayerKeys
from gcbench.core.share import advice_on_share, share_in_words
from gcbench.core.wrappers.build import build
from gcbench.core.wrappers.virtual import compressed_share
from gcbench.core.wrappers.wrappers import CheckedGradients


def compress(
    module: nn.Module,
    compressor: str | type | Codec | Compressor,
    *,
    seed: int = 1,
    replicas: dist.ProcessGroup | None = None,
    codec_backend: str = "auto",
    error_every: int | None = None,
    overlap: Overlap = False,
    **knobs: Any,
) -> Compression:
    """Make the backward passes of a DDP or FSDP2 module exchange gradients through a compressor.

        model = DistributedDataParallel(model)
        compression = gcbench.compress(model, "powersgd", rank=2)
        ...  # the loop stays as it is, with any optimizer, no_sync() and autocast
        print(compression.ratio)  # times fewer bits than fp32 gradients; also bits_sent, memory

    After a backward pass `p.grad` is the update that all workers agree on, in place of the mean
    gradient. All processes call this, and compare arguments. gcbench/core/library/README.md says
    what a method sees of DDP's buckets and of FSDP2's shards, and what happens in special steps.

    Args:
        module: a DistributedDataParallel, or a model on which fully_shard was called, or what
            wraps one of them; one compressor at a time, another one after `remove()`.
        compressor: a method as `gcbench methods` lists it; or a class, an object or the importable
            name of a Codec or a Compressor of yours.
        seed: of random rounding, equal on all workers.
        replicas: with FSDP2, the processes that hold the same shard as this one, one in each node:
            compresses between nodes only, and takes every method.
        codec_backend: `compiled` (our C++ on a CPU, torch.compile on a GPU), `eager`, or `auto`:
            compiled where that can be had. Results are bitwise equal but for products of matrices.
        error_every: measure the update's error in each such exchange, for `error()`; it costs an
            all-reduce in float64, which is not counted.
        overlap: exchange each of DDP's buckets while others are computed; "auto": on GPUs, and
            where each process has a core to spare.
        **knobs: the method's keys (`gcbench methods NAME`), such as `rank`, `bits`,
            `error_feedback`, `dense_steps` and `min_size`; without them its file's values.
            `onebit_adam` needs `momentum` and `dense_steps`, those of your optimizer.

    Returns:
        A handle with `bits_sent`, `ratio`, `memory`, `error()`, `cosine()`, `remove()`, and
        `state_dict()` and `load_state_dict()` for the compressor's state.

    Raises:
        ConfigError: if the module, the compressor or a knob does not fit, or workers have different
            ones; says what to type.
    """
    typed = read_typed(compressor, knobs, seed, error_every, overlap)
    module = _exchanging(module)
    if isinstance(module, FSDPModule):
        refuse_fsdp(module, replicas)
        if overlap is True:
            raise ConfigError("overlap=True: fully_shard decides when it reduces; leave it out")
        if shards_of(module) == 1 and replicas is None:
            warnings.warn(
                "FSDP2 exchanges nothing between shards of one process, so that nothing is "
                "compressed; start more processes, or type compress with replicas=",
                stacklevel=2,
            )
        if replicas is not None:
            refuse_between_nodes(typed.method)
        elif not is_carried(typed.method):
            raise ConfigError(_name_carried(typed))
        _warn_if_mostly_whole(typed, shapes_of_groups(module, replicas))
        use_codecs(codec_backend, next(module.parameters()).device.type)
        if replicas is None:
            return FlatCompression(module, typed)
        return NamedCompression(module, typed, replicas)
    assert isinstance(module, DistributedDataParallel)
    if replicas is not None:
        raise ConfigError("replicas: only modules of fully_shard take them; leave them out")
    return compress_ddp(module, typed, codec_backend)


def _exchanging(module: nn.Module) -> nn.Module:
    """Return the DDP or the FSDP2 module that a module is or wraps, as those of Fabric do.

    Raises ConfigError if there is none with all of its parameters.
    """
    if isinstance(module, (FSDPModule, DistributedDataParallel)):
        return module
    if hasattr(module, "_orig_mod"):
        raise ConfigError(
            "torch.compile made this module, which has no hooks; type compress before torch.compile"
        )
    parameters = set(module.parameters())
    for part in module.modules():
        inside = isinstance(part, (FSDPModule, DistributedDataParallel))
        if inside and set(part.parameters()) == parameters:
            return part
    raise ConfigError(
        f"{type(module).__name__} is not a DistributedDataParallel, and fully_shard did not shard "
        "it; type compress(DistributedDataParallel(model), ...), or fully_shard(model) after its "
        "layers"
    )


def compress_ddp(ddp: DistributedDataParallel, typed: Typed, codec_backend: str) -> DdpCompression:
    """Do what `compress` does with a DDP."""
    refuse_ddp(ddp)
    refuse_nodes(ddp, typed.method)
    refuse_unused(ddp, typed.method)
    _warn_if_mostly_whole(typed, [*shapes_of(ddp, parameters_of(ddp)).values()])
    use_codecs(codec_backend, next(ddp.parameters()).device.type)
    return DdpCompression(ddp, typed)


def read_typed(
    compressor: str | type | Codec | Compressor,
    knobs: Mapping[str, Any],
    seed: int,
    error_every: int | None = None,
    overlap: Overlap = False,
) -> Typed:
    """Return what was typed, with the method that it asks for. Raises ConfigError for a mistake."""
    seed = int(seed) if isinstance(seed, Integral) else seed  # also one of NumPy
    if problem := refusal("seed", seed, Seed) or refusal("error_every", error_every, Count | None):
        raise ConfigError(problem)
    method, config = make_method(compressor, knobs)
    return Typed(method, name_of(compressor, knobs), config, seed, error_every, overlap)


def name_of(compressor: str | type | Codec | Compressor, knobs: Mapping[str, Any]) -> str:
    """Return what was typed for a compressor, of a given one its class."""
    if not isinstance(compressor, str):
        kind = compressor if isinstance(compressor, type) else type(compressor)
        compressor = kind.__name__
    return " ".join([compressor, *(f"{key}={format_value(value)}" for key, value in knobs.items())])


def use_codecs(asked: str, device: str) -> None:
    """Use the codecs that were asked for; warn if `auto` cannot have compiled ones."""
    backend = choose_codec_backend(asked, device, find_compiler() is not None, "codec_backend")
    try:
        if backend == "native":
            load_native()
        use_backend(backend, may_fall_back=asked == "auto")
    except (ValueError, RuntimeError) as error:  # no compiler, or others can write to its cache
        if asked == "compiled":
            raise ConfigError(f"codec_backend={asked}: {error}") from error
        warnings.warn(f"codecs are eager, and slower: {error}", stacklevel=3)
        use_backend("eager")


def make_method(
    compressor: str | type | Codec | Compressor, knobs: Mapping[str, Any]
) -> tuple[Compressor, Config]:
    """Return the compressor and its configuration, which is empty for a given Compressor."""
    if isinstance(compressor, str) and "." in compressor:
        compressor = _import(compressor)
    if not isinstance(compressor, str):
        return _make_own(compressor, knobs), {}
    if missing := [f"{key}=..." for key in keys_of_optimizer(compressor) if key not in knobs]:
        raise ConfigError(
            f"compressor={compressor} codes your optimizer's momentum, which compress does not see;"
            f" type {', '.join(missing)}, as your optimizer has them"
        )
    config = read_method(compressor, knobs)
    return make_compressor(config["compressor"]), config


def _import(typed: str) -> type:
    """Return the class of a method that was typed as `my_package.Mine`."""
    module, _, name = typed.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"compressor={typed} cannot be imported: {error}; type the module and the class of a "
            "method of yours, as in my_package.Mine"
        ) from error
    if not isinstance(found, type):
        raise ConfigError(f"compressor={typed}: this is no class; type that of a method of yours")
    return found


def _make_own(given: type | Codec | Compressor, knobs: Mapping[str, Any]) -> Compressor:
    """Return the compressor of a user's class or object, in the layers that knobs ask for.

    Knobs of a class are its arguments, and those of `gcbench.build`.
    """
    method: Any = given
    around = {key: value for key, value in knobs.items() if key in LayerKeys.__annotations__}
    own = {key: value for key, value in knobs.items() if key not in around}
    if isinstance(given, type):
        taken = signature(given).parameters
        own |= {key: around.pop(key) for key in [*around] if key in taken}
        if unknown := [key for key in own if key not in taken]:
            raise ConfigError(
                f"{unknown[0]}: {given.__name__} has no such knob; it has "
                f"{', '.join(taken) or 'none'}, and those of gcbench.build"
            )
        try:
            method = given(**own)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"compressor={given.__name__}: {error}") from error
    elif own or (knobs and isinstance(method, CheckedGradients)):
        raise ConfigError(
            f"{next(iter(own or knobs))}: this object has its knobs already; type them where it is "
            "made"
        )
    if not isinstance(method, Codec | Compressor):
        raise ConfigError(
            f"compressor={method!r}: this is not a compressor; type the name of a method, as in "
            "compress(model, 'qsgd', bits=4), or a Codec or a Compressor of yours"
        )
    if isinstance(method, Compressor) and not around:
        return method
    try:
        return build(method, **around)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _name_carried(typed: Typed) -> str:
    """Return the error message for a method that a reduce-scatter cannot use; it lists others."""
    why = (
        "a reduce-scatter takes codes of one length, each of one shard, and this sends others"
        if typed.method.properties.divisible
        else "fully_shard cuts gradients into shards, and this needs them whole"
    )
    given = typed.name if typed.config else typed.method
    return (
        f"compressor={given}: {why}; type "
        "compress(DistributedDataParallel(model), ...), replicas=... to shard inside of nodes and "
        "compress between them, or one of these methods with their default settings: "
        f"{', '.join(_carried_choices())}"
    )


@cache
def _carried_choices() -> list[str]:
    made = {
        name: make_compressor(read_method(name)["compressor"]) for name in choices_in("compressor")
    }
    return [name for name, method in made.items() if is_carried(method)]


def _warn_if_mostly_whole(typed: Typed, shapes: Sequence[Sequence[int]]) -> None:
    share = compressed_share(typed.method, shapes, exchanges=sys.maxsize)
    if share < 0.5 and typed.config and (advice := advice_on_share(share, typed.config)):
        warnings.warn(f"compressed: {share_in_words(share)} {advice}", stacklevel=3)
