"""Messages between the processes of a gloo group, sent in chunks.

Messages are 1-d uint8 tensors in host memory, whose sizes all processes know.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

# Several chunks in flight hide the handshake with which gloo begins each of them; smaller chunks
# take longer.
CHUNK_BYTES = 1024 * 1024
# A tag of our own, as a user's messages between the same processes have the default, 0.
TAG = 0x6763


def gather(group: dist.ProcessGroup, messages: Sequence[Sequence[Tensor]]) -> None:
    """Fill `messages[p]` with what process p has there.

    The algorithm is a ring, in which each chunk is passed on when it arrives. All receives are
    posted before the first send.
    """
    size, me = group.size(), group.rank()
    left, right = (me - 1) % size, (me + 1) % size
    arriving = [
        (owner, chunk, _receive(group, chunk, left))
        for owner in ((me - i) % size for i in range(1, size))
        for chunk in _chunks(messages[owner])
    ]
    sends = [_send(group, chunk, right) for chunk in _chunks(messages[me])]
    for owner, chunk, receive in arriving:
        receive.wait()
        if owner != right:
            sends.append(_send(group, chunk, right))
    for send in sends:
        send.wait()


def exchange(
    group: dist.ProcessGroup, leaving: Sequence[Tensor], arriving: Sequence[Tensor]
) -> None:
    """Send `leaving[p]` to process p and fill `arriving[p]` from it.

    A process's message to itself is not copied. In round i every process sends to its i-th right
    neighbor and receives from its i-th left neighbor, so that messages seldom share a link; a round
    begins while the last chunk of the previous round arrives. All receives are posted before the
    first send.
    """
    size, me = group.size(), group.rank()
    lefts, rights = ([(me + sign * i) % size for i in range(1, size)] for sign in (-1, 1))
    receives = [
        [_receive(group, chunk, left) for chunk in _chunks([arriving[left]])] for left in lefts
    ]
    unfinished = []
    for right, of_round in zip(rights, receives, strict=True):
        unfinished += [_send(group, chunk, right) for chunk in _chunks([leaving[right]])]
        unfinished += of_round[-1:]
        for receive in of_round[:-1]:
            receive.wait()
    for work in unfinished:
        work.wait()


def pass_on(group: dist.ProcessGroup, leaving: Tensor, arriving: Tensor) -> None:
    """Send a message to the process before this one in a ring; fill `arriving` from the next."""
    size, me = group.size(), group.rank()
    work = [_receive(group, chunk, (me + 1) % size) for chunk in _chunks([arriving])]
    work += [_send(group, chunk, (me - 1) % size) for chunk in _chunks([leaving])]
    for each in work:
        each.wait()


def _chunks(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [chunk for t in tensors if t.numel() for chunk in t.split(CHUNK_BYTES)]


def _receive(group: dist.ProcessGroup, chunk: Tensor, peer: int) -> dist.Work:
    work = dist.irecv(chunk, group=group, tag=TAG, group_src=peer)
    assert work is not None
    return work


def _send(group: dist.ProcessGroup, chunk: Tensor, peer: int) -> dist.Work:
    work = dist.isend(chunk, group=group, tag=TAG, group_dst=peer)
    assert work is not None
    return work
