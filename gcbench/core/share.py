"""The share of a gradient that is compressed, in words."""

from __future__ import annotations

from typing import Any


def share_in_words(share: float) -> str:
    return f"{100 * share:.3g} % of the gradient's values"


def advice_on_share(share: float, config: dict[str, Any]) -> str:
    """Return why less than half of the gradient is compressed, and what to type to change that.

    It is empty if at least half is compressed, or if no setting is the reason.
    """
    compressor = config["compressor"]
    reasons = []
    if min_size := compressor.get("min_size"):
        key = "min_size" if "min_size" in config else "compressor.min_size"
        reasons.append(f"tensors of fewer than {min_size:,} values are sent whole; type {key}=0")
    if min_ratio := compressor.get("min_ratio"):
        reasons.append(
            f"matrices of which factors save too little for min_ratio={min_ratio:g} are sent whole;"
            " type a lower rank"
        )
    if dense_steps := compressor.get("dense_steps"):
        # Methods that take them from the optimizer's warm-up have no key dense_steps.
        advice = "; type dense_steps=0" if "dense_steps" in config else ""
        reasons.append(f"the first {dense_steps:,} steps send all whole{advice}")
    return f"({', and '.join(reasons)})" if reasons and share < 0.5 else ""
