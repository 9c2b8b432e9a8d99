"""Seeds for independent random streams, mixed with SplitMix64.

Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections.abc import Iterable

_MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def mix(*values: int) -> int:
    """Return a 64-bit seed for a tuple such as (seed, epoch).

    Unlike with sums of the values, the seeds of similar tuples are unrelated.
    """
    return absorb(len(values), values)


def absorb(state: int, values: Iterable[int]) -> int:
    """Return the state after more values; that of `mix` begins as their number."""
    for value in values:
        state = ((state ^ (value & _MASK)) + STEP) & _MASK
        for shift, factor in zip((30, 27), FACTORS, strict=True):
            state = ((state ^ (state >> shift)) * factor) & _MASK
        state ^= state >> 31
    return state


def signed(value: int) -> int:
    """Return the signed 64-bit number with the same bits."""
    return value - (1 << 64) if value >> 63 else value
