"""The command line: every file of conf/ composes, and every mistake is refused by name."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra._internal import config_loader_impl as loader
from nightly import each, loop_over, slow_but
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from sentence import compose, config_of, values_of

from gcbench.core.conf import Config, conf_directory
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import read_method
from gcbench.runner.command.help import help_of
from gcbench.runner.config.compose import compose_overrides, open_nodes, split_sweep
from gcbench.runner.config.hydra_versions import IS_1_3
from gcbench.runner.config.naming import (
    budget_notice,
    learning_rate_notice,
    run_directory,
    run_name,
)
from gcbench.runner.config.resolve import resolve
from gcbench.runner.config.sentences import unknown_key
from gcbench.runner.config.typed import readable, to_overrides
from gcbench.runner.identity import fingerprint, identify
from gcbench.runner.settings.config import SCHEMAS, RunConfig
from gcbench.runner.settings.groups import RunSettings

GROUPS = tuple(
    "model dataset estimator compressor optimizer schedule trainer network logger resume "
    "budget".split()
)
CHOICES = [(g, f.stem) for g in GROUPS for f in sorted((conf_directory() / g).glob("*.yaml"))]


@cache
def whole(*overrides: str) -> DictConfig:
    return compose(*overrides)


def with_choice(group: str, choice: str, *overrides: str) -> Config:
    """Return what `group=choice` composes to, without Hydra, which takes 0.2 s.

    This works for models and data sets, because their files have no schema.
    """
    tree = deepcopy(whole(*overrides))
    with open_dict(tree), read_write(tree.hydra):
        tree[group] = OmegaConf.load(conf_directory() / group / f"{choice}.yaml")
        tree.hydra.runtime.choices[group] = choice
    return resolve(tree).as_dict()


def test_a_choice_without_hydra_is_the_one_with_it() -> None:
    for group, choice in (("model", "resnet20"), ("dataset", "mnist")):
        other = "dataset=cifar10" if group == "model" else "model=mlp"
        assert with_choice(group, choice, other) == values_of(f"{group}={choice}", other)


# Compressors are slow cases here, because method_cases.py composes all of them for other tests.
@loop_over([key for key in CHOICES if key[0] != "compressor"], CHOICES)
def test_every_file_of_conf_composes(group: str, choice: str) -> None:
    texts = ("lstm", "lstm_small", "gpt_small", "gpt_tiny", "gpt_bytes")
    fitting = {
        **dict.fromkeys(texts, ["dataset=wikitext2"]),
        **dict.fromkeys(
            ("wikitext2", "wikitext2_bytes", "linux_doc", "text", "hf"), ["model=lstm"]
        ),
        **dict.fromkeys(("an4_lstm", "an4_lstm_small"), ["dataset=an4"]),
        "an4": ["model=an4_lstm"],
    }
    overrides = fitting.get(choice, [])
    if group in ("model", "dataset"):
        config = with_choice(group, choice, *overrides)
    else:
        config = values_of(f"{group}={choice}", *overrides)
    assert config["choices"][group] == choice


def test_help_names_every_choice() -> None:
    text = help_of("config")
    groups: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("  ") and line.strip():
            words = line.replace(",", " ").split()
            # A line that is indented further continues the group above.
            name = words[0] if line[2] != " " else name
            groups.setdefault(name, []).extend(words)
    for group, choice in CHOICES:
        assert choice in groups[group], f"conf/{group}/{choice}.yaml is missing from the help"


def test_a_sweep_is_told_which_of_its_methods_lack_a_key() -> None:
    sentence = unknown_key("bits", "2", benchmark=False, overrides=["compressor=none,qsgd,top_k"])
    assert sentence == (
        "bits=2: compressor=none,top_k has no such key; type compressor=qsgd with it, and "
        "compressor=none,top_k in a second command without it"
    )
    alone = unknown_key("bits", "2", benchmark=False, overrides=["compressor=none"])
    assert "bits belongs to compressor=ecqsgd" in alone


def test_an_experiment_of_ones_own_may_begin_with_a_row_of_any_table(tmp_path: Path) -> None:
    for name in ("powersgd/table4/mine", "mine"):
        own = tmp_path / "experiment" / f"{name}.yaml"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(
            "# @package _global_\ndefaults:\n  - /experiment/orq/table3/orq_3\n  - _self_\n"
            "bucket_size: 64\n"
        )
        config = resolve(compose_overrides([f"+experiment={name}"], str(tmp_path))).as_dict()
        assert (config["experiment"], config["bucket_size"]) == (name, 64)
        assert config["choices"]["compressor"] == "orq"


def test_functions_are_refused_where_python_has_no_asserts() -> None:
    """Hydra 1.3 reads on inside an assert."""
    typed = "from gcbench.runner.config.compose import open_nodes; print(open_nodes({}))".format
    refused = "ConfigError: bits=range(2,4): Hydra cannot read functions under " if IS_1_3 else ""
    for arguments, says in (
        (["bits=range(2,4)"], refused),
        (["bits=2,4", "name='f(x)'"], ""),
    ):
        python = (sys.executable, "-O", "-c", typed(arguments))
        ended = subprocess.run(python, capture_output=True, text=True)
        assert says in ended.stderr and bool(ended.stderr) is bool(says)


OWN_SCHEDULE = "schedule._target_=torch.optim.lr_scheduler.ConstantLR"


def test_a_typed_kind_is_the_choice_whose_schedule_a_recipe_leaves_alone() -> None:
    for typed in ("schedule=cosine", "schedule.kind=cosine"):
        config = values_of(ROW, "budget=cpu", typed)
        assert config["choices"]["schedule"] == config["schedule"]["kind"] == "cosine"
    own = values_of(ROW, "budget=cpu", OWN_SCHEDULE)
    assert own["choices"]["schedule"] == own["schedule"]["_target_"]
    assert values_of("optimizer.kind=powersgd")["choices"]["optimizer"] == "powersgd"


def test_a_key_may_be_typed_with_two_signs() -> None:
    assert values_of("++bits=2")["bits"] == 2


def test_a_mapping_of_python_is_the_keys_below_it() -> None:
    keys = {"bits": 4, "trainer": {"epochs": 1, "max_steps": None}}
    assert to_overrides(keys) == ["bits=4", "trainer.epochs=1", "trainer.max_steps=null"]


def test_a_benchmark_is_answered_with_keys_of_benchmarks() -> None:
    assert unknown_key("clases", "3", benchmark=True).endswith("did you mean classes=3?")
    assert "classes" not in unknown_key("clases", "3", benchmark=False)
    assert "trainer" not in unknown_key("gpus", "3", benchmark=True)


def test_whole_numbers_are_the_same_run() -> None:
    one, other = (values_of(f"optimizer.lr={lr}", "optimizer=adamw") for lr in ("1", "1.0"))
    assert identify(one) == identify(other)
    assert identify(one) != identify(values_of("optimizer.lr=1", "optimizer=adam"))


def test_levels_and_bits_follow_each_other() -> None:
    assert [values_of(f"bits={b}")["levels"] for b in range(2, 9)] == [1, 3, 7, 15, 31, 63, 127]
    assert values_of("levels=5")["bits"] == 4
    assert values_of("levels=5")["compressor"]["method"]["levels"] == 5
    assert values_of("levels=5", "bits=4")["levels"] == 5


@pytest.mark.parametrize("plus", slow_but([""], ["", "+", "++"]))
def test_another_target_gets_only_the_keys_that_were_typed(plus: str) -> None:
    config = values_of("model._target_=my.pkg.Net", f"{plus}model.depth=3", "dataset=cifar10")
    assert config["model"] == {"_target_": "my.pkg.Net", "depth": 3}
    assert config["choices"]["model"] == "my.pkg.Net"
    for group, key in (("optimizer", "lr"), ("schedule", "gamma")):
        config = values_of(f"{group}._target_=my.pkg.Thing", f"{plus}{group}.{key}=3")
        assert config[group] == {"_target_": "my.pkg.Thing", key: 3}
        assert config["choices"][group] == "my.pkg.Thing"
        name = run_name(compose(f"{group}._target_=my.pkg.Thing", f"{group}.{key}=4"))
        assert name != run_name(compose(f"{group}._target_=my.pkg.Thing", f"{group}.{key}=3"))


def test_runs_that_differ_have_directories_that_differ() -> None:
    name = run_name(compose())
    assert name.startswith("mlp-digits-qsgd-s1-")
    assert run_name(compose()) == name
    assert (
        run_name(compose("trainer.checkpoint_steps=5", "logger.mode=offline", "outputs=elsewhere"))
        == name
    )
    typed = (
        *"bits=3 seed=2 optimizer.lr=0.1 trainer.workers=4".split(),
        *"model.widths=[3] network=emulated".split(),
    )
    assert len({name, *(run_name(compose(o)) for o in typed)}) == 1 + len(typed)
    assert run_name(compose("name=mine")).startswith("mine-s1-")


def test_names_hold_what_was_typed_and_changes_numbers() -> None:
    typed = ("optimizer.lr=0.1", "bits=2", "norm=l2", "schedule=constant", "trainer.threads=1")
    name = run_name(compose(*typed, "seed=3", "trainer.log_every=7"))
    assert name.startswith("mlp-digits-qsgd+bits2+norm_l2+schedule_constant+lr0.1-s3-")
    assert run_name(compose(*typed, "name=mine", "model=linear")).startswith(
        "mine+bits2+model_linear"
    )
    assert run_name(compose(ROW, "rank=1")).startswith("powersgd/table4/rank_7+rank1-s1-")
    assert run_name(compose("model.widths=[3,4]")).startswith("mlp-digits-qsgd+widths3_4-s1-")
    own = "optimizer._target_=torch.optim.RMSprop", "optimizer.lr=0.1"
    assert "+optimizer_torch.optim.RMSprop+lr0.1-s1-" in run_name(compose(*own))
    many = [f"{key}=1" for key in ("trainer.workers", "trainer.batch_size", "trainer.epochs")]
    assert len(run_name(compose(*many, "bits=2", "trainer.max_steps=1", "optimizer.lr=1"))) < 100
    long = [f"name='{'é' * 75}'", f"+model.word='{'語' * 19}'", "model._target_=mine.Net", "seed=9"]
    assert 150 < len(run_name(compose(*long)).encode()) < 200, "a file system allows 255 bytes"


def test_a_run_is_found_again_whatever_was_typed_of_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)  # from a checkout that has outputs of the same run
    to = f"outputs={tmp_path}"
    default = run_name(compose(to))
    (tmp_path / default).mkdir()
    assert run_name(compose(to, "bits=4")) == default != run_name(compose("bits=4"))
    assert run_name(compose(to, "bits=3")) != default
    # A run with another name or another budget is a different run.
    ending = default.partition("-s1-")[2]
    (tmp_path / f"mine-too-s1-{ending}").mkdir()
    assert run_name(compose(to, "name=mine")) == f"mine-s1-{ending}"
    row = run_name(compose(to, ROW, "rank=7"))
    (tmp_path / row).mkdir(parents=True)
    assert run_name(compose(to, ROW)) == row == run_name(compose(to, ROW, "rank=7"))


ROW = "+experiment/powersgd/table4=rank_7"


def test_a_row_of_a_table_is_the_papers_experiment_and_names_its_directory() -> None:
    config = values_of(ROW)
    assert config["experiment"] == "powersgd/table4/rank_7"
    assert (config["choices"]["model"], config["rank"]) == ("resnet18", 7)
    assert config["trainer"]["workers"] == 16
    assert run_name(compose(ROW)).startswith("powersgd/table4/rank_7-s1-")
    assert values_of()["experiment"] is None
    usual = "+experiment=powersgd/table4/rank_7"
    assert values_of(usual) == config and run_name(compose(usual)) == run_name(compose(ROW))


def test_a_budget_makes_the_same_experiment_smaller() -> None:
    row = "+experiment/powersgd/table3_wikitext2=rank_2"
    paper, cpu = values_of(row), values_of(row, "budget=cpu")
    assert (
        cpu["choices"]["model"] == "lstm_small" and cpu["model"]["width"] < paper["model"]["width"]
    )
    smaller = {"workers": 4, "batch_size": 8, "epochs": 0.4}
    assert {key: cpu["trainer"][key] for key in smaller} == smaller
    share = smaller["epochs"] / paper["trainer"]["epochs"]
    assert cpu["schedule"]["warmup_epochs"] == paper["schedule"]["warmup_epochs"] * share
    assert cpu["schedule"]["milestones"] == paper["schedule"]["milestones"]
    assert run_name(compose(row, "budget=cpu")).startswith(
        "powersgd/table3_wikitext2/rank_2-cpu-s1-"
    )
    notice = budget_notice(RunConfig.of(cpu))
    assert notice is not None
    assert "model=lstm_small trainer.workers=4 trainer.batch_size=8 trainer.epochs=0.4" in notice
    assert budget_notice(RunConfig.of(paper)) is None


@each(("typed", "steps"), [("every=8", 8), ("every=2", 3)])
def test_a_budget_of_few_steps_ends_with_an_exchange(typed: str, steps: int) -> None:
    row = "+experiment/modern/gpt=local_8"
    assert values_of(row, "budget=smoke", f"estimator.{typed}")["trainer"]["max_steps"] == steps


@each(
    ("row", "optimizer", "compressor", "steps"),
    [
        ("diloco_30", "adamw", "none", (30, 0.0875, 0.9, True)),  # outer rates as tuned here
        ("sparseloco_15", "adamw", "sparseloco", (15, 2, 0, False)),
        ("muloco_30", "muon", "none", (30, 0.9, 0.8, True)),
    ],
)
def test_rows_of_local_steps_are_the_published_methods(
    row: str, optimizer: str, compressor: str, steps: tuple[int | float, ...]
) -> None:
    config = values_of(f"+experiment/modern/gpt={row}")
    keys = ("every", "outer_lr", "outer_momentum", "outer_nesterov")
    assert tuple(config["estimator"][key] for key in keys) == steps
    choices = config["choices"]
    assert (choices["optimizer"], choices["compressor"]) == (optimizer, compressor)
    assert config["estimator"]["clip_norm"] == 1 and config["clip_norm"] is None
    assert config.get("beta", 0.95) == 0.95


def test_rates_follow_the_size_of_the_whole_batch() -> None:
    paper, smoke = values_of(ROW), values_of(ROW, "budget=smoke")
    assert smoke["optimizer"]["lr"] == paper["optimizer"]["lr"] * 4 / 128, (
        "of a worker; the schedule multiplies by the workers"
    )


def test_a_recipe_takes_the_place_of_everything_but_the_method_and_the_form_of_optimizer() -> None:
    paper, medium = values_of(ROW), values_of(ROW, "budget=cpu_medium")
    assert (medium["choices"]["model"], medium["model"]["widths"]) == ("airnet", [32, 128, 192])
    assert medium["dataset"]["crop_fill"] == "reflect"
    assert medium["choices"]["schedule"] == medium["schedule"]["kind"] == "linear"
    assert medium["schedule"]["warmup_epochs"] == pytest.approx(0.23 * medium["trainer"]["epochs"])
    kept = ("kind", "momentum", "nesterov")
    assert [medium["optimizer"][key] for key in kept] == [paper["optimizer"][key] for key in kept]
    assert (medium["rank"], medium["error_feedback"]) == (7, True)
    typed = values_of(
        ROW,
        *"budget=cpu_medium trainer.label_smoothing=0.1 trainer.epochs=2 schedule=steps".split(),
    )
    assert typed["trainer"]["label_smoothing"] == 0.1 and typed["choices"]["schedule"] == "steps"
    others = {name: values_of(ROW, f"budget={name}") for name in ("cpu", "cpu_long")}
    assert others["cpu"]["model"]["widths"] == [16, 64, 128]
    assert others["cpu_long"]["model"]["widths"] == [64, 256, 256]
    assert [config["trainer"]["epochs"] for config in (*others.values(), medium)] == [4, 10, 10]
    wide = values_of(ROW, *open_nodes(["budget=cpu_medium", "model.widths=[48,128,128]"]))
    assert wide["choices"]["model"] == "airnet" and wide["model"]["widths"] == [48, 128, 128]
    own = values_of(ROW, *open_nodes(["budget=cpu_medium", "model=mlp", "model.widths=[8]"]))
    assert own["choices"]["model"] == "mlp" and own["model"]["widths"] == [8]


@each(("typed", "batch"), [([], 512), (["trainer.batch_size=16"], 64)])
def test_a_recipe_keeps_the_rates_of_methods_relative_to_each_other(
    typed: list[str], batch: int
) -> None:
    """The recipe's rate is for 512 samples; a method's own rate is the same for every batch."""

    def rate(row: str) -> float:
        lr: float = values_of(f"+experiment/{row}", "budget=cpu_medium", *typed)["optimizer"]["lr"]
        return lr

    sgd = rate("powersgd/table1=sgd")
    assert sgd == pytest.approx(0.1 * 5 * batch / 512)
    assert rate("powersgd/table1=unbiased_rank_1") == pytest.approx(sgd / 8)
    assert rate("qsgd/claims=qsgd") == pytest.approx(sgd)
    assert rate("powersgd/table6=signum") == 0.008
    assert rate("maxnorm/resnet50=grandk_mn") == 1


@pytest.mark.parametrize("workers", [4, 2])
@pytest.mark.parametrize(
    ("row", "schedule", "factor"),
    [
        ("powersgd/table1=sgd", [], 0.1 * 5 * 128 / 512),
        ("powersgd/table1=sgd", ["schedule=cosine"], 0.1 * 5 * 128 / 512),
        ("powersgd/table1=sgd", [OWN_SCHEDULE], 0.1 * 5 * 128 / 512),
        ("powersgd/table7=sgd", [], 4 * 1.25),
        ("powersgd/table7=sgd", [OWN_SCHEDULE], 4 * 1.25),
    ],
)
def test_a_recipes_rate_is_scaled_by_the_workers_once(
    row: str, schedule: list[str], factor: float, workers: int
) -> None:
    typed = ["budget=cpu_medium", f"trainer.workers={workers}", *schedule]
    config = values_of(f"+experiment/{row}", *typed)
    scaled = config["schedule"].get("scale_by_workers", False)
    assert config["optimizer"]["lr"] * (workers if scaled else 1) == pytest.approx(factor * workers)


def test_the_small_gpt_trains_for_longer_at_larger_budgets() -> None:
    def sizes(row: str, budget: str, table: str = "gpt") -> tuple[float, ...]:
        config = values_of(f"+experiment/modern/{table}={row}", f"budget={budget}")
        trainer = config["trainer"]
        return trainer["batch_size"], trainer["epochs"], config["optimizer"]["lr"]

    assert sizes("none", "cpu") == (2, 0.2, 0.002)
    assert sizes("none", "cpu_medium") == (16, 4, pytest.approx(0.008))
    assert sizes("qsgd", "cpu_long") == (16, 20, pytest.approx(0.008))
    assert sizes("signum", "cpu_medium") == (16, 4, 0.001)
    assert sizes("dion", "cpu_medium") == (16, 4, 0.01)
    assert sizes("none", "cpu_medium", "gpt_sgd") == (16, 4, 0.1)


def test_a_recipe_has_rates_for_a_method_with_an_optimizer() -> None:
    def rate(row: str, *typed: str) -> float:
        lr: float = values_of(f"+experiment/modern/{row}", *typed)["optimizer"]["lr"]
        return lr

    assert rate("gpt=onebit") == rate("gpt=none", "budget=cpu") == 0.002
    assert rate("gpt=onebit", "budget=cpu") == pytest.approx(0.001)
    assert rate("gpt=onebit", "budget=cpu", "optimizer.lr=0.004") == 0.004
    assert rate("gpt=onebit", "budget=cpu_medium") == pytest.approx(0.002)
    assert rate("gpt=ef21", "budget=cpu_medium") == pytest.approx(0.008 / 4), "as at budget=cpu"
    assert rate("gpt=zero_one_adam", "budget=cpu_medium") == pytest.approx(0.004)
    assert rate("gpt_sgd=onebit", "budget=cpu") == 0.1, "the rates are of AdamW"


def test_text_has_all_its_words_at_larger_budgets() -> None:
    def text(row: str, budget: str) -> tuple[float, ...]:
        config = values_of(f"+experiment/powersgd/{row}", f"budget={budget}")
        rate = config["optimizer"]["lr"]
        return config["model"]["vocabulary"], config["trainer"]["epochs"], rate

    assert text("table3_wikitext2=sgd", "paper") == (28869, 90, 1.25)
    assert text("table3_wikitext2=sgd", "cpu") == (2000, 0.4, 1.25)
    assert text("table3_wikitext2=sgd", "cpu_medium") == (28869, 0.5, 5)
    assert text("table3_wikitext2=rank_4", "cpu_long") == (28869, 2, 5)
    assert text("table7=signum", "cpu_medium") == (28869, 0.5, 0.002)


def test_a_budget_may_leave_the_rate_to_the_number_of_workers() -> None:
    """With `scale_lr: false` the rate depends on the number of workers, not on the batch size.

    4 of 16 workers get a quarter of the rate, unless schedule.scale_by_workers multiplies it.
    """
    row = "+experiment/powersgd/table3_wikitext2=sgd"
    cpu = values_of(row, "budget=cpu")
    assert cpu["choices"]["model"] == "lstm_small"
    assert cpu["trainer"]["batch_size"] < values_of(row)["trainer"]["batch_size"]
    assert cpu["optimizer"]["lr"] == values_of(row)["optimizer"]["lr"]
    assert (
        values_of(row, "budget=cpu", "schedule.scale_by_workers=false")["optimizer"]["lr"]
        == values_of(row, "budget=cpu", OWN_SCHEDULE)["optimizer"]["lr"]
        == values_of(row)["optimizer"]["lr"] / 4
    )
    signum = values_of("+experiment/powersgd/table7=signum", "budget=cpu")["optimizer"]
    assert (signum["lr"], signum["kind"]) == (0.002, "sgd"), "signs have a rate of their own"


def test_what_is_typed_stays_whatever_the_budget() -> None:
    config = values_of(
        ROW,
        *"budget=cpu model=resnet20 trainer.epochs=7 optimizer.lr=0.3 trainer.workers=2".split(),
    )
    assert config["choices"]["model"] == "resnet20" and config["optimizer"]["lr"] == 0.3
    assert (
        config["trainer"]["epochs"],
        config["trainer"]["workers"],
        config["trainer"]["batch_size"],
    ) == (7, 2, 128)


def test_a_model_that_a_budget_does_not_name_keeps_its_size() -> None:
    assert values_of("budget=cpu")["trainer"]["batch_size"] == 32
    assert values_of("budget=cpu")["choices"]["model"] == "mlp"
    assert values_of("budget=smoke")["trainer"]["max_steps"] == 3


def test_a_fingerprint_forgets_how_a_run_executes() -> None:
    one = fingerprint(values_of())
    facts = fingerprint(
        values_of("trainer.launcher=virtual", "trainer.threads=1", "trainer.checkpoint_steps=3")
    )
    assert facts == one
    assert fingerprint(values_of("network=emulated", "network.bandwidth=100mbit")) == one
    assert fingerprint(values_of("optimizer.lr=0.1")) != one


def test_a_rate_far_from_the_published_one_is_noticed() -> None:
    def noticed(published: float, *typed: str) -> str | None:
        recommended = {"recommended": {"lr": published}}
        return learning_rate_notice(RunConfig.of({**values_of(*typed), **recommended}))

    notice = noticed(5.0e-5, "optimizer.lr=0.05")
    assert (
        notice is not None and "optimizer.lr=0.05" in notice and "type optimizer.lr=5e-05" in notice
    )
    assert noticed(0.1, "optimizer.lr=0.05") is None
    assert learning_rate_notice(config_of()) is None
    assert "optimizer.lr=5e-05" in str(learning_rate_notice(config_of("compressor=signum")))


def test_a_configuration_has_the_values_that_a_result_keeps() -> None:
    """A kept configuration, of which an older gcbench may lack keys, gets none when it is read."""
    own = values_of("network=emulated", "compressor=powersgd", "rank=3")
    assert own["rank"] == 3 and own["network"] == {"bandwidth": "1gbit", "latency": "50us"}
    assert values_of()["network"] == {}
    older = {**own, "network": {}, "trainer": {"workers": 2}, "logger": {"kind": "none"}}
    for kept in (own, values_of("schedule._target_=torch.optim.lr_scheduler.LinearLR"), older):
        config = RunConfig.of(kept)
        assert config.as_dict() == kept and identify(config.as_dict()) == identify(kept)
    assert config.trainer.epochs == 20 and config.method.rank == 3 and config.network is None


def test_only_what_means_the_same_is_checked_of_a_users_class() -> None:
    own = ["optimizer._target_=torch.optim.RMSprop", "optimizer.momentum=5"]
    optimizer = config_of(*own, "optimizer.lr=1", "optimizer.centered=true").optimizer
    assert (optimizer.target, optimizer.kind) == ("torch.optim.RMSprop", None)
    assert (optimizer.lr, optimizer.momentum, optimizer.groups) == (1.0, 5, [])
    assert optimizer.as_dict()["centered"] is True
    groups = "optimizer.groups=[{match:bias,lr_scale:-1}]"
    for typed, says in (
        (["optimizer.lr=-1"], "optimizer.lr=-1: type a number above 0"),
        (["optimizer.lr=1", groups], "optimizer.groups: lr_scale=-1: type a number of at least 0"),
    ):
        with pytest.raises(ConfigError, match=says):
            config_of(*own, *typed)


def test_a_key_that_the_file_of_a_choice_lacks_reads_as_its_default() -> None:
    adamw = config_of("optimizer=adamw").optimizer
    assert (adamw.momentum, adamw.nesterov, adamw.freeze_steps) == (0.0, False, None)
    assert "momentum" not in adamw.as_dict() and adamw.betas == [0.9, 0.999]


def test_defaults_are_those_of_the_models() -> None:
    """A run has the defaults that a program gets which makes TrainerSettings itself."""
    config = values_of("schedule=constant")
    for group in ("trainer", "schedule", "logger", "resume"):
        assert config[group] == SCHEMAS[group]().model_dump()
    assert {"outputs": "outputs", **config} | RunSettings().model_dump() == config


STRUCTURE = {"defaults", "_target_", "compressor", "reads", "features"}  # keys that are not knobs


@each(("group", "choice"), [key for key in CHOICES if key[0] not in ("budget", "compressor")])
def test_every_key_is_explained_by_its_knob_or_beside_it(group: str, choice: str) -> None:
    text = (conf_directory() / group / f"{choice}.yaml").read_text()
    said = {line.partition(":")[0] for line in text.splitlines() if "  # " in line}
    known = set(SCHEMAS[group].model_fields) if group in SCHEMAS else {"kind"}
    assert set(yaml.safe_load(text)) - STRUCTURE <= said | known


@pytest.mark.parametrize(
    "overrides",
    [
        ["bits=3", "name=three"],
        ["compressor=powersgd", "rank=3"],
        ["+experiment/orq/table3=orq_3", "budget=cpu", "bucket_size=512"],
        ["model._target_=own.Model", "model.depth=3"],
    ],
)
def test_tests_compose_what_hydra_composes(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests cache the merged files (see composing.py), which must not change the result."""
    compose(*overrides, "seed=2")  # merges the files, which the next call finds in the cache
    here = compose(*overrides)
    merger = loader.ConfigLoaderImpl
    merge = merger._compose_config_from_defaults_list.__wrapped__
    monkeypatch.setattr(merger, "_compose_config_from_defaults_list", merge)
    create = loader.create_defaults_list.__wrapped__
    monkeypatch.setattr(loader, "create_defaults_list", create)
    assert compose(*overrides) == here
    assert run_directory(compose(*overrides)) == run_directory(here)


