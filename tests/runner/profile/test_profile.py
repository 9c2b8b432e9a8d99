"""gcbench.profile measures a training loop, changes nothing in it, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gloo_pool import pool
from profile_cases import (
    beside,
    local_gradients,
    of_fsdp,
    raised,
    refusals,
    save,
    slow_backward,
)
from torch import nn

import gcbench
from gcbench.core.comm.meter import Message
from gcbench.core.errors import ConfigError
from gcbench.runner.network import Network
from gcbench.runner.predict.arguments import read_predict
from gcbench.runner.predict.job import Bucket, Job, MethodOnJob, read_job
from gcbench.runner.predict.probes import link_of, seconds_at, seconds_of
from gcbench.runner.predict.tables import answer
from gcbench.runner.profile.table import outcomes_of, sentence_of

VALUES = 24 * 32 + 32 + 32 * 4 + 4


@pytest.mark.capability
@pytest.mark.parametrize("micro", [1, 2])
def test_a_profile_changes_no_bit_and_leaves_no_hook(micro: int) -> None:
    for equal, before, after, facts in pool(2).run(beside, micro):
        assert equal and before == after
        assert facts["values"] == sum(facts["buckets"]) == VALUES
        assert facts["ready"] == sorted(facts["ready"]) and facts["ready"][0] >= 0
        step, compute, exposed = facts["seconds"]
        assert 0 < compute <= step and step == pytest.approx(compute + exposed)
        assert [*facts["errors"]] == ["none", "bf16", "qsgd min_size=0", "powersgd rank=1"]
        assert facts["errors"]["none"] < 1e-12 < facts["errors"]["bf16"] < 1e-4
        assert 1e-4 < facts["errors"]["qsgd min_size=0"] < facts["errors"]["powersgd rank=1"] < 1
        assert "Compression " in facts["text"] and "qsgd min_size=0" in facts["text"]


def test_gradients_are_copied_before_they_are_exchanged() -> None:
    assert pool(2).run(local_gradients) == [True, True]


def test_a_loop_that_fails_leaves_the_module_as_it_was() -> None:
    for before, after in pool(2).run(raised):
        assert before == after


def test_the_others_wait_for_who_computes_longest() -> None:
    for step, compute, backward in pool(2).run(slow_backward):
        assert step > compute > 0.05
        assert backward < step


def test_what_cannot_be_measured_is_refused_in_a_sentence() -> None:
    for said in pool(2).run(refusals):
        assert len(said) == 6 and not any("\n" in sentence for sentence in said)
        for sentence, words in zip(
            said,
            (
                "this Sequential exchanges no gradients; type profile(DistributedDataParallel",
                "has a communication hook; type handle.remove()",
                "has a communication hook; type handle.remove()",
                "took 4 steps, too few",
                "workers took 8, 9 steps in the block",
                "compressor=qsdg: there is no such method; type qsgd",
            ),
            strict=True,
        ):
            assert words in sentence


def test_without_a_process_group_it_says_what_to_start() -> None:
    with pytest.raises(ConfigError, match="there is no process group; start the loop with torch"):
        gcbench.profile(nn.Linear(2, 2))


def test_fsdp_reduces_as_before_and_is_measured_by_group() -> None:
    for right, facts in pool(2).run(of_fsdp):
        assert right and facts["kind"] == "fsdp"
        assert facts["values"] == sum(facts["buckets"]) == VALUES
        assert facts["methods"] == ["none", "bf16", "qsgd min_size=0"]  # none that needs matrices


def test_a_saved_profile_answers_for_other_links_and_workers(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    pool(2).run(save, str(file))
    job = read_job(str(file))
    assert job.values == VALUES and job.workers == 2
    arguments = read_predict(["pays", f"profile={file}", "network=1mbit,100gbit", "workers=2,8"])
    table = answer(arguments)
    assert {row[0] for row in table.rows} >= {"bf16", "qsgd min_size=0", "powersgd rank=1"}
    assert "W=8 1mbit: sigma / rho" in table.headings
    file.write_text(json.dumps({**json.loads(file.read_text()), "workers": 1}))
    with pytest.raises(ConfigError, match="workers is 1"):
        read_job(str(file))
    with pytest.raises(ConfigError, match=r"profile=nothing\.json: no profile can be read there"):
        read_job("nothing.json")


def job(seconds_per_byte: float, coding: float = 0.001) -> Job:
    """Return a job of two buckets, with a step of 100 ms of computing."""
    probes = {size: 1e-4 + size * seconds_per_byte for size in (1000, 1_000_000)}
    return Job(
        title="a model",
        kind="ddp",
        workers=2,
        steps=20,
        step_seconds=0.2,
        exposed_seconds=0.1,
        shapes={"weight": (1000, 1000)},
        buckets=(Bucket(500_000, 0.02), Bucket(500_000, 0.06)),
        probes={"all_reduce": probes, "all_gather": probes, "all_to_all": probes},
        methods=(
            MethodOnJob("none", 0.0, 0.0, 0.0),
            MethodOnJob("bf16", 0.0, 0.0, 0.0),
            MethodOnJob("qsgd", coding, coding, 0.01),
        ),
    )


def test_a_step_is_computing_coding_and_what_of_the_exchange_is_not_hidden() -> None:
    one = job(1e-8)  # 2 MB in bf16 take 20 ms
    none, half, qsgd = (outcome for outcome in outcomes_of(one, ["nowhere"]))
    assert none.step == pytest.approx(0.1 + 1e-4 + 4e6 * 1e-8, rel=1e-3)
    assert half.step == pytest.approx(0.1 + 1e-4 + 2e6 * 1e-8, rel=1e-3)
    # The first bucket's 10 ms fit before the second is ready; those of the second follow it.
    assert half.overlapped == pytest.approx(0.1 + 1e-4 + 1e6 * 1e-8, rel=1e-3)
    bits = sum(message.bits for message in qsgd.method.messages(2))
    assert qsgd.step == pytest.approx(0.1 + 0.002 + 1e-4 + bits / 8 * 1e-8, rel=1e-2)


def test_the_sentence_says_where_compression_pays() -> None:
    slow, fast = job(1e-7), job(1e-10)
    assert sentence_of(slow, outcomes_of(slow)).startswith("Compression pays here, up to links of")
    sentence = sentence_of(fast, outcomes_of(fast))
    assert sentence.startswith("Compression does not pay here: bf16 overlapped waits for 0 %")
    assert "It would on links below" in sentence
    costly = job(1e-7, coding=1e3)
    assert "It would" not in sentence_of(costly, outcomes_of(costly))


def test_a_link_has_the_seconds_that_were_probed() -> None:
    network = Network(4, 1, *2 * [link_of({"all_reduce": {1000: 6e-4, 10**6: 6e-4 + 0.6}}, 4)])
    assert network.seconds("all_reduce", 8e6) == pytest.approx(0.6, rel=5e-3)
    assert seconds_at({1000: 1.0, 2000: 2.0}, 3000) == pytest.approx(3.0)
    assert seconds_at({1000: 1.0, 2000: 2.0}, 500) == 1.0
    messages = [Message("all", "all_reduce", 2, 16_000)]
    assert seconds_of(messages, {"all_reduce": {1000: 1.0, 2000: 2.0}}, network) == 2.0
