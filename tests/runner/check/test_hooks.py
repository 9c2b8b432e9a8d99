"""`gcbench check MODULE:HOOK`: a good hook passes, and each check finds a broken one."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch._dynamo  # noqa: F401  DDP imports it: here once, and not in each process
from nightly import each

from gcbench.runner.check.hook_steps import CASES, Case
from gcbench.runner.check.hooks import check_hook, hook_subject_of

pytestmark = pytest.mark.usefixtures("copied_workers")


def of_two(name: str) -> dict[str, Case]:
    return {name: CASES[name]._replace(sizes=(2,))}


def told(
    capsys: pytest.CaptureFixture[str], cases: Mapping[str, Case], hook: str, *settings: str
) -> tuple[bool, str]:
    held = check_hook(hook_subject_of([f"broken_hooks:{hook}"], settings), cases)
    return held, capsys.readouterr().out


def test_a_good_hook_passes(capsys: pytest.CaptureFixture[str]) -> None:
    held, lines = told(capsys, CASES, "good")
    assert held and lines.count("ok ") == len(lines.splitlines()) == len(CASES) + 1, lines
    assert "the mean, of any workers: 1, 1, 1 times" in lines
    assert "sends: 32.0" in lines
    assert "NaN of one worker: it is in the update" in lines


RULES = [
    ("alone", "steps", "step 0: ranks apply different updates"),
    ("forgets", "many steps", "are left behind, and more with each step, although the state"),
    ("swaps", "eight buckets", "the update of layer . is most like the gradient of layer"),
    ("skips", "unused", "step 0: ranks apply different updates"),
    ("largest", "empty", "max\\(\\): Expected reduction dim to be specified"),
    ("by_rows", "0-d", "ValueError: a tensor has no rows \\(.*broken_hooks.py, line"),
    ("pairs", "uneven", "shape '\\[-1, 2\\]' is invalid for input of size 47"),
    ("flattens", "non-contiguous", "view size is not compatible"),
    ("divides", "zeros", "an update is not finite"),
    ("remembers", "NaN", "5 steps later, updates are still not finite"),
    ("boasts", "bytes", "32.* bits per value, by the kernel's count, but its state says 1"),
    ("silent", "bytes", "nothing: workers share no gradients"),
    ("silent", "uneven", "the updates of 8 equal gradients are zero"),
    ("no_pair", "0-d", "no_pair returned str, not a pair \\(state, hook\\)"),
    ("dies", "0-d", "killed by SIGABRT"),
]


@each(("hook", "case", "sentence"), RULES)
def test_a_broken_hook_is_found(
    capsys: pytest.CaptureFixture[str], hook: str, case: str, sentence: str
) -> None:
    held, line = told(capsys, of_two(case), hook)
    assert not held and re.search(f"FAILED  .* \\(with 2 workers\\): .*{sentence}", line), line


def test_a_sum_is_no_mean(capsys: pytest.CaptureFixture[str]) -> None:
    held, lines = told(capsys, {"steps": CASES["steps"]}, "adds")
    assert not held and "FAILED  the mean, of any workers: updates are 2, 3, 5 times" in lines


def test_a_hook_without_error_feedback_is_said_to_lose(capsys: pytest.CaptureFixture[str]) -> None:
    held, line = told(capsys, of_two("many steps"), "forgets", "claimed=false")
    assert held and "as without error feedback" in line


def test_bytes_are_those_that_the_state_claims(capsys: pytest.CaptureFixture[str]) -> None:
    held, line = told(capsys, of_two("bytes"), "boasts", "bits=32")
    assert held and "by the kernel's count, as its state says" in line
