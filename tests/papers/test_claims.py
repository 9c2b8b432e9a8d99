"""Which tests hold the claims of the papers that are algebra, or bits."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAPERS = sorted(Path(__file__).parent.glob("test_*.py"))

# A claim to the tests outside this folder that hold it, too; those inside name it in their docstring.
CLAIMS: dict[str, list[str]] = {
    "qsgd-01": [
        "codecs/test_quantise.py::test_quantising_is_unbiased",
        "compressors/test_qsgd.py::test_denormals_and_zeros_stay_within_their_scale",
    ],
    "qsgd-02": [],
    "qsgd-03": [],
    "qsgd-04": ["codecs/test_elias.py::test_streams_hold_the_bits_of_the_definition_and_nothing_else"],
    "qsgd-05": ["codecs/test_elias.py::test_streams_hold_the_bits_of_the_definition_and_nothing_else"],
    "qsgd-07": ["compressors/test_bits.py::test_qsgd_costs_its_bits_and_a_scale_a_bucket"],
    "qsgd-08": ["compressors/test_wrappers.py::test_small_tensors_travel_whole"],
    "powersgd-01": [
        "compressors/test_bits.py::test_networks_have_the_published_sizes",
        "compressors/test_bits.py::test_atomo_sends_the_published_floats_of_resnet18",
        "compressors/test_bits.py::test_the_compared_methods_send_the_published_data",
        "compressors/test_bits.py::test_signum_sends_the_published_data_of_the_lstm",
    ],
    "powersgd-02": [
        "compressors/test_powersgd.py::test_one_worker_with_the_mean_gradient_does_what_all_do",
        "train/test_training.py::test_one_worker_with_the_whole_batch_equals_four_with_a_quarter",
    ],
    "powersgd-03": ["compressors/test_powersgd.py::test_more_iterations_come_nearer_to_the_best_approximation"],
    "orq-01": ["compressors/test_ratios.py::test_both_ratios_of_orq_on_resnet18"],
    "orq-02": [],
    "orq-03": [
        "codecs/test_levels.py::test_the_middle_level_is_the_best_of_all_values",
        "codecs/test_levels.py::test_all_buckets_at_once_find_what_the_recursion_finds",
        "codecs/test_levels.py::test_the_greedy_levels_are_close_to_the_joint_optimum",
        "compressors/test_orq.py::test_uniform_values_leave_nothing_to_gain",
    ],
    "orq-11": [
        "codecs/test_levels.py::test_clamp_level_is_where_the_sides_of_equation_15_cross",
        "codecs/test_levels.py::test_clamp_level_of_known_densities_and_of_brute_force",
        "compressors/test_orq.py::test_bingrad_b_sends_the_means_of_both_sides",
    ],
    "maxnorm-01": ["compressors/test_maxnorm.py::test_unbiased_within_the_bound_of_the_lemmas"],
    "maxnorm-02": [
        "compressors/test_maxnorm.py::test_the_sum_of_codes_is_the_code_of_the_sum",
        "compressors/test_maxnorm.py::test_no_sum_of_1024_workers_overflows",
    ],
    "maxnorm-03": [
        "compressors/test_maxnorm.py::test_scales_are_those_of_equation_11",
        "compressors/test_maxnorm.py::test_no_code_exceeds_the_smallest_scale",
    ],
    "maxnorm-04": ["compressors/test_maxnorm.py::test_analytic_ratios_are_those_of_the_paper"],
    "ecq-10": ["compressors/test_wrappers.py::test_the_warning_is_about_something"],
    "ecq-11": [
        "codecs/test_entropy.py::test_the_bound_is_the_sum_of_d_k_log_d_over_d_k",
        "compressors/test_entropy_coded.py::test_the_bound_is_reported_for_every_code_and_not_undercut",
    ],
}
# Algebra beside the numbered claims: of the methods that PowerSGD compares with, and errors in training.
OTHERS: dict[str, list[str]] = {
    "the unbiased sketch": [
        "compressors/test_unbiased_lowrank.py::test_the_sketch_is_unbiased_and_its_variance_is_known",
        "compressors/test_unbiased_lowrank.py::test_the_sketch_multiplies_by_the_identity_on_average",
    ],
    "Atomo": ["compressors/test_atomo.py::test_drawing_until_two_are_kept_is_biased_and_drawing_once_is_not"],
    "ECQ-SGD with alpha = 0 is QSGD": ["compressors/test_wrappers.py::test_ecqsgd_without_compensation_is_qsgd"],
    "orq-04": [],
}


def docstrings(path: Path) -> dict[str, str]:
    """Of the tests in a file."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {f.name: ast.get_docstring(f) or "" for f in body if isinstance(f, ast.FunctionDef) and f.name.startswith("test_")}


@pytest.mark.parametrize("claim", CLAIMS)
def test_every_claim_is_held_by_a_test_that_names_it(claim: str) -> None:
    named = [name for path in PAPERS for name, text in docstrings(path).items() if claim in text.partition(":")[0]]
    assert named


def test_every_test_of_the_papers_names_its_claim() -> None:
    """Or more than one, before the colon, with the paper's theorem, equation, table or section."""
    for path in PAPERS:
        if path != Path(__file__):
            for name, text in docstrings(path).items():
                claims, *where = text.partition(":")[0].split(", ")
                assert claims in CLAIMS | OTHERS and where, name


@pytest.mark.parametrize("node", sorted({node for nodes in (CLAIMS | OTHERS).values() for node in nodes}))
def test_tests_elsewhere_that_hold_a_claim_are_there(node: str) -> None:
    file, _, name = node.partition("::")
    assert name in docstrings(TESTS / file)
