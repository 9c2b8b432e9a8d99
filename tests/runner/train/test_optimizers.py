"""Optimizers and schedules: torch's, as its documentation defines them, and any other class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from nightly import each
from sentence import config_of, run
from torch import Tensor, nn

from gcbench.core.conf import Config
from gcbench.runner.launch.optimization import make_optimizer, make_schedule, try_step
from gcbench.runner.settings.groups import OptimizerSettings, ScheduleSettings
from gcbench.runner.train.optimizers import parameter_groups

ADAM = {"kind": "adam", "lr": 0.01, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.5}


def with_norm() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


def optimizer_of(node: Config, model: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(OptimizerSettings.of(node), model)


@each(
    ("options", "along"),
    [
        ({"kind": "sgd", "momentum": 0.9}, lambda d, m: m),
        ({"kind": "sgd", "momentum": 0.9, "nesterov": True}, lambda d, m: d + 0.9 * m),
        ({"kind": "powersgd", "momentum": 0.9}, lambda d, m: d + m),
        ({"kind": "powersgd", "momentum": 0.0}, lambda d, m: d + m),
    ],
)
def test_momentum_steps_are_those_of_the_formulas(options: Config, along: Any) -> None:
    """With d = g + decay x and m = 0.9 m + d, torch's SGD steps along m, PowerSGD's along d + m."""
    model = with_norm()
    optimizer = optimizer_of({**options, "lr": 0.1, "weight_decay": 0.5}, model)
    x = {k: p.detach().clone() for k, p in model.named_parameters()}
    m = {k: torch.zeros_like(v) for k, v in x.items()}
    for step in range(3):
        for k, p in model.named_parameters():
            p.grad = torch.full_like(p, 0.5 + step)
            d = p.grad + (0.5 * x[k] if k.startswith("0.") else 0)  # none on batch normalization
            m[k] = options["momentum"] * m[k] + d
            x[k] = x[k] - 0.1 * along(d, m[k])
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), x[k])


def test_frozen_adam_is_adamw_until_its_variance_stands_still() -> None:
    """From then on, the parameters are linear in the gradients that the optimizer gets."""
    settings = {**ADAM, "kind": "frozen_adam", "freeze_steps": 3, "weight_decay": 0}
    settings["bias_correction"] = True
    nodes = {
        "adamw": {**ADAM, "kind": "adamw", "weight_decay": 0},
        **dict.fromkeys(("none", "once", "twice"), settings),
    }
    models = {name: with_norm() for name in nodes}
    for model in models.values():
        model.load_state_dict(models["adamw"].state_dict())
    optimizers = {name: optimizer_of(node, models[name]) for name, node in nodes.items()}
    factors = {"adamw": 1.0, "none": 0.0, "once": 1.0, "twice": 2.0}
    for step in range(6):
        for i, p in enumerate(models["adamw"].parameters()):
            d = torch.randn_like(p)
            for name, model in models.items():
                list(model.parameters())[i].grad = d * (factors[name] if step >= 3 else 1)
        for optimizer in optimizers.values():
            optimizer.step()
        for p, q in zip(models["adamw"].parameters(), models["once"].parameters(), strict=True):
            assert torch.allclose(p, q, rtol=1e-5, atol=1e-6) == (step < 3)
    places = [list(models[name].parameters()) for name in ("none", "once", "twice")]
    for none, once, twice in zip(*places, strict=True):
        torch.testing.assert_close(twice - once, once - none, rtol=1e-3, atol=1e-6)


@each("kind", ["adam", "adamw"])
def test_adam_has_moments_of_the_update_and_adamw_decays_beside_them(kind: str) -> None:
    model = with_norm()
    optimizer = optimizer_of({**ADAM, "kind": kind}, model)
    x = {k: p.detach().clone() for k, p in model.named_parameters()}
    m = {k: torch.zeros_like(v) for k, v in x.items()}
    v = {k: torch.zeros_like(v) for k, v in x.items()}
    for step in range(1, 5):
        for k, p in model.named_parameters():
            p.grad = torch.randn_like(p)
            decay = 0.5 if k.startswith("0.") else 0.0  # none on batch normalization
            d = p.grad + (decay * x[k] if kind == "adam" else 0)
            m[k] = 0.8 * m[k] + 0.2 * d
            v[k] = 0.9 * v[k] + 0.1 * d**2
            root = (v[k] / (1 - 0.9**step)).sqrt() + 1e-6
            shrunk = x[k] * (1 - 0.01 * decay) if kind == "adamw" else x[k]
            x[k] = shrunk - 0.01 * m[k] / (1 - 0.8**step) / root
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), x[k])


def test_groups_have_rates_and_options_of_their_own() -> None:
    model = with_norm()
    asked = [
        {"match": r"^0\.bias", "lr_scale": 8, "betas": [0.1, 0.2]},
        # This also matches a bias of batch normalization, and replaces its default of no decay.
        {"match": "bias", "weight_decay": 0.25, "lr": 0.02, "lr_scale": 2},
    ]
    groups = optimizer_of({**ADAM, "groups": asked}, model).param_groups
    names = {id(p): name for name, p in model.named_parameters()}
    options = {
        names[id(p)]: (group["lr"], *group["betas"], group["weight_decay"])
        for group in groups
        for p in group["params"]
    }
    assert options == {
        "0.weight": (0.01, 0.8, 0.9, 0.5),
        "0.bias": (0.08, 0.1, 0.2, 0.5),
        "1.weight": (0.01, 0.8, 0.9, 0.0),
        "1.bias": (0.04, 0.8, 0.9, 0.25),
    }
    assert all(group["initial_lr"] == group["lr"] for group in groups), "what schedules multiply"


@each(
    ("group", "says"),
    [
        (
            {"match": "head"},
            "match=head is in no parameter's name .*such names as 0.weight, 0.bias",
        ),
        ({"lr_scale": 2}, r"groups=\[\{lr_scale:2\}\]: a group has no `match` and no `hidden`"),
        (
            {"match": "0", "kind": "sgd", "betas": [0.9, 0.99]},
            r"groups.betas=\[0.9,0.99\]: \S+\.SGD has no such argument; it has lr",
        ),
        ({"hidden": True}, "hidden=true fits no parameter that an earlier group has left"),
        (
            {"match": "0", "momentum": 0.9},
            "momentum=0.9: a group of Adam has match, hidden, lr_scale, lr",
        ),
    ],
)
def test_a_group_that_means_nothing_is_refused(group: Config, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        optimizer_of({**ADAM, "groups": [group]}, with_norm())


def test_a_group_is_not_hidden_by_those_before_it() -> None:
    with pytest.raises(ValueError, match="match=bias is in no parameter's name that an earlier"):
        parameter_groups(nn.Linear(3, 2), 0.1, [{"match": "i"}, {"match": "bias"}])


class Language(nn.Module):
    """An embedding, hidden matrices of both forms with a bias, a norm and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.wide = nn.Embedding(5, 4), nn.Linear(4, 6)
        self.narrow, self.norm, self.head = nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 5)


