"""The glossary beside the code is short, and names what the code defines."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

GLOSSARY = Path(__file__).parents[2] / "gcbench/README.md"
TERM = re.compile(r"- \*\*[^*]+\*\*: .+ \(`([\w.]+)`\)\.")


def test_every_term_is_one_sentence_with_the_name_that_defines_it() -> None:
    lines = [line for line in GLOSSARY.read_text().splitlines() if line.startswith("- ")]
    assert 0 < len(lines) <= 20
    for line in lines:
        term = TERM.fullmatch(line)
        assert term, line
        resolve_name(term[1])
