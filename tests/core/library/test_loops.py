"""The table of loops in the library's README, each cell of which is tried in two processes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from gloo_pool import pool
from loop_cases import LOOPS, WAYS, go_through_loops

import gcbench.core.library


def cells() -> dict[tuple[str, str], str]:
    """Return the cells of the table by loop and way."""
    page = (Path(gcbench.core.library.__file__).parent / "README.md").read_text()
    table = page[page.index("### What works") :]
    rows = [
        [x.strip() for x in line.split("|")[1:-1]] for line in re.findall(r"^\|.*", table, re.M)
    ]
    ways = [*WAYS][1:]
    return {(row[0], way): x for row in rows[2:] for way, x in zip(ways, row[1:], strict=True)}


@pytest.mark.parametrize(
    "ways",
    [
        ("residual", "overlap"),
        pytest.param(("no state", "comm_hook"), marks=pytest.mark.slow),
    ],
)
def test_every_loop_works_or_is_refused_in_each_way(ways: tuple[str, ...]) -> None:
    """A method that sends all values trains as plain DDP does."""
    expected, (first, second) = cells(), pool(2).run(go_through_loops, ways)
    assert {loop for loop, _ in expected} == set(LOOPS)
    for (loop, way), works in expected.items():
        if way not in ways:
            continue
        plain, seen = first[loop, "plain"], first[loop, way]
        if works == "refused":
            assert isinstance(seen, str) and "; type " in seen, (loop, way, seen)
            continue
        assert works == "yes" and not isinstance(seen, str), (loop, way, seen)
        for a, b, c in zip(seen, second[loop, way], plain, strict=True):
            assert torch.equal(a, b), (loop, way)
            assert torch.allclose(a, c, rtol=1e-4, atol=1e-6), (loop, way)
