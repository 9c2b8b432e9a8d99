"""gcbench.local_steps in users' training loops, in two processes joined by gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gloo_pool import pool
from local_loop_cases import (
    bits_under_way,
    change_shared,
    handle_of,
    load_across_compile,
    load_alone,
    overflow,
    refusal,
    resume,
    spoilt_states,
    timeouts,
    with_optimizers,
)
from scripts_of_users import python
from torch import Tensor

STREAMING = {"fragments": 2, "pattern": "strided", "delay": 1, "mixing": 0.5}


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.parametrize(
    "knobs",
    [
        {"compressor": "powersgd", "rank": 1, **STREAMING},
        pytest.param({"compressor": "sparseloco", "min_size": 0}, marks=pytest.mark.slow),
    ],
)
def test_a_state_holds_all_that_training_needs_to_go_on(knobs: dict[str, Any]) -> None:
    """It was saved between two exchanges, when workers had parameters of their own."""
    ranks = pool(2).run(resume, knobs)
    for seen in ranks:
        assert equal(seen["whole"], seen["resumed"]) and equal(seen["whole"], ranks[0]["whole"])
        assert equal(seen["whole own"], seen["resumed own"])
        assert seen["bits"][0][0] == seen["bits"][0][1] > 0
    assert not equal(ranks[0]["whole own"], ranks[1]["whole own"])


def test_bits_count_when_an_exchange_arrives() -> None:
    """Not while it is under way, when it would depend on chance how many of them."""
    for under_way, arrived in pool(2).run(bits_under_way):
        assert under_way == 0 < arrived


def test_a_handle_counts_bits_and_workers_meet_in_every_exchange() -> None:
    a, b = pool(2).run(handle_of)
    assert equal(a["start"], b["start"]), "all begin with the parameters of worker 0"
    assert equal(a["together"], b["together"]) and not equal(a["apart"], b["apart"])
    values = sum(x.numel() for x in a["start"])
    assert a["ratio"] == 8 * 32 * values / a["bits"] > 4  # of gradients in every step
    assert 0 < a["error"] == b["error"] < 1 and a["sent after remove"] == 0
    assert a["text"].startswith(
        "<gcbench.local_steps qsgd min_size=0: 2 workers, 2 exchanges in 8 steps, "
    )


def test_values_that_are_not_finite_reach_all_workers_even_as_signs() -> None:
    for tensors in pool(2).run(overflow):
        assert all(x.isnan().all() for x in tensors)


REFUSALS = {
    "every": "every=0: type ",
    "momentum": "outer_momentum=0: outer_nesterov=true looks ahead along the momentum; type ",
    "fragments": "fragments=9: the model has 4 tensors; type fragments=4 or fewer",
    "many fragments": "fragments=3: fragments are exchanged in different steps of every=2; type ",
    "global": "fragments=2 sends tensors in parts, and this method must see all of them at once ",
    "clip_norm": "clip_norm=1 would scale what is exchanged, the sum of 30 local steps; type ",
    "coded momentum": "compressor=onebit_adam codes the optimizer's momentum, which workers have ",
    "delay": "delay=2: the next exchange begins 2 steps later; type delay=1 or less",
    "differ": "worker 1 called local_steps with every=5, and worker 0 with 4; type the same ",
    "ddp": "DistributedDataParallel averages gradients in every step; type local_steps(model, ",
    "other": "the optimizer has none of this model's parameters; type local_steps(model, ",
    "optimizer": "dict is not a torch.optim.Optimizer; type ",
    "left out": "layers.0.bias: no given optimizer steps this parameter; type local_steps(model, [",
    "other delay": "worker 1 called local_steps with delay=1, and worker 0 with 0; type the same ",
    "frozen": "layers.0.weight: this parameter began to require a gradient after local_steps ",
    "states": "",
}


def test_mistakes_are_refused_in_one_sentence() -> None:
    for case, start in REFUSALS.items():
        for rank, sentence in enumerate(pool(2).run(refusal, case)):
            print(case, sentence)
            assert sentence.startswith(start or f"worker {1 - rank} loads a state with steps=")
            assert "type " in sentence and "\n" not in sentence


@pytest.mark.parametrize("kind", ["two", "wrapped", "skipping"])
def test_workers_meet_when_the_last_of_their_optimizers_has_stepped(kind: str) -> None:
    a, b = pool(2).run(with_optimizers, kind)
    assert equal(a["together"], b["together"]) and not equal(a["apart"], b["apart"])
    assert equal(a["resumed"], a["last"]) and equal(b["resumed"], b["last"])
    assert equal(a["together"], a["expected"]) == (kind != "wrapped")


@pytest.mark.parametrize("how", ["step", "load", "by hand"])
def test_shared_parameters_are_not_changed_on_one_worker(how: str) -> None:
    for sentence, unchanged in pool(2).run(change_shared, how):
        assert "within shared_parameters() changes" in sentence and "; type " in sentence
        assert unchanged


def test_a_spoilt_state_is_refused_in_one_sentence_and_replaces_nothing() -> None:
    for seen in pool(2).run(spoilt_states):
        for case, (sentence, unchanged) in seen.items():
            print(case, sentence)
            assert sentence.startswith("the saved state has ") and "\n" not in sentence
            assert unchanged


def test_a_state_is_loaded_across_torch_compile() -> None:
    assert pool(2).run(load_across_compile) == [[True, True]] * 2


def test_a_state_that_one_worker_loads_alone_is_told() -> None:
    for sentence in pool(2).run(load_alone):
        assert sentence.startswith(
            "load_state_dict: not all workers called it (RuntimeError: Timed"
        )


def test_groups_of_ours_have_the_timeout_of_the_group_beside() -> None:
    assert pool(2).run(timeouts) == [[77.0, 77.0, 0.0]] * 2


SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
import gcbench
from torch.nn.functional import mse_loss

restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if restarts and os.environ["RANK"] == "0":
    time.sleep(3)  # until the other one has looked for it: torch's own finds the dead
with gcbench.join("gloo"):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    local = gcbench.local_steps(
        model, optimizer, every=4, compressor="qsgd", error_feedback=True, min_size=0
    )
    begin = 0
    if os.path.exists("checkpoint.pt"):
        checkpoint = torch.load("checkpoint.pt")
        local.load_state_dict(checkpoint["local"])
        begin = checkpoint["step"]
    sys.stdout.write(f"rank {rank} begins at {begin}\\n")
    sys.stdout.flush()
    for step in range(begin, 30):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        mse_loss(model(inputs), inputs[:, :4].roll(1, 1)).backward()
        optimizer.step()
        if step % 10 == 5:
            state = local.state_dict(gather_to=0)
            if rank == 0:
                torch.save({"local": state, "step": step + 1}, "checkpoint.tmp")
                os.replace("checkpoint.tmp", "checkpoint.pt")
        if sys.argv[1] == "kill" and rank == 1 and step == 20 and not restarts:
            os.kill(os.getpid(), signal.SIGKILL)
    with local.shared_parameters():
        torch.save([p.detach() for p in model.parameters()], f"weights-{rank}.pt")
"""


@pytest.mark.slow  # starts eight interpreters
def test_killed_workers_come_back_under_torchrun(tmp_path: Path) -> None:
    """The worker dies between two exchanges; both go on from what worker 0 has written last."""
    (tmp_path / "loop.py").write_text(SCRIPT)
    weights = []
    for how in ("live", "kill"):
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        folder = tmp_path / how
        folder.mkdir()
        printed = python(*torchrun, "--max-restarts", "1", "../loop.py", how, folder=folder)
        begins = [0, 16] if how == "kill" else [0]
        lines = [f"rank {rank} begins at {step}" for step in begins for rank in (0, 1)]
        assert sorted(printed.splitlines()) == sorted(lines)
        weights += [torch.load(folder / f"weights-{rank}.pt") for rank in (0, 1)]
    assert all(equal(weights[0], others) for others in weights[1:])
