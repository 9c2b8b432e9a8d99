"""The arguments of `gcbench predict` as users type them, and its answers."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import outside
import pytest
import yaml
from results import CONFIG, plain_result

from gcbench.core.conf import conf_directory
from gcbench.core.errors import ConfigError
from gcbench.runner.config.compose import compose_overrides
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch.instantiate import make_compressor
from gcbench.runner.network import Link, Network
from gcbench.runner.predict.arguments import read_predict
from gcbench.runner.predict.command import predict_steps
from gcbench.runner.predict.devices import read_link
from gcbench.runner.predict.payload import Payload
from gcbench.runner.predict.recorded import compare
from gcbench.runner.predict.scenario import build_scenario, predictions
from gcbench.runner.records.result import count_bits

OWN = "title: mine\nshapes: [[64, 32, 3, 3], [128, 160], [160]]\nseconds: {16: 0.05, 32: 0.1}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(OWN)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["pay"], "pay: type pays"),
        (["workers=0"], "workers=0: type a whole number of at least 1, as in workers=2,4,8,16"),
        (["overlap=yes"], "overlap=yes: type true or false"),
        (["format=yml"], "format=yml: type format=terminal, markdown, csv, latex"),
        (["network=nvlnk2"], "network=nvlnk2: type a rate as in network=10gbit, or one of nvlink2"),
        (["latency=50"], "latency=50: type a time with its unit"),
        (["device=k8"], "device=k8: there is no such device; type one of"),
        (["results=outputs"], "results=outputs: gcbench predict does not read it"),
        (
            ["pays", "target=27", "picture=map"],
            "target=27 picture=map: the picture shows steps only",
        ),
        (["target=27"], "target=27: "),
        (["seconds=0.1"], "type batch_size=N too"),
        (["model=resnet18", "dataset=imagenet"], "of cifar10, whose samples have another shape"),
        (["compressor=qsdg"], "compressor=qsdg: there is no such method"),
        (["compressor=all,qsgd"], "compressor=all,qsgd: all has the others, too; type all alone"),
        (
            ["shapes=mine.yaml", "compressor=qsgd", "rank=2"],
            "rank=2: no such key with compressor=qsgd",
        ),
        (["shapes=no.yaml"], "shapes=no.yaml: there is no such file"),
        (
            ["shapes=mine.yaml", "compressor=none", "workers=6", "workers_per_node=4"],
            "type workers=8",
        ),
        (["measure", "."], "measure: type folders"),
        (["measure", ".", "device=mine"], "read from a yaml file; type device=mine.yaml"),
        (["every=0"], "every=0: type a whole number of at least 1, as in every=1"),
        (["every=1,8", "delay=1"], "delay=1: the next exchange begins every=1 steps later"),
        (["every=1,8", "overlap=true"], "backward pass; type overlap=false, or every=1"),
        (["pays", "workers=1"], "workers=1: one worker exchanges nothing; type workers=2,4,8,16"),
        (["pays", "workers=1,2"], "workers=1,2: one worker exchanges nothing; type workers=2"),
        (["links", "foo=bar"], "foo=bar: no such key; type format="),
        (["devices", "model=nosuch"], "model=nosuch: gcbench predict devices does not read it;"),
        (["compare", "RUN", "rank=2"], "rank=2: no such key; type format=, network=, latency="),
        (["compare", "RUN", "inside=pcie"], "leave it out, or type gcbench predict or gcbench"),
        (["measure", ".", "device=m.yaml", "workers=4"], "workers=4: gcbench predict measure"),
        (["picture=p"], "picture=p: gcbench predict does not read it; leave it out, or"),
        (["pays", "samples=9"], "samples=9: gcbench predict pays does not read it"),
        (["shapes=mine.yaml", "model=resnet50"], "shapes=mine.yaml gives the model; type only one"),
        (["shapes=mine.yaml", "dataset=imagenet"], "dataset=imagenet: shapes=mine.yaml gives"),
        (["compare", "nowhere", "network=1gbit,10gbit"], "runs are compared on one"),
        (["compare", "nowhere"], "nowhere: there is no result.json"),
    ],
)
def test_slips_are_answered_in_one_sentence(here: Path, arguments: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        predict_steps(arguments)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("shapes: [[1, 2", "mine.yaml is not valid YAML"),
        ("shapes: [[x, 3]]\nseconds: {128: 0.1}", "mine.yaml: shapes.0.0 is 'x'"),
        ("shapes: [[4, 3]]\nseconds: {}", "mine.yaml: seconds is {}"),
        ("shapes: [[4, 3]]\nseconds: {0: 1}", "mine.yaml: seconds.0"),
        ("shapes: [[4, 3]]\nseconds: {8: 0}", "mine.yaml: seconds.8 is 0"),
        ("seconds: {128: 1}", "a model has shapes: [[64, 3, 3, 3], ...]"),
    ],
)
def test_a_slip_in_the_file_of_a_model_is_named(here: Path, text: str, says: str) -> None:
    Path("mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(says)):
        predict_steps(["shapes=mine.yaml", "network=1gbit"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"copy_bytes_per_second": "fast"}, "mine.yaml: copy_bytes_per_second is 'fast'"),
        ({"codecs": {"qsgd": {"copies": 1}}}, "codecs.qsgd.copies: no such key; type"),
        ({"codecs": {"qsgd": {"decode_seconds": {}}}}, "codecs.qsgd.decode_seconds is {}"),
        ({"codecs": {"qsgd": {}}}, "type aggregate_seconds or aggregate_copies"),
        ({"codecs": "k80"}, "codecs=k80: that device has none of its own"),
        ({"codecs": "device.mine.yaml"}, "that device has none of its own"),
        ({"models": {"mlp": {"seconds": {32: -1}}}}, "models.mlp.seconds.32 is -1"),
        ({"models": {"mlp": {"seconds": {32: 0}}}}, "models.mlp.seconds.32 is 0"),
        ({"backward": 0.5}, "backward: no such key; type backward_share"),
    ],
)
def test_a_slip_in_the_file_of_a_device_is_named(here: Path, change: Any, says: str) -> None:
    node = yaml.safe_load((conf_directory() / "devices/quiet_core.yaml").read_text())
    Path("device.mine.yaml").write_text(yaml.safe_dump({**node, **change}))
    with pytest.raises(ConfigError, match=re.escape(says)):
        predict_steps(["device=device.mine.yaml", "network=1gbit"])


def test_a_model_that_does_not_exist_is_named_before_its_seconds(here: Path) -> None:
    with pytest.raises(ConfigError, match="model=resnet19: there is no such choice; type model=r"):
        predict_steps(["model=resnet19", "network=1gbit"])


def test_a_model_without_code(here: Path) -> None:
    """Seconds are interpolated between batch sizes; every value of a knob is a method."""
    arguments = read_predict(
        [
            "shapes=mine.yaml",
            "compressor=powersgd,none",
            "rank=1,2",
            "batch_size=24",
            "workers=1,4",
            "network=1gbit",
        ]
    )
    found = {(p.method, p.workers): p for _, p in predictions(arguments, build_scenario(arguments))}
    assert {name for name, _ in found} == {"powersgd rank=1", "powersgd rank=2", "none"}
    assert found["none", 1].step_seconds == pytest.approx(0.075)
    assert found["none", 4].sent_bits == 32 * (64 * 32 * 9 + 128 * 160 + 160)
    assert (
        found["powersgd rank=1", 4].sent_bits
        < found["powersgd rank=2", 4].sent_bits
        < found["none", 4].sent_bits
    )


def test_methods_that_compress_nothing_are_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("small.yaml").write_text("shapes: [[64, 64], [64]]\nseconds: {32: 0.01}")
    typed = ["shapes=small.yaml", "compressor=none,qsgd,top_k", "workers=2", "network=1gbit"]
    predict_steps(typed)
    assert "No fewer bits than fp32: qsgd. Tensors of fewer" in capsys.readouterr().out
    predict_steps([*typed, "min_size=0"])
    assert "No fewer bits" not in capsys.readouterr().out


def test_knobs_that_save_nothing_are_not_taken_for_small_tensors(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the values with their positions take as many bits as all values."""
    predict_steps(["shapes=mine.yaml", "compressor=top_k", "fraction=0.5", "workers=2"])
    text = " ".join(capsys.readouterr().out.split())
    assert "No fewer bits than fp32: top_k fraction=0.5. With these knobs" in text
    assert "min_size" not in text


