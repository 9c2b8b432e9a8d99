"""Speech features, uniform alignment and segments, on a made-up corpus and on the real one."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from nightly import each

from gcbench.runner.data import Data
from gcbench.runner.data.an4 import MEL, an4, flat_start, log_mel

RATE = 16_000


def tone(hertz: float, seconds: float) -> torch.Tensor:
    return torch.sin(2 * torch.pi * hertz * torch.arange(int(RATE * seconds)) / RATE)


@pytest.fixture
def toy(tmp_path: Path) -> str:
    etc, sounds = tmp_path / "an4" / "etc", tmp_path / "an4" / "wav" / "clips"
    etc.mkdir(parents=True)
    sounds.mkdir(parents=True)
    (etc / "an4.dic").write_text("GO              G OW\nGO(2)           OW\nA               AH\n")
    (etc / "an4.phone").write_text("AH\nG\nOW\nSIL\n")
    for part, transcript in {"train": "<s> GO A </s>", "test": "A"}.items():
        (etc / f"an4_{part}.fileids").write_text(f"clips/{part}1\n")
        (etc / f"an4_{part}.transcription").write_text(f"{transcript} ({part}1)\n")
        with wave.open(str(sounds / f"{part}1.wav"), "wb") as sound:
            sound.setparams((1, 2, RATE, 0, "NONE", ""))
            sound.writeframes((tone(440, 0.5).numpy() * 2**14).astype("<i2").tobytes())
    return str(tmp_path)


def test_phones_share_the_frames_evenly() -> None:
    assert flat_start(torch.tensor([3, 1, 2]), 7).tolist() == [3, 3, 3, 1, 1, 2, 2]


@each("hertz", [250.0, 1000.0, 4000.0])
def test_a_tone_is_loudest_in_its_band(hertz: float) -> None:
    features = log_mel(tone(hertz, 0.3))
    assert features.shape == (31, 40)
    centers = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 42)[1:-1] / 2595) - 1)
    assert int(features.mean(0).argmax()) == int(np.abs(centers - hertz).argmin())


def test_filters_overlap_and_cover_the_band() -> None:
    inner = MEL[4:220]  # between the first center and the last
    assert torch.allclose(inner.sum(1), torch.ones(216), atol=1e-5)


def test_utterances_become_labeled_segments(toy: str) -> None:
    data = an4(toy, frames=20)
    assert isinstance(data, Data)
    facts = (data.task, data.kind, data.shape, data.outputs)
    assert facts == ("classification", "speech", (20, 40), 4)
    # 51 frames make segments that start at 0, 20 and 31; the phones are SIL G OW AH SIL.
    whole = flat_start(torch.tensor([3, 1, 2, 0, 3]), 51)
    assert torch.equal(data.train[1], torch.stack([whole[:20], whole[20:40], whole[31:]]))
    assert torch.equal(data.train[0][1][11:], data.train[0][2][:9])
    assert data.test[1].unique().tolist() == [0, 3]
    inputs, _ = data.batch(epoch=0, step=0, worker=0, workers=1, batch_size=3, seed=0)
    torch.testing.assert_close(inputs.mean((0, 1)), torch.zeros(40), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std((0, 1)), torch.ones(40), atol=1e-3, rtol=0)


def test_mistakes_are_explained(toy: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset\.frames=52: an utterance of AN4 has 51"):
        an4(toy, frames=52)
    with pytest.raises(ValueError, match=r"no etc/an4\.dic in .*/empty/an4.*data\.root"):
        an4(str(tmp_path / "empty"))


def test_held_out_segments_share_no_frame_with_those_trained_on(toy: str) -> None:
    etc = Path(toy) / "an4" / "etc"
    sounds = Path(toy) / "an4" / "wav" / "clips"
    names = [f"train{i}" for i in range(2, 21)]
    for i, name in enumerate(names):
        with wave.open(str(sounds / f"{name}.wav"), "wb") as sound:
            sound.setparams((1, 2, RATE, 0, "NONE", ""))
            noise = torch.randn(8000, generator=torch.Generator().manual_seed(i))
            sound.writeframes((noise.numpy() * 2**10).astype("<i2").tobytes())
    with (etc / "an4_train.fileids").open("a") as files:
        files.writelines(f"clips/{name}\n" for name in names)
    with (etc / "an4_train.transcription").open("a") as transcripts:
        transcripts.writelines(f"A ({name})\n" for name in names)
    data = an4(toy, frames=20, split="valid")
    assert (data.train_samples, len(data.test[0])) == (18 * 3, 2 * 3)
    frames = {tuple(frame) for frame in data.train[0].flatten(0, 1).tolist()}
    assert not frames & {tuple(frame) for frame in data.test[0].flatten(0, 1).tolist()}


@pytest.mark.slow
def test_real_speech(real_root: Callable[[str], str]) -> None:
    data = an4(real_root("an4"))
    assert (data.train_samples, len(data.test[0]), data.outputs) == (4468, 621, 34)
    assert data.train[1].unique().tolist() == list(range(34))
    # Frames that are labeled as silence are quieter than speech.
    loudness = data.test_batch(0, 1000)[0].mean(2)
    silent = data.test[1] == 26
    assert float(loudness[silent].mean()) < float(loudness[~silent].mean()) - 0.5


def test_features_are_logarithms_of_energy() -> None:
    """Half the amplitude is a quarter of the energy."""
    loud, quiet = (log_mel(volume * tone(1000.0, 0.3)).mean(0).max() for volume in (1.0, 0.5))
    assert float(loud - quiet) == pytest.approx(np.log(4), rel=1e-3)
