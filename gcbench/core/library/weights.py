"""The weights of FSDP2's parameter groups, gathered in a code of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from gcbench.core.codec import Codec
from gcbench.core.codecs.noise import mix
from gcbench.core.comm.fsdp import FlatWeights, Part
from gcbench.core.compressor import Compressor, Grads, State, Step, offsets_of
from gcbench.core.errors import ConfigError
from gcbench.core.library.codecs import codec_of
from gcbench.core.library.compress import read_typed, use_codecs
from gcbench.core.library.compression import JointCompression, Typed
from gcbench.core.library.exchange import Kept
from gcbench.core.library.fsdp import (
    device_of,
    group_of_shards,
    groups_of,
    named_parts,
    refuse_cuts,
)
from gcbench.core.library.states import not_a_state


def compress_weights(
    module: nn.Module,
    compressor: str | Compressor,
    *,
    differences: bool = True,
    seed: int = 1,
    codec_backend: str = "auto",
    **knobs: Any,
) -> WeightCompression:
    """Let FSDP2 gather weights in a code, of their differences from those gathered before.

        fully_shard(model)
        weights = gcbench.compress_weights(model, "qsgd", bits=4, bucket_size=128)
        gradients = gcbench.compress(model, "qsgd", bits=4)     # independent of it, if at all

    All processes keep the weights w' with which all of them compute. In a forward pass, each sends
    the code of the difference of its shard from w', and all add what they decode:

        w' <- w' + decode(encode(w - w'))

    The optimizer goes on from w, so that what one code leaves out is in the next difference: few
    bits lose nothing, as in SDP4Bit (Jia et al., NeurIPS 2024, arXiv:2410.15526), whereas with
    `differences=False` a code of the weights themselves makes the same error in every step, as in
    ZeRO++. The first gather of differences sends the weights as they are. A backward pass computes
    with the w' of its forward pass, and nothing is sent for it again.

    Memory: w' is 4 bytes per parameter of the whole model on every process, in place of shards
    only; where the model does not fit with them, this is no method for it.

    It also works on the two-dimensional mesh of HSDP, inside of each node.

    Args:
        module: a model on which fully_shard was called.
        compressor: a method that sends the code of each worker, such as `qsgd`, `top_k`, `natural`
            and, to cast, `bf16`; without error feedback, as differences have it already.
        differences: whether codes are of differences.
        seed: the seed of random rounding, which must be equal on all workers.
        codec_backend: as in `compress`.
        **knobs: as in `compress`; parameters with fewer than `min_size` values per
            shard are sent as they are.

    Returns:
        A handle as of `compress`, for the weights; `ratio` refers to fp32 weights, once a step.

    Raises:
        ConfigError: as `compress` does.
    """
    typed = read_typed(compressor, knobs, seed)
    if not isinstance(module, FSDPModule):
        raise ConfigError(
            f"{type(module).__name__}: fully_shard did not shard it, so that no weights are "
            "gathered; type fully_shard(model), and compress_weights after it"
        )
    refuse_cuts(module)
    code = codec_of(typed.method)
    if code is None:
        raise ConfigError(
            f"compressor={typed.name}: weights are gathered in a code of each "
            "shard, and this sends something else, or keeps a residual; type "
            "compress_weights(model, 'qsgd', bits=4), or exchange=gather code=fixed "
            "error_feedback=false"
        )
    use_codecs(codec_backend, next(module.parameters()).device.type)
    return WeightCompression(module, typed, *code, differences)


@dataclass
class GroupWeights(Kept):
    """The weights `[W, values]` by name that the gathers of a parameter group have left."""

    parts: Mapping[str, Part] = field(kw_only=True)


class WeightCompression(JointCompression):
    """A codec in the all-gathers of a module's weights, made by `compress_weights`."""

    maker: ClassVar[str] = "compress_weights"
    _kept: Mapping[str, GroupWeights]

    def __init__(
        self,
        module: FSDPModule,
        typed: Typed,
        codec: Codec,
        min_size: int,
        differences: bool,
    ) -> None:
        assert isinstance(module, nn.Module)
        self._codec, self._min_size, self._differences = codec, min_size, differences
        groups = groups_of(module)
        try:
            self._hooks = [FlatWeights.of(group) for group in groups.values()]
        except RuntimeError:
            raise ConfigError(
                "this module's weights have a compressor, and take only one; type handle.remove() "
                "first"
            ) from None
        shards = group_of_shards(module)
        kept = {}
        for i, (name, hook) in enumerate(zip(groups, self._hooks, strict=True)):
            parts = named_parts(module, hook.parts)
            offsets = offsets_of({key: part.values for key, part in parts.items()})
            kept[name] = GroupWeights(mix(typed.seed, i), offsets, parts=parts)
        super().__init__(
            typed,
            shards,
            device_of(module),
            kept,
            agree=False,
            shard=shards.rank(),
            shards=shards.size(),
            differences=differences,
        )
        self._refuse_other_arguments({"differences": differences})
        for hook, name in zip(self._hooks, groups, strict=True):
            hook.hook = partial(self._gather_weights, name)

    def remove(self) -> None:
        """Let the module gather its weights as they are."""
        for hook in self._hooks:
            hook.hook = None

    @torch.no_grad()
    def _gather_weights(self, name: str, shard: Tensor, again: bool) -> Tensor:
        """Return the weights of all shards `[W, n]`, given this process's, `[n]`."""
        group = self._kept[name]
        weights = group.state.shared
        if not (again and weights):
            parts = shard.unsqueeze(0).split([x.values for x in group.parts.values()], dim=1)
            weights = self._send(group, dict(zip(group.parts, parts, strict=True)))
            group.state, group.exchanges = State(weights), group.exchanges + 1
            self._fp32_bits += 32 * shard.numel()
        return torch.cat([*weights.values()], dim=1)

    def _send(self, group: GroupWeights, own: Grads) -> Grads:
        """Return the weights `[W, values]` after an exchange of this process's, `[1, values]`."""
        kept, comm = group.state.shared, self._exchange.comm
        place = comm.local
        first = self._differences and not kept
        coded = [k for k, x in own.items() if not first and x.numel() >= max(1, self._min_size)]
        whole = [k for k in own if k not in coded]
        sizes = {k: own[k].numel() for k in coded}
        message: list[Tensor] = []
        if coded:
            values = {k: own[k].float() for k in coded}
            if self._differences:
                values = {k: x - kept[k][place.start : place.stop] for k, x in values.items()}
            step = Step(group.exchanges, group.seed, place, group.offsets or {})
            noise = step.noise("codec", sizes, self._device)
            message = self._codec.encode_each([*values.values()], tuple(sizes.values()), noise)
        everyone = comm.gather([*message, *(own[k] for k in whole)])
        gathered = dict(zip(whole, everyone[len(message) :], strict=True))
        new = {k: x.float() for k, x in gathered.items()}
        if coded:
            decoded = torch.zeros(
                comm.workers, sum(sizes.values()), dtype=torch.float32, device=self._device
            )
            self._codec.decode_add(everyone[: len(message)], tuple(sizes.values()), decoded)
            for k, x in zip(coded, decoded.split([*sizes.values()], dim=1), strict=True):
                new[k] = kept[k] + x if self._differences else x
        return {k: new[k] for k in own}

    def _unmergeable(self, states: Sequence[Mapping[str, Any]], merge: bool) -> str | None:
        return "each remembers shards, whose size depends on their number"

    def _check(self, name: str, read: Kept, saved: Mapping[str, Any]) -> Kept:
        assert isinstance(read, GroupWeights)
        shapes = {k: (self._exchange.comm.workers, part.values) for k, part in read.parts.items()}
        if read.state.shared and shapes != {
            k: tuple(x.shape) for k, x in read.state.shared.items()
        }:
            raise not_a_state(f"other weights of {name or 'the whole module'}")
        return read