def test_case_and_dashes_do_not_count_in_the_name_of_a_choice(tmp_path: Path) -> None:
    typed = compose("compressor=Top-K", "model=ResNet20", "dataset=CIFAR_10")
    assert typed == compose("compressor=top_k", "model=resnet20", "dataset=cifar10")
    assert split_sweep(["compressor=QSGD,PowerSGD"]) == [
        ["compressor=qsgd"],
        ["compressor=powersgd"],
    ]
    assert read_method("Power-SGD", {"rank": 3}) == read_method("powersgd", {"rank": 3})
    (tmp_path / "compressor").mkdir()
    own = tmp_path / "compressor" / "QSGD.yaml"
    own.write_text("# @package _global_\ndefaults: [qsgd]\nbits: 3\n")
    assert compose_overrides(["compressor=QSGD"], str(tmp_path)).bits == 3, "as it is typed"


def test_what_only_a_shell_or_quotes_would_change_is_read_as_it_was_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    read = readable(["data.root=~/data", "name=größe#1", "+trainer.workers=4", "bits=2,4", "x='~'"])
    assert read == [
        f"data.root='{tmp_path}/data'",
        "name='größe#1'",
        "+trainer.workers=4",
        "bits=2,4",
        "x='~'",
    ]
    assert readable(read) == read
    typed = compose("data.root=~/data", "outputs=~/runs", "name=größe", "trainer.workers=4")
    assert (typed.data.root, typed.outputs) == (f"{tmp_path}/data", f"{tmp_path}/runs")
    assert (typed.name, typed.trainer.workers) == ("größe", 4)
    assert split_sweep(["outputs=~/a", "trainer.workers=2,4"])[1][1] == "trainer.workers=4"
