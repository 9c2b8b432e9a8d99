"""`gcbench predict machine`: this machine as a device, and when a device is old."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import yaml

from gcbench.core.conf import conf_directory, method_files
from gcbench.core.errors import ConfigError
from gcbench.runner.predict import machine
from gcbench.runner.predict.command import predict_steps
from gcbench.runner.predict.devices import code_of, read_device, sources_of_codecs

TYPED = ["machine", "device=made.yaml", "compressor=qsgd,none", "sizes=4096,1024", "rounds=1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "MODELS", {"mlp": (16,), "gpt_bytes": (1,)})
    return tmp_path


def test_a_device_is_measured_by_one_command_and_measured_anew(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predict_steps(TYPED)
    device = read_device("made.yaml")
    assert {*device.codecs} == {"qsgd", "none"} and {*device.models} == {"mlp", "gpt_bytes"}
    for part in (device.codecs["qsgd"].aggregate_seconds, device.codecs["qsgd"].decode_seconds):
        assert part and [*part] == [1024, 4096] and all(0 < taken < 1 for taken in part.values())
    assert 0.2 < device.backward_share < 0.9
    assert device.processor in ("AVX512", "AVX2", "DEFAULT")
    assert device.measured == date.today().isoformat()
    assert device.sources == sources_of_codecs() and not device.is_old
    predict_steps([*TYPED, "title=again"])
    assert read_device("made.yaml").title == "again"
    capsys.readouterr()
    typed = ["model=mlp", "compressor=qsgd", "device=made.yaml", "batch_size=16", "workers=2"]
    predict_steps(typed)
    assert "Codecs were changed" not in capsys.readouterr().out
    node = yaml.safe_load(Path("made.yaml").read_text())
    Path("made.yaml").write_text(yaml.safe_dump({**node, "sources": "0123456789ab"}))
    predict_steps(typed)
    said = " ".join(capsys.readouterr().out.split())
    assert "Codecs were changed after device=made.yaml was measured, and its seconds of" in said
    with pytest.raises(ConfigError, match="device=made.yaml: this command has not made the file"):
        predict_steps(TYPED)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["machine"], "device=None: it is written to a yaml file; type device=mine.yaml"),
        (["machine", "device=mine"], "device=mine: it is written to a yaml file"),
        (["machine", "device=m.yaml", "compressor=qsdg"], "compressor=qsdg: there is no such"),
    ],
)
def test_mistakes_are_named(here: Path, typed: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        predict_steps(typed)


def test_a_device_is_old_by_code_and_not_by_comments() -> None:
    python = (
        'from a.b import (\n    c,\n)\nimport d\n\n\ndef f(x):\n    """Say."""\n    return c(x)\n'
    )
    assert code_of(".py", python) == "deff(x):returnc(x)"
    for other in ("from a.core.b import c\n", "# why\n"):
        assert code_of(".py", other + python) == code_of(".py", python)
    assert code_of(".py", python.replace("c(x)", "c(-x)")) != code_of(".py", python)
    cpp = "#include <cmath>\nint f(int x) {  // why\n  return x;\n}\n"
    assert code_of(".cpp", cpp) == "intf(intx){returnx;}"


@pytest.mark.parametrize(("name", "processor"), [("cpu", "AVX512"), ("cpu_avx2", "AVX2")])
def test_kept_profiles_have_every_method(name: str, processor: str) -> None:
    device = read_device(name)
    assert device.processor == processor and device.sources and device.measured
    assert {*method_files()} <= {*device.codecs}
    text = (conf_directory() / "devices" / f"{name}.yaml").read_text()
    assert text.startswith("# Made by gcbench predict machine.")