def test_every_number_of_local_steps_is_a_method(here: Path) -> None:
    arguments = read_predict(
        ["shapes=mine.yaml", "compressor=powersgd,none", "every=1,8", "workers=4", "network=1gbit"]
    )
    scenario = build_scenario(arguments)
    found = {p.method: p for _, p in predictions(arguments, scenario)}
    assert list(found) == ["powersgd", "powersgd every=8", "none", "none every=8"]
    assert found["none every=8"].sent_bits == found["none"].sent_bits / 8
    assert scenario.dense.title == "none"
    only = read_predict(["shapes=mine.yaml", "compressor=none", "every=8", "network=1gbit"])
    assert build_scenario(only).dense.every == 1, "what others are compared with exchanges always"


def test_forms_and_the_picture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["shapes=mine.yaml", "compressor=powersgd", "network=100mbit", "workers=2,4"]
    predict_steps([*typed, "format=markdown"])
    assert "| powersgd | 100mbit |       2 |" in capsys.readouterr().out
    predict_steps(["pays", *typed, "format=csv", "picture=pays"])
    heading, step, rate, row = capsys.readouterr().out.splitlines()
    columns = ("W={0} 100mbit", "W={0} 100mbit: sigma / rho", "W={0} pays")
    assert heading == ",".join(["method", *(c.format(w) for w in (2, 4) for c in columns)])
    assert step.startswith("none: step,") and rate.startswith("none: samples/s,")
    assert row.startswith("powersgd,") and len(re.findall(r" x,[\d.]+ / -,< ", row)) == 2
    assert Path("pays.svg").stat().st_size and Path("pays.png").stat().st_size


