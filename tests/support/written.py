"""Relations that a test writes as text, as its messages repeat them."""

from __future__ import annotations

import re

from gcbench.papers.claims.comparisons import Comparison, Rows


def written(text: str, of: Rows) -> Comparison:
    """Return the relation that Python makes of a text in which names are rows."""
    names = set(re.findall(r"[a-z]\w*", text)) - {"abs"}
    return eval(text, {name: of[name] for name in names})  # type: ignore[no-any-return]
