"""A rotation around any exchange of codes, so that values of every tensor are nearly normal."""

from __future__ import annotations

from dataclasses import dataclass

from gcbench.core.codecs.hadamard import add_rotated_back, padded, rotate
from gcbench.core.comm.collectives import Comm
from gcbench.core.compressor import (
    Aggregated,
    Compressor,
    Goal,
    Grads,
    Properties,
    State,
    Step,
    flatten,
    flatten_each,
    sizes_of,
    split_rows,
    unflatten,
)

SIZE = 4096  # values of a block


@dataclass(frozen=True)
class Rotated:
    """Rotate gradients before they are coded, and the mean of what they are decoded to back.

    Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017, section 3.
    With the rotation R of a step, and worker i's gradient v_i:

        update = R^-1 (1/W) sum_i decode(encode(R v_i))

    R is made of the randomized Hadamard transforms of `hadamard.py`, in blocks of 4,096 values of a
    tensor. All workers draw the same one, so that one rotation back is enough, no seed is sent, and
    a sum of codes (`exchange=sum`) is that of rotated values, as in THC (Li et al., NSDI 2024). R
    keeps lengths and inner products, so that an unbiased code stays unbiased.

    Tensors are filled up with zeros to whole blocks, a last one to a power of two from 64 on. These
    zeros are sent, too.

    Differences from the papers: two transforms instead of one, as in `Eden`, whose workers draw a
    rotation each. THC's codes are uneven levels at multiples of a step, and large values are cut.
    """

    inner: Compressor

    @property
    def properties(self) -> Properties:
        return self.inner.properties

    def aggregate(self, grads: Grads, state: State, comm: Comm, step: Step) -> Aggregated:
        tensors, sizes = flatten_each(grads), sizes_of(grads)
        segments, device = tuple(sizes.values()), tensors[0].device
        noise = step.noise("rotation", sizes, device, shared=True)
        shapes = {k: (n,) for k, n in zip(sizes, padded(segments, SIZE), strict=True)}
        rotated = split_rows(rotate(tensors, noise, SIZE), shapes)
        out = self.inner.aggregate(rotated, state, comm, step)

        def back(values: Grads) -> Grads:
            y = flatten(values)
            x = y.new_zeros(len(y), sum(segments))
            add_rotated_back(y, noise, SIZE, x.split(segments, dim=1))
            return unflatten(x, grads)

        goal = out.goal
        return out._replace(
            update=back(out.update),
            sent=lambda: back(out.sent()),
            goal=goal and (lambda: Goal(*map(back, goal()))),
        )
