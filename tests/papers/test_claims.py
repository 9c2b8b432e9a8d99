"""Which tests hold the claims of the papers that are algebra, or bits: conf/claims.yaml lists them, and they say so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gcbench.report.claims import read_claims

TESTS = Path(__file__).parents[1]
PAPERS = sorted(path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))

# A claim, as in qsgd-01, to the tests that hold it; those in this folder name it in their docstring.
CLAIMS = {
    "-".join(claim.id.split("-")[:2]): claim.check.tests
    for claim in read_claims()
    if claim.check.tests
}
# Algebra beside the numbered claims: of the methods that PowerSGD compares with, and errors in training.
OTHERS: dict[str, list[str]] = {
    "the unbiased sketch": [
        "compressors/test_unbiased_lowrank.py::test_the_sketch_is_unbiased_and_its_variance_is_known",
        "compressors/test_unbiased_lowrank.py::test_the_sketch_multiplies_by_the_identity_on_average",
    ],
    "Atomo": [
        "compressors/test_atomo.py::test_drawing_until_two_are_kept_is_biased_and_drawing_once_is_not"
    ],
    "ECQ-SGD with alpha = 0 is QSGD": [
        "compressors/test_wrappers.py::test_ecqsgd_without_compensation_is_qsgd"
    ],
}


def docstrings(path: Path) -> dict[str, str]:
    """Of the tests in a file."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {
        f.name: ast.get_docstring(f) or ""
        for f in body
        if isinstance(f, ast.FunctionDef) and f.name.startswith("test_")
    }


NAMED = [  # (test, claim) of the tests in this folder
    (f"papers/{path.name}::{name}", claim)
    for path in PAPERS
    for name, text in docstrings(path).items()
    for claim in text.partition(":")[0].split(", ")
    if claim in CLAIMS
]


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_tests_listed_for_a_claim_are_those_that_name_it(claim: str) -> None:
    listed = {node for node in CLAIMS[claim] if node.startswith("papers/")}
    assert listed == {node for node, named in NAMED if named == claim}


def test_every_exact_claim_is_held_by_a_test() -> None:
    """Algebra and metered bytes need no run."""
    assert all(claim.check.tests for claim in read_claims() if claim.needs == "exact")


def test_every_test_of_the_papers_names_its_claim() -> None:
    """Or more than one, before the colon, with the paper's theorem, equation, table or section."""
    for path in PAPERS:
        for name, text in docstrings(path).items():
            claims, *where = text.partition(":")[0].split(", ")
            assert claims in CLAIMS | OTHERS and where, name


@pytest.mark.parametrize(
    "node", sorted({node for nodes in (CLAIMS | OTHERS).values() for node in nodes})
)
def test_tests_that_hold_a_claim_are_there(node: str) -> None:
    file, _, name = node.partition("::")
    assert name in docstrings(TESTS / file)
