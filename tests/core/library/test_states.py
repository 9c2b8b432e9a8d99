"""States of gcbench.compress: what is loaded, and what is refused before it replaces anything."""

from __future__ import annotations

import pytest
import torch
from gloo_pool import pool
from method_cases import CHOICES
from nightly import slow_but
from state_cases import (
    go_on_at_different_steps,
    load_across_compile,
    load_after_each_step,
    load_damaged,
    load_local,
    load_sharded,
    load_shards,
    load_the_last_format,
    load_those_of_others,
    move_columns,
    save_all,
    save_local,
    save_sharded,
    save_with_a_handle,
)

from gcbench.core.library.saved import replaced_shares
from gcbench.runner.config.keys import method_keys


def test_workers_at_different_steps_are_told_in_the_next_one() -> None:
    first, second = pool(2).run(go_on_at_different_steps)
    for name in first:
        assert first[name].startswith("worker 0 has made 3 exchanges with this compressor, and ")
        assert second[name].startswith("worker 1 has made 1 exchanges with this compressor, and ")
        assert "another one 1; type load_state_dict on every worker" in first[name]


def test_a_damaged_state_is_refused_in_one_sentence_and_replaces_nothing() -> None:
    for sentences, unchanged in pool(2).run(load_damaged):
        assert unchanged
        for case, sentence in sentences.items():
            assert sentence.startswith(("the saved state has ", "a str is no saved state")), case
            assert "; load what this worker saved" in sentence or "; type " in sentence, case
            assert "\n" not in sentence
        assert (
            "float32 values of shape (1, 1, 12) for layers.0.weight, and this" in sentences["shape"]
        )
        assert "nothing for layers.0.weight, and this compression has float32" in sentences["layer"]


@pytest.mark.parametrize("name", slow_but(("acpsgd", "loco"), CHOICES))
def test_a_state_of_any_step_is_loaded(name: str) -> None:
    knobs = {"min_size": 0} if "min_size" in method_keys()[name] else {}
    knobs |= {"momentum": 0.9, "dense_steps": 2} if "adam" in name else {}
    for seen in pool(2).run(load_after_each_step, {name: knobs}):
        assert seen == {name: [""] * 4}


def test_a_state_of_ranks_by_tensor_is_loaded_before_and_after_they_are_chosen() -> None:
    """Factors keep their shapes, whatever ranks are chosen in the second step."""
    for seen in pool(2).run(load_after_each_step, {"powersgd": {"rank": 2, "adapt_every": 10}}):
        assert seen == {"powersgd": [""] * 4}


def test_torch_compile_changes_no_names() -> None:
    for seen in pool(2).run(load_across_compile):
        assert seen == [("", True)] * 3


def test_a_handle_is_saved_and_copied_as_none_with_a_warning() -> None:
    for handles, messages in pool(2).run(save_with_a_handle):
        assert handles == [None, None]
        assert len(messages) == 2 and all("save handle.state_dict() " in m for m in messages)


def test_no_shard_loads_a_state_unless_all_can() -> None:
    def load(between: bool, case: str) -> list[str]:
        return pool(4).run(load_shards, between, case)

    for between in (False, True):
        assert load(between, "right") == [""] * 4
        first, *others = load(between, "nan")
        of = "0.weight" if between else "0"
        assert first.startswith(f"the saved state has values for {of} that are not finite; load ")
        told = others[1:2] if between else others  # those that exchange with worker 0
        assert all(s.startswith("worker 0 cannot load its state: the saved") for s in told)
        told = [s for s in load(between, "steps") if s]
        assert len(told) == (2 if between else 4)
        assert told[-1].startswith("worker 0 loads a state with steps=0 1, and this one with 0 2; ")
    for case, says in {
        "shape": "the saved state has float32 values of shape (1, 543) for 0, and this ",
        "resting": "the saved state has tensors of other shapes",
        "turns": "the saved state has turns of 0.wheight, which this parameter group lacks; load ",
    }.items():
        for sentence in load(False, case):
            assert sentence.startswith(says) and "; load what " in sentence, (case, sentence)


def test_a_state_of_the_last_format_is_read() -> None:
    for equal in pool(2).run(load_the_last_format):
        assert equal == {"ddp": [True] * 2, "local": [True] * 2, "sharded": [True] * 2}


