"""CMU AN4: speech whose frames are labeled with phones.

Acero, "Acoustical and environmental robustness in automatic speech recognition", 1990.

948 training and 130 test utterances, spelled words and short sentences at 16 kHz. Every frame is
classified separately, and labeled by a flat start: the phones of the transcript, with silence
before and after, share the frames of an utterance evenly. They are not aligned with the speech, so
the frame accuracy here is gcbench's own score; it is not comparable with the accuracy that QSGD's
paper prints for AN4.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gcbench.core.fields import Count
from gcbench.runner.data.arrays import ArrayData, Pair
from gcbench.runner.data.protocol import hold_out
from gcbench.runner.settings.groups import Split

RATE = 16_000  # samples per second
WINDOW, HOP, FFT, BANDS = 400, 160, 512, 40  # windows of 25 ms, every 10 ms


def an4(root: str, frames: Count = 64, split: Split = "test") -> ArrayData:
    """Return segments of `frames` x 40 log-mel features, with a phone for each frame.

    Features are standardized by the training frames. An utterance is cut into whole segments, the
    last of which overlaps with the one before it. `split="valid"` holds out whole utterances, so
    that no frame of a held-out segment is trained on.
    """
    folder = Path(root).expanduser() / "an4"
    if not (folder / "etc" / "an4.dic").is_file():
        raise ValueError(
            f"dataset=an4: no etc/an4.dic in {folder}; unpack CMU's AN4 there, etc/ and wav/ as "
            "RIFF files, or set data.root=... to the folder that holds an4/"
        )
    phones = (folder / "etc" / "an4.phone").read_text().split()
    words = _dictionary(folder / "etc" / "an4.dic")
    train, test = (_utterances(folder, part, words, phones, frames) for part in ("train", "test"))
    if split == "valid":
        kept, held = hold_out(len(train))
        train, test = [train[i] for i in kept], [train[i] for i in held]
    pairs = _concatenate(train), _concatenate(test)
    deviation, mean = torch.std_mean(pairs[0][0].double(), dim=(0, 1))
    return ArrayData(
        "an4", "classification", len(phones), *pairs, (mean.float(), deviation.float())
    )


def _dictionary(file: Path) -> dict[str, list[str]]:
    """Return the first pronunciation of each word; others are listed as WORD(2)."""
    rows = [line.split() for line in file.read_text().splitlines() if line.strip()]
    return {"<s>": [], "</s>": [], **{word: phones for word, *phones in rows}}


def _utterances(
    folder: Path, part: str, words: dict[str, list[str]], phones: list[str], frames: int
) -> list[Pair]:
    """Return each utterance's features `[segments, frames, 40]`, labels `[segments, frames]`."""
    files = (folder / "etc" / f"an4_{part}.fileids").read_text().split()
    transcripts = (folder / "etc" / f"an4_{part}.transcription").read_text().splitlines()
    utterances = []
    for file, transcript in zip(files, transcripts, strict=True):
        features = log_mel(_waveform(folder / "wav" / f"{file}.wav"))
        spoken = [
            "SIL",
            *(phone for word in transcript.split()[:-1] for phone in words[word]),
            "SIL",
        ]
        labels = flat_start(torch.tensor([phones.index(phone) for phone in spoken]), len(features))
        last = len(features) - frames
        if last < 0:
            raise ValueError(
                f"dataset.frames={frames}: an utterance of AN4 has {len(features)}; type "
                "dataset.frames=64, say"
            )
        starts = torch.tensor([*range(0, last, frames), last])
        rows = starts[:, None] + torch.arange(frames)
        utterances.append((features[rows], labels[rows]))
    return utterances


def _concatenate(pairs: Sequence[Pair]) -> Pair:
    inputs, targets = zip(*pairs, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def _waveform(file: Path) -> Tensor:
    with wave.open(str(file)) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (RATE, 1, 2), (
            file
        )
        samples = np.frombuffer(sound.readframes(sound.getnframes()), dtype="<i2")
    return torch.from_numpy(samples.astype(np.float32) / 2**15)


def flat_start(phones: Tensor, frames: int) -> Tensor:
    """Return the phone of each frame, `[frames]`, if all phones are equally long."""
    return phones[torch.arange(frames) * len(phones) // frames]


def log_mel(waveform: Tensor) -> Tensor:
    """Return the logarithm of the energy in mel bands, `[frames, 40]`.

    Bands have equal width on the mel scale, from 0 to 8 kHz.
    """
    spectrum = torch.stft(
        waveform, FFT, HOP, WINDOW, torch.hann_window(WINDOW), return_complex=True
    )
    return (spectrum.abs().square().T @ MEL + 1e-6).log()


def _mel_filters() -> Tensor:
    """Return overlapping triangular filters, which are 1 at their centers, `[257, 40]`."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    frequencies = np.linspace(0, RATE / 2, FFT // 2 + 1)[:, None]
    left, center, right = corners[:-2], corners[1:-1], corners[2:]
    triangles = np.minimum(
        (frequencies - left) / (center - left), (right - frequencies) / (right - center)
    )
    return torch.from_numpy(triangles.clip(0).astype(np.float32))


MEL = _mel_filters()
