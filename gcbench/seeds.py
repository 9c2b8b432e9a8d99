"""Seeds for independent random streams, mixed with SplitMix64.

Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from __future__ import annotations

_MASK = 2**64 - 1


def _splitmix64(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def mix(*values: int) -> int:
    """Return a 64-bit seed for a tuple such as (seed, epoch).

    Unlike with sums of the values, the seeds of similar tuples are unrelated.
    """
    state = len(values)
    for value in values:
        state = _splitmix64(state ^ (value & _MASK))
    return state
