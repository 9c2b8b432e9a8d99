"""gcbench.comm_hook with register_comm_hook, in two processes joined by gloo."""

from __future__ import annotations

import torch
from gloo_pool import pool
from hook_cases import hooks_of_others, mistakes_with_hooks, train_with_both


def test_a_hook_does_what_compress_does_also_after_a_restart() -> None:
    choices = {
        "qsgd": {"min_size": 0},
        "powersgd": {"rank": 2},
        "top_k": {"min_size": 0},
        "signum": {},
    }
    for seen in pool(2).run(train_with_both, choices):
        for name, (expected, got, handle, resumed, sent, sent_in_all) in seen.items():
            assert all(map(torch.equal, expected, got)), name
            assert sent == sent_in_all and handle == resumed, name


def test_a_hook_is_removed_compiled_and_wrapped_as_others_are() -> None:
    for seen in pool(2).run(hooks_of_others):
        for case, (got, right) in seen.items():
            tolerance = 1e-2 if case == "wrapped" else 1e-6
            assert all(
                torch.allclose(a, b, atol=tolerance) for a, b in zip(got, right, strict=True)
            ), case


def test_a_hook_that_does_not_fit_is_refused_in_one_sentence() -> None:
    says = {
        "name": "compressor=powersdg: there is no such method; type powersgd",
        "seed": "seed=-1: type a whole number of at least 0",
        "early": "state_dict: no DistributedDataParallel has used this hook yet; type ",
        "two": "comm_hook: this state was registered with two DDPs; type ",
        "unseen": "comm_hook: DDP exchanges gradients of a forward pass that was not seen; type ",
        "sparse": "Embedding: a compressor takes no sparse gradients; type sparse=False where ",
        "taken": "this DistributedDataParallel has a communication hook, and takes only one; ",
    }
    for seen in pool(2).run(mistakes_with_hooks):
        assert seen.keys() == says.keys()
        for case, sentence in seen.items():
            assert sentence.startswith(says[case]) and "\n" not in sentence, sentence