@pytest.mark.parametrize("before, now", [(4, 2), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_another_number_of_workers_goes_on_with_the_mean_of_residuals(
    before: int, now: int
) -> None:
    method = ("powersgd", {"rank": 1})
    saved = pool(before).run(save_all, *method)[0]
    refused = pool(now).run(load_those_of_others, *method, saved, "refuse")
    assert {message for message, *_ in refused} == {
        f"the saved states are of {before} processes, and there are {now}, and each worker has a "
        'residual of its own (error feedback or momentum); type workers="merge" to average them, '
        "or load what this worker saved, with the same model, compressor and number of workers"
    }
    loaded = pool(now).run(load_those_of_others, *method, saved, "merge")
    owns = [state["exchanges"]["gradient"]["own"]["state"][0] for state in saved["processes"]]
    for worker, (message, residuals, exchanges, bits) in enumerate(loaded):
        assert not message and exchanges == 3 and bits > 0
        for name, residual in residuals.items():
            shares = replaced_shares(worker, now, before)
            expected = sum(owns[k][name] * share for k, share in shares.items())
            assert torch.equal(residual, expected), name
    saved = pool(before).run(save_all, "qsgd", {})[0]
    loaded = pool(now).run(load_those_of_others, "qsgd", {}, saved, "refuse")
    assert {seen[0] for seen in loaded} == {""}, "nothing is remembered that would be averaged"
    for method, says in {
        "scaled_sign exchange=scatter_coded error_feedback=true": "each worker remembers a shard",
        "loco": "each worker remembers codes",
    }.items():
        name, *typed = method.split()
        knobs = {"min_size": 0, **dict(pair.split("=") for pair in typed)}
        knobs = {key: x == "true" if x in ("true", "false") else x for key, x in knobs.items()}
        saved = pool(before).run(save_all, name, knobs)[0]
        for message, *_ in pool(now).run(load_those_of_others, name, knobs, saved, "merge"):
            assert says in message, message


@pytest.mark.parametrize(
    "before, now, nodes, name",
    [
        (4, 2, False, "ef21"),
        (4, 2, True, "top_k"),
        pytest.param(2, 4, False, "top_k", marks=pytest.mark.slow),
        pytest.param(2, 4, True, "top_k", marks=pytest.mark.slow),
    ],
)
def test_another_number_of_shards_or_nodes_goes_on_with_the_mean_of_residuals(
    before: int, now: int, nodes: bool, name: str
) -> None:
    """What each shard keeps of what all have in common is cut anew from all of those before."""
    saved = pool(before).run(save_sharded, before * nodes, name)
    states = saved[0][1]
    for message, *_ in pool(now).run(load_sharded, now * nodes, name, states, "refuse"):
        assert 'of its own (error feedback or momentum); type workers="merge" to avera' in message
    loaded = pool(now).run(load_sharded, now * nodes, name, states, "merge")
    for worker, (message, kept, finite) in enumerate(loaded):
        assert not message and finite
        shares = replaced_shares(worker, now, before)
        for key, (own, _) in kept.items():
            theirs = [[share * x for x in saved[k][0][key][0]] for k, share in shares.items()]
            for x, parts in zip(own, zip(*theirs, strict=True), strict=True):
                torch.testing.assert_close(x, sum(parts))
        assert any(x.any() for own, _ in kept.values() for x in own)
    for key in loaded[0][1]:
        now_shared = zip(*(kept[key][1] for _, kept, _ in loaded), strict=True)
        then_shared = zip(*(kept[key][1] for kept, _ in saved), strict=True)
        for parts, theirs in zip(now_shared, then_shared, strict=True):
            x, y = (torch.cat([part.flatten() for part in shards]) for shards in (parts, theirs))
            n = min(len(x), len(y))  # without the padding of either
            assert torch.equal(x[:n], y[:n]) and not x[n:].any() and not y[n:].any() and y.any()


def test_states_of_columns_are_not_merged() -> None:
    """Their shards do not follow one another in the parameter."""
    saved = pool(4).run(move_columns, None)[0][1]
    for message, _ in pool(2).run(move_columns, saved):
        assert "parameters are cut along another dimension than their first; load" in message


@pytest.mark.parametrize("before, now", [(4, 2), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_another_number_of_workers_goes_on_with_the_mean_of_local_parameters(
    before: int, now: int
) -> None:
    saved = pool(before).run(save_local, "top_k")
    states = saved[0][1]
    for message, *_ in pool(now).run(load_local, "top_k", states, "refuse"):
        assert 'of its own between exchanges; type workers="merge" to average them' in message
    for worker, (message, own, agreed) in enumerate(
        pool(now).run(load_local, "top_k", states, "merge")
    ):
        assert not message and agreed
        shares = replaced_shares(worker, now, before)
        theirs = [[share * x for x in saved[k][0]] for k, share in shares.items()]
        for x, parts in zip(own, zip(*theirs, strict=True), strict=True):
            torch.testing.assert_close(x, sum(parts))