def test_the_picture_names_the_network_that_it_shows(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = []

    def draw(*drawn: Any) -> list[Path]:
        titles.append(drawn[-1])
        return []

    monkeypatch.setattr("gcbench.runner.predict.picture.draw", draw)
    typed = ["shapes=mine.yaml", "compressor=powersgd", "network=100mbit,1gbit", "workers=2"]
    predict_steps(["pays", *typed, "picture=pays"])
    assert "100mbit" in titles[0] and "1gbit" not in titles[0]


def test_all_methods_on_several_networks(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method without codec seconds is named with this reason; the others are ranked."""
    node = yaml.safe_load((conf_directory() / "devices/cpu.yaml").read_text())
    node["codecs"] = {k: node["codecs"][k] for k in ("none", "powersgd", "top_k")}
    Path("few.yaml").write_text(yaml.safe_dump(node))
    known = ["none", "powersgd", "qsgd", "top_k"]
    monkeypatch.setattr("gcbench.runner.predict.scenario.method_files", lambda _: known)
    typed = ["shapes=mine.yaml", "device=few.yaml", "network=100mbit,10gbit", "workers=2,8"]
    predict_steps(["pays", *typed, "compressor=all", "every=1,8"])
    text = capsys.readouterr().out
    assert "Left out, as device=few.yaml has no codec seconds of them: qsgd. Time them:" in text
    assert "Speed only" in text
    order = [line.split("  ")[0].strip() for line in text.splitlines()[5:] if " x " in line]
    assert sorted(order) == sorted(
        ["none every=8", "powersgd", "powersgd every=8", "top_k", "top_k every=8"]
    )
    assert order.index("powersgd every=8") < order.index("powersgd")
    with pytest.raises(ConfigError, match="no codec seconds of compressor=qsgd"):
        predict_steps(["pays", *typed, "compressor=qsgd"])


def test_a_method_that_cannot_run_so_is_left_out_with_its_reason(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = ["none", "qsgd", "top_k"]
    monkeypatch.setattr("gcbench.runner.predict.scenario.method_files", lambda _: known)
    typed = ["pays", "shapes=mine.yaml", "device=cpu", "network=1gbit", "workers=2", "code=elias"]
    predict_steps([*typed, "compressor=all"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Left out, as they cannot be predicted there: qsgd (code=elias: type code=fixed" in text
    assert " top_k " in text
    with pytest.raises(ConfigError, match="code=elias: type code=fixed"):
        predict_steps([*typed, "compressor=qsgd"])


def test_a_measured_device_is_read_again(here: Path) -> None:
    local = [
        {"part": part, "values": 1000, "milliseconds": ms, "memcpy_gb_per_second": 10.0}
        for part, ms in (("aggregate", 3.0), ("decode-and-add", 1.0), ("encode", 2.0))
    ]
    Path("bench.json").write_text(
        json.dumps({"config": {"choices": {"compressor": "qsgd"}}, "local": local})
    )
    Path("run").mkdir()
    Path("run/result.json").write_text(json.dumps(result()))
    predict_steps(["measure", ".", "device=made.yaml", "title=this machine"])
    made = yaml.safe_load(Path("made.yaml").read_text())
    assert made["codecs"]["qsgd"] == {
        "aggregate_seconds": {1000: 0.003},
        "decode_seconds": {1000: 0.001},
    }
    assert made["models"]["mlp"]["seconds"] == {16: 0.09}
    assert made["backward_share"] == 0.556  # of the 0.09 s of all computation
    arguments = read_predict(
        ["model=mlp", "compressor=qsgd", "device=made.yaml", "batch_size=32", "workers=2"]
    )
    _, found = predictions(arguments, build_scenario(arguments))[0]
    assert found.compute_seconds == pytest.approx(0.18) and found.codec_seconds > 0


def test_a_device_without_codecs_has_none_to_type(here: Path) -> None:
    Path("result.json").write_text(json.dumps(result()))
    predict_steps(["measure", ".", "device=made.yaml"])
    with pytest.raises(ConfigError, match="compressor=qsgd; type gcbench bench compressor=qsgd"):
        predict_steps(["shapes=mine.yaml", "device=made.yaml", "compressor=qsgd"])


@pytest.mark.parametrize("typed", ["model=mynet.Net", "model._target_=mynet.Net"])
def test_a_model_of_ones_own_is_predicted_by_its_shapes(typed: str) -> None:
    with pytest.raises(ConfigError, match="or shapes=FILE for a model of your own"):
        predict_steps([typed])


def test_a_method_of_ones_own_is_predicted(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(outside.__file__).parent / "outside_conf"
    typed = ["shapes=mine.yaml", "workers=4", "compressor=powers,none", "format=csv"]
    with pytest.raises(ConfigError, match="compressor=powers: there is no such method; type pow"):
        predict_steps(typed)
    predict_steps([*typed, f"--config-dir={folder}", "min_size=0"])
    rows = {row["method"]: row for row in csv.DictReader(capsys.readouterr().out.splitlines())}
    dense, powers = (float(rows[name]["MB sent"]) for name in ("none", "powers min_size=0"))
    assert powers == pytest.approx(dense * 9 / 32, rel=0.02)
    with pytest.raises(ConfigError, match="bits=4: no such key with compressor=powers,none"):
        predict_steps([*typed, f"--config-dir={folder}", "bits=4"])


def test_a_device_file_is_not_written_over(here: Path) -> None:
    Path("result.json").write_text(json.dumps(result()))
    Path("made.yaml").write_text("title: edited")
    with pytest.raises(ConfigError, match="device=made.yaml: there is such a file, which may"):
        predict_steps(["measure", ".", "device=made.yaml"])
    assert Path("made.yaml").read_text() == "title: edited"


@pytest.mark.parametrize(
    ("changed", "device", "says"),
    [
        ({"compressor": {"levels": 127}}, "cpu", "compressor.levels=1 -> 127"),
        ({"codec_backend": "eager"}, "cpu", "codec_backend=compiled -> eager"),
        ({"threads": 2}, "cpu", "threads=1 -> 2"),
        ({}, "NVIDIA H100", "device=cpu -> NVIDIA H100"),
        ({"sizes": [2], "rounds": 9}, "cpu", None),
    ],
)
def test_a_device_has_one_line_for_a_method(
    here: Path, changed: dict[str, Any], device: str, says: str | None
) -> None:
    line = {"part": "aggregate", "values": 1, "milliseconds": 1.0, "memcpy_gb_per_second": 1.0}
    method = {"compressor": {"levels": 1}, "codec_backend": "compiled", "threads": 1}
    for seed, changes, name in ((1, {}, "cpu"), (2, changed, device)):
        config = {"choices": {"compressor": "qsgd"}, **method, **changes}
        Path(f"{seed}").mkdir()
        bench = json.dumps({"config": config, "device": name, "local": [line]})
        Path(f"{seed}/bench.json").write_text(bench)
    if says is None:
        predict_steps(["measure", ".", "device=made.yaml"])
        return
    with pytest.raises(ConfigError, match=re.escape(f"compressor=qsgd differ ({says}), and a")):
        predict_steps(["measure", ".", "device=made.yaml", "title=this machine"])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": {"widths": [32]}}, "model=mlp differ (model.widths=[16] -> [32]), and a"),
        ({"dataset": {"augment": True}}, "dataset.augment=(absent) -> true"),
        ({"trainer": {"threads": 2}}, "trainer.threads=(absent) -> 2"),
        ({"trainer": {"precision": "bf16"}}, "trainer.precision=(absent) -> bf16"),
        ({"trainer": {"accumulate": 1}}, "trainer.accumulate=4 -> 1"),
        ({"trainer": {"compile": True}}, "trainer.compile=(absent) -> true"),
        ({"trainer": {"channels_last": True}}, "trainer.channels_last=(absent) -> true"),
        ({"trainer": {"batch_size": 32}, "dataset": {"split": "valid"}}, None),
    ],
)
def test_a_device_has_one_line_for_a_model(
    here: Path, changed: dict[str, Any], says: str | None
) -> None:
    for seed, changes in ((1, {}), (2, changed)):
        run: dict[str, Any] = result()
        run["config"]["seed"] = seed
        for group, keys in changes.items():
            run["config"][group] |= keys
        Path(f"{seed}").mkdir()
        Path(f"{seed}/result.json").write_text(json.dumps(run))
    if says is None:
        predict_steps(["measure", ".", "device=made.yaml"])
        made = yaml.safe_load(Path("made.yaml").read_text())
        assert made["models"]["mlp"]["seconds"] == {16: 0.09, 32: 0.09}
        return
    with pytest.raises(ConfigError, match=re.escape(says)):
        predict_steps(["measure", ".", "device=made.yaml"])


@pytest.mark.parametrize("steps_only", [False, True])
def test_what_was_not_measured_is_said_to_be_assumed(here: Path, steps_only: bool) -> None:
    """A benchmark with draws=[] times steps between processes, and no copies beside them."""
    Path("result.json").write_text(json.dumps(result()))
    if steps_only:
        method = {"choices": {"compressor": "qsgd"}}
        Path("bench.json").write_text(json.dumps({"config": method, "local": []}))
    predict_steps(["measure", ".", "device=made.yaml"])
    lines = Path("made.yaml").read_text().splitlines()
    (copies,) = (line for line in lines if line.startswith("copy_bytes_per_second"))
    (share,) = (line for line in lines if line.startswith("backward_share"))
    assert copies.endswith("# copies of fp32 values; assumed, as there was no benchmark")
    assert share.endswith("# share of the models' seconds")


def test_codec_seconds_are_said_to_know_no_knobs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["shapes=mine.yaml", "compressor=powersgd", "network=100mbit", "workers=2"]
    predict_steps(typed)
    assert "do not depend on the knobs" not in capsys.readouterr().out
    predict_steps([*typed, "rank=1,4"])
    assert "do not depend on the knobs (rank=1,4)" in " ".join(capsys.readouterr().out.split())


def test_the_samples_of_an_epoch_are_said_to_be_assumed(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["shapes=mine.yaml", "compressor=none", "network=1gbit", "workers=2"]
    predict_steps(typed)
    assert "assumed to have 50,000 samples; type samples=N" in capsys.readouterr().out
    predict_steps([*typed, "samples=1000"])
    assert "assumed" not in capsys.readouterr().out


def counted(messages: int, bits: float, **more: Any) -> dict[str, Any]:
    """Return the collectives of two workers, as a result has them."""
    every = {f"{kind}_bits": bits for kind in ("sent", "received", "wire")}
    about = {"level": "between", "collective": "all_reduce", "workers": 2, **more}
    return {**about, "messages": messages, **every}


def result() -> dict[str, Any]:
    seconds = {"data": 0.01, "forward": 0.02, "backward": 0.05, "update": 0.01, "encode": 0.0}
    seconds |= {"decode": 0.0, "wait": 0.0, "exchange": 0.05, "step": 0.14}
    node = {
        "_target_": "gcbench.runner.models.mlp.MLP",
        "shape": [1, 8, 8],
        "outputs": 10,
        "widths": [16],
    }
    dense = {"_target_": "gcbench.core.methods.dense.Dense", "dtype": "float32"}
    config = {
        **CONFIG,
        "model": node,
        "compressor": {"_target_": "gcbench.build", "method": dense},
        "trainer": {"workers": 2, "batch_size": 16, "accumulate": 4},  # 4 micro-batches of 4
    }
    return plain_result(
        choices={"model": "mlp", "dataset": "digits", "compressor": "none", "budget": "paper"},
        config=config,
        workers=2,
        processes=2,
        launcher="local",
        device="cpu",
        parameters=1210,
        steps=8,
        steps_per_epoch=40,
        bits_sent=count_bits([8 * 32 * 1210.0] * 2, 8, 40, 32 * 1210).model_dump(),
        collectives=[counted(8, 8 * 32 * 1210)],
        network={"emulated": True, "bandwidth": "1mbit", "latency": "1ms"},
        seconds={phase: {"mean": s, "max": s} for phase, s in seconds.items()},
    ).model_dump()


def test_an_exchange_under_the_backward_pass_has_no_prediction(here: Path) -> None:
    run: dict[str, Any] = result()
    run["seconds"]["hidden_exchange"] = {"mean": 0.04, "max": 0.04}
    Path("result.json").write_text(json.dumps(run))
    with pytest.raises(ConfigError, match="passed under the computation"):
        compare("result.json")


def test_a_run_beside_its_prediction(here: Path) -> None:
    """Two workers all-reduce 1210 fp32 values at 1 Mbit/s, in two rounds of 1 ms latency each.

    The model has 64 x 16 + 16 + 16 x 10 + 10 parameters.
    """
    run = result()
    Path("result.json").write_text(json.dumps(run))
    found = compare("result.json")
    assert found.exchange_seconds == pytest.approx(1210 * 32 / 1e6 + 2e-3)
    assert found.ratio == pytest.approx(0.05 / found.exchange_seconds)
    Path("result.json").write_text(json.dumps(run | {"collectives": []}))
    with pytest.raises(ConfigError, match=r"result.json: it has counted no exchange; type a run"):
        compare("result.json")


def test_a_run_by_nodes_has_the_exchanges_of_its_nodes(here: Path) -> None:
    """Four hosts are two nodes: metered messages last as long as on the emulated network."""
    overrides = ("compressor=qsgd", "exchange=hierarchical", "workers_per_node=2", "min_size=0")
    run: dict[str, Any] = result()
    run["config"]["compressor"] = resolve(compose_overrides(overrides)).compressor
    run["config"]["trainer"]["workers"] = run["workers"] = run["processes"] = 4
    shapes = {"a": (64, 16), "b": (16,), "c": (16, 10), "d": (10,)}
    compressor = make_compressor(run["config"]["compressor"], quiet=True)
    messages = Payload(compressor, shapes, 2).at(4)
    run["collectives"] = [
        counted(8, 8 * message.bits, level=message.level, collective=message.collective)
        for message in messages
    ]
    Path("result.json").write_text(json.dumps(run))
    link = Link(1e6, 1e-3)
    pair = Network(2, 1, link, link)
    expected = sum(pair.seconds(message.collective, message.bits) for message in messages)
    assert {message.level for message in messages} == {"inside", "between"}
    assert compare("result.json").exchange_seconds == pytest.approx(expected)


def test_a_latency_is_that_of_a_typed_network(here: Path) -> None:
    Path("result.json").write_text(json.dumps(result()))
    with pytest.raises(
        ConfigError, match="latency=2ms: the run's emulated link has its own latency"
    ):
        compare("result.json", latency="2ms")
    found = compare("result.json", "1gbit", "2ms")
    assert found.exchange_seconds == pytest.approx(1210 * 32 / 0.95e9 + 4e-3)


def test_a_rate_leaves_95_percent_to_the_payload() -> None:
    assert read_link("network", "2.5gbit") == Link(0.95 * 2.5e9, pytest.approx(50e-6))
    assert read_link("network", "2.5gbit", "1ms") == Link(0.95 * 2.5e9, 1e-3)


def test_a_mean_step_has_a_part_of_what_was_sent(here: Path) -> None:
    """Local steps of 8 in two fragments: two messages in 8 steps, with half of the values each."""
    Path("result.json").write_text(json.dumps(result() | {"collectives": [counted(2, 32 * 1210)]}))
    expected = (1210 * 32 / 1e6 + 2 * 2e-3) / 8
    assert compare("result.json").exchange_seconds == pytest.approx(expected)


def test_megabytes_are_those_of_bytes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict_steps(["shapes=mine.yaml", "compressor=none", "workers=4", "format=csv"])
    heading, row = csv.reader(capsys.readouterr().out.splitlines())
    sent = 4 * (64 * 32 * 9 + 128 * 160 + 160)
    assert row[heading.index("MB sent")] == f"{sent / 1e6:.3g}"
    assert row[heading.index("MB received")] == f"{1.5 * sent / 1e6:.3g}"  # by a ring


def test_many_megabytes_have_all_digits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("large.yaml").write_text("shapes: [[100000, 10000]]\nseconds: {32: 0.1}")
    predict_steps(["shapes=large.yaml", "compressor=none", "workers=2", "format=markdown"])
    assert "| 4,000 |" in " ".join(capsys.readouterr().out.split())
