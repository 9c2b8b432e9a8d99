from __future__ import annotations

import errno
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from results import plain_result

from gcbench.runner.config.sentences import sentence_of
from gcbench.runner.records.files import RunFiles, _strict_json, replacing
from gcbench.runner.records.gradients import write_tensors

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@settings(max_examples=50, deadline=None)
@given(VALUES)
def test_what_is_written_is_strict_json(value: Any) -> None:
    constants: list[str] = []
    json.loads(_strict_json(value), parse_constant=constants.append)
    assert not constants, "NaN and infinities are no JSON"


def test_a_result_comes_back_with_null_for_what_is_not_finite(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    assert files.read_result() is None
    files.write_result(plain_result(test={"loss": math.nan}, reason="größer"))
    files.write_result(plain_result(test={"loss": -math.inf, "accuracy": 1.0}, reason="größer"))
    result = files.read_result()
    assert result is not None and result.reason == "größer"
    assert result.test == {"loss": None, "accuracy": 1.0}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_failed_write_leaves_the_old_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RunFiles(tmp_path)
    files.write_result(plain_result())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    says = "cannot write .*result.json .No space left on device.; make room"
    with pytest.raises(OSError, match=says) as error:
        files.write_result(plain_result(status="failed"))
    assert sentence_of(error.value).startswith(f"cannot write {tmp_path / 'result.json'} (No space")
    assert files.read_result() == plain_result()


class FailingFile(io.BytesIO):
    """A file whose write fails once, after some bytes."""

    def __init__(self, number: int, after: int) -> None:
        super().__init__()
        self.left, self.number = after, number

    def write(self, content: Any, /) -> int:
        self.left -= len(memoryview(content))
        if self.left < 0:
            self.left = 10**9
            raise OSError(self.number, os.strerror(self.number))
        return super().write(content)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_tensors_that_cannot_be_written_name_the_cause(tmp_path: Path, number: int) -> None:
    """Otherwise `torch.save` raises an error of its own, about positions in its file."""
    content = {"x": torch.arange(10_000)}
    size = write_tensors(content, whole := io.BytesIO()) or len(whole.getvalue())
    for after in (0, 100, size // 2, size - 1):
        with pytest.raises(OSError, match=os.strerror(number)):
            write_tensors(content, FailingFile(number, after))
    with (
        pytest.raises(OSError, match=os.strerror(number)) as error,
        replacing(tmp_path / "weights.pt") as file,
    ):
        file.write(b"some")
        write_tensors(content, FailingFile(number, 100))
    full = number in (errno.ENOSPC, errno.EDQUOT)
    assert ("make room" in str(error.value)) == full
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_a_full_device() -> None:
    with (
        pytest.raises(OSError, match="No space left on device"),
        open("/dev/full", "wb", buffering=0) as file,
    ):
        write_tensors({"x": torch.zeros(10)}, file)


def test_a_directory_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write .*metrics.jsonl"):
        RunFiles(tmp_path / "missing").append_metrics({"step": 1})


def test_a_broken_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"status": ')
    says = "result.json: is not JSON .*; move it away, or type rerun=true"
    with pytest.raises(ValueError, match=says):
        RunFiles(tmp_path).read_result()


def test_metrics_go_back_to_a_step(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.truncate_metrics(0, tested=0)
    assert not files.metrics.exists()
    for step in (1, 2, 3):
        files.append_metrics({"step": step, "loss": math.nan})
        files.append_metrics({"event": "test", "step": step})
    with files.metrics.open("a") as file:
        file.write('{"step": 2, "lo')  # as if the machine went down
    files.truncate_metrics(2, tested=1)
    files.append_metrics({"step": 3})
    lines = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    test = {"event": "test", "step": 1}
    assert lines == [{"step": 1, "loss": None}, test, {"step": 2, "loss": None}, {"step": 3}]


def test_what_was_set_aside_stays(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.set_aside()
    for run in (1, 2):
        files.append_metrics({"step": run})
        files.gradients.mkdir()
        (files.gradients / f"step-{run}.pt").touch()
        files.write_result(plain_result(reason=f"run {run}"))
        os.utime(files.result, (run, run))
        files.set_aside()
        assert files.read_result() is None and not files.metrics.exists()
        stamp = f"1970-01-01T00-00-0{run}.000000Z"
        assert json.loads((tmp_path / f"metrics.{stamp}.jsonl").read_text()) == {"step": run}
        kept = json.loads((tmp_path / f"result.{stamp}.json").read_text())
        assert kept["reason"] == f"run {run}"
        assert [path.name for path in (tmp_path / f"gradients.{stamp}").iterdir()] == [
            f"step-{run}.pt"
        ]
    assert len(list(tmp_path.iterdir())) == 6
