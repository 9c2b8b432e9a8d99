"""Every method does what its file says: what its paper, or its authors' code, prints.

`form` in conf/compressor says whose form of the method the defaults are. method_traces.py computes
numbers of that form without gcbench; a difference from the authors' code is a second trace, with
the settings that give it, or with how far the default is off.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import CHOICES, aggregate, build_unchecked
from method_traces import all_traces
from torch import Tensor, nn
from trace_recipes import STEPS, gradients

from gcbench.core.compressor import State
from gcbench.core.conf import conf_directory, read_yaml
from gcbench.runner.conf_files import form_in
from gcbench.runner.launch.optimization import make_optimizer
from gcbench.runner.settings.groups import OptimizerSettings

ROOT = Path(__file__).parents[3]
# The tests that hold the other methods to their papers: by their equations in float64, or by the
# law of what is drawn.
ELSEWHERE = {
    "acpsgd": "acpsgd::test_updates_and_residuals_are_those_of_the_algorithm",
    "atomo": "atomo::test_drawing_until_two_are_kept_is_biased_and_drawing_once_is_not",
    "dgc": "dgc::test_updates_and_memories_are_those_of_the_algorithm",
    "dion": "dion::test_updates_and_momenta_are_those_of_the_algorithm",
    "dion2": "dion2::test_updates_and_momenta_are_those_of_the_algorithm",
    "ef21_muon": "ef21_muon::test_updates_are_those_of_the_equations_both_ways",
    "exponents": "exponents::test_every_float_arrives_as_it_was_sent",
    **dict.fromkeys(
        ("fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4"),
        "block_formats::test_every_value_is_the_nearest_of_its_format",
    ),
    "eden": "eden::test_messages_and_values_are_those_of_the_equations",
    "global_randk": "global_randk::test_drawn_values_are_quantized_as_they_are_alone",
    "global_randk_multiscale": "global_randk::test_drawn_values_are_quantized_as_they_are_alone",
    "loco": "loco::test_updates_and_residuals_are_those_of_the_algorithm",
    "powersgd": "powersgd_against_torch::test_matrices_and_their_residuals_equal_those_of_torch",
    "qsgd_by_kind": "by_kind::test_each_kind_is_coded_by_its_own_method",
    "random_block": "sparse::test_every_value_is_sent_equally_often",
    "random_k": "sparse::test_every_value_is_sent_equally_often",
    "unbiased_lowrank": "unbiased_lowrank::test_the_sketch_is_unbiased_and_its_variance_is_known",
}
# Keys that only make a method small enough for these tensors; a form is not in them.
SIZES = {"bucket_size", "min_size", "level_count", "fraction", "chunk_size", "chunk_side"}
SIZES |= {"coefficients"}
ROWS = 800  # workers that round the same gradient


@pytest.mark.parametrize("choice", CHOICES)
def test_a_method_has_the_form_that_its_file_says(choice: str) -> None:
    form = form_in(conf_directory() / "compressor" / f"{choice}.yaml")
    assert form in ("paper", "code", "ours")
    if choice in ELSEWHERE:
        name, _, test = ELSEWHERE[choice].partition("::")
        path = ROOT / "tests" / "core" / "methods" / f"test_{name}.py"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        return
    traces = all_traces()
    assert choice in traces, f"add traces of {choice} to method_traces.py, or name its test here"
    own = [trace for trace in traces[choice] if set(trace.get("settings", {"?": 0})) <= SIZES]
    assert [trace["form"] for trace in own] == [form], "one trace, and of that form, is the default"
    for trace in traces[choice]:
        compare(choice, trace, own[0])


def compare(choice: str, trace: dict[str, Any], own: dict[str, Any]) -> None:
    if "levels" in trace:
        refuse_other_levels(choice, trace)
        return
    updates = np.array(updates_of(choice, trace.get("settings", own["settings"])))
    expected = np.array(trace["updates"])
    distance = float(np.linalg.norm(updates - expected) / np.linalg.norm(expected))
    if "differs" in trace:
        assert distance == pytest.approx(trace["differs"], rel=0.02), (choice, trace["of"])
    else:
        assert distance < trace.get("tolerance", 2e-6), (choice, trace["of"])


def updates_of(choice: str, settings: dict[str, Any]) -> list[list[float]]:
    """Return the update of each step, or what the optimizer of 1-bit Adam makes of it."""
    optimizer, p = None, {name: nn.Parameter(g[0]) for name, g in of_step(0, 1).items()}
    if choice == "onebit_adam":
        node = read_yaml(conf_directory() / "optimizer" / "frozen_adam.yaml")
        node |= {"lr": 0.1, "freeze_steps": 2, **settings.get("optimizer", {})}
        optimizer = make_optimizer(OptimizerSettings.of(node), nn.ParameterDict(p))
        settings = {**settings, "optimizer": node}
    compressor, state, updates = build_unchecked(choice, settings), State(), []
    for step in range(STEPS):
        out = aggregate(compressor, of_step(step), number=step, state=state)
        state, change = out.state, out.update
        if optimizer is not None:
            before = {name: x.detach().clone() for name, x in p.items()}
            for name, d in out.update.items():
                p[name].grad = d[0]
            optimizer.step()
            change = {name: x.detach() - before[name] for name, x in p.items()}
        updates.append(torch.cat([x.flatten() for x in change.values()]).tolist())
    return updates


def of_step(step: int, rows: int | None = None) -> dict[str, Tensor]:
    workers = gradients(step)[:rows]
    return {
        name: torch.tensor(np.stack([worker[name] for worker in workers]), dtype=torch.float32)
        for name in workers[0]
    }


def refuse_other_levels(choice: str, trace: dict[str, Any]) -> None:
    """Refuse a value other than the two around it, or one that is not drawn as often as it should.

    All workers have the same gradient, and draw for themselves.
    """
    first = of_step(0, 1)
    grads = {name: g.repeat(ROWS, *[1] * (g.dim() - 1)) for name, g in first.items()}
    sent = aggregate(build_unchecked(choice, trace["settings"]), grads).sent()
    drawn = np.concatenate([x.flatten(1).double().numpy() for x in sent.values()], axis=1)
    low, high, probability = np.array(trace["levels"]).T
    near = 1e-5 * np.abs(drawn).max()
    is_low, is_high = np.abs(drawn - low) < near, np.abs(drawn - high) < near
    assert (is_low | is_high).all(), (choice, trace["of"])
    deviation = np.sqrt(probability * (1 - probability) / ROWS)
    off = np.abs(is_high.mean(0) - probability)[high - low > 2 * near]
    assert (off <= 5 * deviation[high - low > 2 * near] + 1e-5).all(), (choice, trace["of"])
