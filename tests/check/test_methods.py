"""The list of all methods."""

from __future__ import annotations

import pytest
from method_cases import CHOICES

from gcbench.check.methods import WIDTH, list_methods
from gcbench.config import register


def test_every_choice_is_listed_with_what_it_sends_and_promises(capsys: pytest.CaptureFixture[str]) -> None:
    register()
    list_methods()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= WIDTH
    rows = {line.split()[0]: line for line in lines if line.startswith("  ") and line[2:3].strip()}
    assert set(CHOICES) == set(rows) - {"compressor"}
    for choice, facts in {
        "none": ["32.000 fp32 all_reduce", "1.0", "exact"],
        "fp16": ["16.000 fp16 all_reduce", "2.0", "exact"],
        "top_k": ["0.500 codes all_gather", "32.0", "contractive"],
        "maxnorm": ["fp32 all_reduce max", "unbiased"],
        "signum": ["1.000 codes all_gather", "32.0"],
    }.items():
        for fact in facts:
            assert fact in rows[choice]
    assert "+ memory" in "\n".join(lines)
