"""The list of all methods."""

from __future__ import annotations

import pytest
from method_cases import CHOICES

from gcbench.core.conf import conf_directory, read_yaml
from gcbench.core.errors import ConfigError
from gcbench.core.method_files import read_method
from gcbench.runner.check import steps
from gcbench.runner.check.command import list_methods
from gcbench.runner.check.command import methods as listed_by
from gcbench.runner.launch.instantiate import make_compressor


def rows(lines: list[str]) -> dict[str, str]:
    return {line.split()[0]: line for line in lines if line[:1] == " " and line[1:2].isalpha()}


def test_every_choice_is_listed_with_what_it_sends_and_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    list_methods()
    lines = capsys.readouterr().out.splitlines()
    listed = rows(lines)
    assert set(CHOICES) == set(listed) - {"compressor"}
    for choice, facts in {
        "none": ["code    32.000 fp32 all_reduce", "1.0", "exact"],
        "loco": ["ours"],
        "fp16": ["16.000 fp16 all_reduce", "2.0", "exact"],
        # Of four workers, one receives three messages in a gather, and 3/2 gradients in a ring.
        "top_k": ["0.500 codes all_gather", " 32.0 ", " 16.0 ", "contractive"],
        "maxnorm": ["fp32 all_reduce max", "unbiased"],
        "signum": ["1.000 codes all_gather", "32.0"],
    }.items():
        for fact in facts:
            assert fact in listed[choice]
    assert "+ residual" in "\n".join(lines)


def test_what_is_sent_is_measured_after_a_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    list_methods(["top_k"], overrides=["dense_steps=5"])
    assert "0.500 codes all_gather" in rows(capsys.readouterr().out.splitlines())["top_k"]


def test_a_list_takes_no_steps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps are taken only to measure methods: all on request, or those that are named."""
    measured = []
    monkeypatch.setattr(
        steps,
        "wire",
        lambda compressor, wire=steps.wire: measured.append(compressor) or wire(compressor),
    )
    listed_by([])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if line.startswith("  ")]
    assert {name.rstrip("*") for name in listed} == {*CHOICES, "method"} and not measured
    assert "powersgd*" in listed and max(map(len, lines)) <= 80
    listed_by(["none", "bf16"])
    lines = capsys.readouterr().out.splitlines()
    assert list(rows(lines))[1:] == ["none", "bf16"] and "32.000 fp32" in rows(lines)["none"]
    assert len(measured) == 2
    with pytest.raises(ConfigError, match="qsdg: there is no such method; type qsgd"):
        listed_by(["qsdg"])


def test_families_say_what_methods_send_and_keep() -> None:
    families = read_yaml(conf_directory() / "families.yaml")["families"]
    said = {name: facts for family in families.values() for name, facts in family.items()}
    assert set(said) == set(CHOICES)
    for name, (bits, reduced, feedback) in said.items():
        method = make_compressor(read_method(name)["compressor"], quiet=True)
        sent = steps.wire(method)
        assert bits == pytest.approx(sent.bits_per_value, rel=0.05), name
        gathered = any("all_gather" in line for line in sent.lines)
        assert (reduced == "yes") != (gathered or name == "atomo"), name
        assert (feedback == "yes") == any("+" in p for p in steps.promises_of(method)), name
        if reduced == "sum":
            summed = read_method(name, {"exchange": "sum"})["compressor"]
            lines = steps.wire(make_compressor(summed, quiet=True)).lines
            assert not any("codes all_gather" in line for line in lines), name


def test_a_method_is_measured_with_the_knobs_that_are_typed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    listed_by(["powersgd", "rank=4"])
    said = capsys.readouterr().out
    listed_by(["powersgd"])
    assert "0.588 fp32" in said and "Measured with rank=4," in said
    assert "0.309 fp32" in capsys.readouterr().out, "rank 2; vectors are sent whole by both"
    with pytest.raises(ConfigError, match="rank=4: no such key; type the names of methods before"):
        listed_by(["rank=4"])
    with pytest.raises(ConfigError, match="bits=99: type a whole number from"):
        listed_by(["qsgd", "bits=99"])
