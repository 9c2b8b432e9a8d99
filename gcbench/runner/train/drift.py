"""A check that all replicas still hold the same parameters.

If a collective or a codec gives two processes different bits, they train two models, and the mean
gradient is that of neither. Nothing else would reveal it.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from gcbench.runner.train.run import Progress, Run

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 16  # number of values that fit in a core's cache as 64-bit words


class ReplicasDrifted(RuntimeError):
    """Some processes hold parameters that differ from the others'."""


def refuse_drift(run: Run, progress: Progress) -> None:
    """Raise ReplicasDrifted in all processes if some hold different parameters.

    All processes must call it after the same step.
    """
    hashes = run.control.gather(parameter_hash(list(run.replica.parameters.values())))
    right, _ = Counter(hashes).most_common(1)[0]
    wrong = [process for process, hashed in enumerate(hashes) if hashed != right]
    if wrong:
        who = f"process{'es' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
        raise ReplicasDrifted(
            f"after step {progress.step - 1} the parameters of {who} were not those of process "
            f"{hashes.index(right)}"
        )


def parameter_hash(parameters: list[Tensor]) -> int:
    """Return the sum of (2 i + 1) x_i modulo 2^64, where x_i are the i-th value's bits.

    Altering any single value changes the hash, as all factors are odd.
    """
    total, start = 0, 0
    for p in parameters:
        words = p.detach().contiguous().view(_WORDS[p.element_size()]).flatten()
        step = _CHUNK if p.device.type == "cpu" else max(1, words.numel())
        factors = torch.arange(1, 2 * min(step, words.numel()) + 1, 2, device=p.device)
        for part in words.split(step):
            values = part.to(torch.int64)
            weighted = (values * factors[: len(values)]).sum() + 2 * start * values.sum()
            total, start = total + weighted, start + len(values)
    return int(total)
