"""Claims about algebra or bits list the tests that check them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gcbench.papers.claims.claim import read_claims

TESTS = Path(__file__).parents[2]
PAPERS = sorted(
    {TESTS / f"papers/test_{claim.paper}.py" for claim in read_claims()}
    - {TESTS / "papers/test_modern.py"}
)

# Each claim, such as qsgd-01, with its tests; those in this folder are marked with it.
CLAIMS = {"-".join(claim.id.split("-")[:2]): claim.tests for claim in read_claims() if claim.tests}


def functions(path: Path) -> dict[str, ast.FunctionDef]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {
        node.name: node
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def marked_claims(test: ast.FunctionDef) -> list[str]:
    """Return the claims in `@pytest.mark.claim("qsgd-01", where="lemma 3.1")`."""
    marks = [mark for mark in test.decorator_list if "mark.claim(" in ast.unparse(mark)]
    return [ast.literal_eval(name) for mark in marks for name in mark.args]  # type: ignore[attr-defined]


MARKED = {
    f"papers/{path.name}::{name}": marked_claims(test)
    for path in PAPERS
    for name, test in functions(path).items()
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_tests_listed_for_a_claim_are_those_marked_with_it(claim: str) -> None:
    listed = {node for node in CLAIMS[claim] if node.startswith("papers/")}
    assert listed == {node for node, claims in MARKED.items() if claim in claims}


def test_every_exact_claim_is_held_by_a_test() -> None:
    """Claims about algebra and metered bytes need no training run."""
    assert all(claim.tests for claim in read_claims() if claim.needs == "exact")


@pytest.mark.parametrize("node", MARKED)
def test_every_test_of_the_papers_is_marked_with_claims_that_list_it(node: str) -> None:
    assert MARKED[node] and set(MARKED[node]) <= CLAIMS.keys()


@pytest.mark.parametrize("node", sorted({node for nodes in CLAIMS.values() for node in nodes}))
def test_tests_that_hold_a_claim_are_there(node: str) -> None:
    file, _, name = node.partition("::")
    assert name in functions(TESTS / file)