ADAMW = {"hidden": False, "kind": "adamw", "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.5}
MUON: Config = {
    "kind": "muon",
    "lr": 0.1,
    "momentum": 0.9,
    "nesterov": True,
    "weight_decay": 0.2,
    "adjust_lr_fn": "original",
    "ns_steps": 5,
    "groups": [ADAMW],
}


def orthogonalized(g: Tensor, steps: int) -> Tensor:
    """Return what Newton-Schulz makes of a matrix in `steps` steps: singular values s become p(s).

    p is Jordan's polynomial 3.4445 s - 4.7750 s^3 + 2.0315 s^5, after s was divided by |g|.
    """
    u, s, v = torch.linalg.svd(g.double(), full_matrices=False)
    s = s / g.double().norm()
    for _ in range(steps):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ s.diag() @ v


@each(
    ("options", "factor"),
    [
        ({}, lambda n, m: max(1, n / m) ** 0.5),
        ({"adjust_lr_fn": "match_rms_adamw"}, lambda n, m: 0.2 * max(n, m) ** 0.5),
        ({"nesterov": False, "ns_steps": 2}, lambda n, m: max(1, n / m) ** 0.5),
    ],
)
def test_muon_steps_hidden_matrices_and_adamw_all_others(options: Config, factor: Any) -> None:
    """With m <- mu m + (1 - mu) d, a step is lr factor Orthogonalize(mu m + (1 - mu) d)."""
    model, twin, node = Language(), Language(), {**MUON, **options}
    twin.load_state_dict(model.state_dict())
    optimizer = optimizer_of(node, model)
    hidden = {k: p for k, p in model.named_parameters() if k in ("wide.weight", "narrow.weight")}
    others = {k: p for k, p in twin.named_parameters() if k not in hidden}
    reference = torch.optim.AdamW(
        others.values(), lr=0.1, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.5
    )
    x = {k: p.detach().double() for k, p in hidden.items()}
    m = {k: torch.zeros_like(v) for k, v in x.items()}
    for _ in range(3):
        for (k, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
            d = torch.randn_like(p)
            p.grad = q.grad = d
            if k in hidden:
                m[k] = 0.9 * m[k] + 0.1 * d
                ahead = 0.9 * m[k] + 0.1 * d if node["nesterov"] else m[k]
                along = factor(*d.shape) * orthogonalized(ahead, node["ns_steps"])
                x[k] = x[k] * (1 - 0.1 * 0.2) - 0.1 * along
        optimizer.step()
        reference.step()
    for k, p in model.named_parameters():
        if k in hidden:
            torch.testing.assert_close(p.double(), x[k], rtol=1e-4, atol=1e-4)
        else:
            assert torch.equal(p, others[k])


def test_optimizers_of_several_classes_are_saved_as_one(tmp_path: Path) -> None:
    """Each goes on from its own state, and a schedule sets the rates of all groups."""
    rate = ScheduleSettings(kind="linear", end_factor=0.1)

    def steps(made: torch.optim.Optimizer, model: nn.Module, count: int, seed: int) -> None:
        schedule = make_schedule(rate, made, workers=1, steps_per_epoch=4, steps=8)
        for step in range(count):
            torch.manual_seed(seed + step)
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            schedule.set_rates(made, seed + step)
            made.step()

    whole, twin = Language(), Language()
    twin.load_state_dict(whole.state_dict())
    norm = {"match": "norm", "_target_": "torch.optim.SGD", "lr_scale": 0.5, "momentum": 0.9}
    node = {**MUON, "groups": [norm, ADAMW]}
    one = optimizer_of(node, whole)
    steps(one, whole, 3, 0)
    torch.save([twin.state_dict(), one.state_dict(), whole.state_dict()], tmp_path / "saved.pt")
    steps(one, whole, 3, 3)
    _, saved, parameters = torch.load(tmp_path / "saved.pt", weights_only=True)
    twin.load_state_dict(parameters)
    other = optimizer_of(node, twin)
    other.load_state_dict(saved)
    steps(other, twin, 3, 3)
    for p, q in zip(whole.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    kinds = [sorted(one.state[p]) for p in (whole.wide.weight, whole.norm.weight, whole.head.bias)]
    assert kinds == [["momentum_buffer"], ["momentum_buffer"], ["exp_avg", "exp_avg_sq", "step"]]
    assert sorted(g["lr"] / one.param_groups[0]["lr"] for g in one.param_groups) == [0.5, 1, 1]


ONE_CYCLE = ("schedule._target_=torch.optim.lr_scheduler.OneCycleLR", "schedule.max_lr=0.1")
SHORT = ("trainer.launcher=virtual", "trainer.max_steps=6", "trainer.log_every=1")


def rates(folder: Path, *overrides: str) -> list[float]:
    run(folder, *SHORT, *overrides)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["lr"] for line in lines if line["event"] == "train"]


def test_the_rate_of_the_log_is_that_of_what_no_group_names(tmp_path: Path) -> None:
    first = "optimizer.groups=[{match: 1.weight, lr_scale: 8}]"
    logged = rates(tmp_path, first, "schedule=constant", "optimizer.lr=0.01")
    assert logged == [0.01] * 6


def test_a_scheduler_may_have_a_rate_for_each_group(tmp_path: Path) -> None:
    each = [*ONE_CYCLE[:1], "schedule.max_lr=[0.1,0.2]"]
    groups = ["optimizer.groups=[{match: bias, lr_scale: 2}]", "optimizer.momentum=0.9"]
    assert rates(tmp_path, *each, *groups)[0] == pytest.approx(0.1 / 25)


def test_a_scheduler_of_epochs_lasts_for_the_last_part_of_one(tmp_path: Path) -> None:
    """A run of 2.5 epochs has three rates, none of them the 0 at the end of the cosine."""
    cosine = "schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR"
    length = ["trainer.epochs=2.5", "trainer.max_steps=null", "trainer.batch_size=256"]
    typed = [cosine, "schedule.interval=epoch", *length, "optimizer.lr=1"]
    assert sorted(set(rates(tmp_path, *typed))) == pytest.approx([0.25, 0.75, 1])


def test_a_cycle_has_the_length_that_was_typed(tmp_path: Path) -> None:
    """Without a length it has that of the run, of which this one sees the first half."""
    whole = rates(tmp_path / "a", *ONE_CYCLE, "trainer.max_steps=12")
    typed = ["schedule.epochs=3", "schedule.steps_per_epoch=4"]
    assert rates(tmp_path / "b", *ONE_CYCLE, *typed) == whole[:6]


def test_any_optimizer_and_any_schedule_run(tmp_path: Path) -> None:
    """T_max, which is not typed here, defaults to the number of steps."""
    overrides = (
        "optimizer._target_=torch.optim.RMSprop optimizer.alpha=0.9 optimizer.lr=0.01".split()
    )
    cosine = "schedule._target_=torch.optim.lr_scheduler.CosineAnnealingLR"
    config = config_of(*overrides, cosine)
    assert config.optimizer.as_dict() == {
        "_target_": "torch.optim.RMSprop",
        "alpha": 0.9,
        "lr": 0.01,
    }
    optimizer = torch.optim.RMSprop([torch.zeros(1)], lr=0.01)
    reference = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    expected = []
    for _ in range(6):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert rates(tmp_path, *overrides, cosine) == expected


def test_a_schedule_of_ones_own_is_stepped_by_epochs_where_that_is_typed(tmp_path: Path) -> None:
    overrides = (
        "schedule._target_=own_optimizers.halving optimizer.lr=1 trainer.batch_size=240".split()
    )
    assert rates(tmp_path / "a", *overrides) == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32]
    facts = rates(tmp_path / "b", *overrides, "schedule.every=2")
    assert facts == [1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4]
    # With two workers, 1437 samples make two steps per epoch.
    assert rates(tmp_path / "c", *overrides, "schedule.interval=epoch", "trainer.epochs=3") == [
        *(1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4)
    ]


def test_error_feedback_adds_gradients_and_not_steps(tmp_path: Path) -> None:
    """At these rates the weights do not move, so the codes must not depend on the rate."""
    overrides = ["compressor=top_k", "min_size=0", "trainer.log_every=6", *SHORT[:2]]
    still = [run(tmp_path / f"{lr}", *overrides, f"optimizer.lr={lr}") for lr in ("1e-30", "1e-20")]
    assert still[0]["compression_error"] == still[1]["compression_error"]


def test_a_step_is_tried_on_a_model_without_values() -> None:
    with torch.device("meta"):
        model = with_norm()
    for kind in ("adam", "adamw"):
        try_step(OptimizerSettings.of({**ADAM, "kind": kind}), ScheduleSettings(), model)
    assert all(p.is_meta and p.grad is None for p in model.parameters())
