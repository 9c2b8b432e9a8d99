"""LSTMs for text and for speech."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from gcbench.core.fields import Count, Share

Carry = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """The LSTM of PyTorch's word-language example, at the size used in PowerSGD's paper.

    Vogels et al., NeurIPS 2019.

    The decoder shares its weights with the embedding (Press and Wolf, EACL 2017). It also
    returns its hidden state, which the caller detaches and passes in with the next window.
    """

    recurrent: ClassVar[bool] = True

    def __init__(
        self, vocabulary: int, width: Count = 650, layers: Count = 3, dropout: Share = 0.4
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.embedding.weight
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor, carry: Carry | None = None) -> tuple[Tensor, Carry]:
        hidden, carry = self.lstm(self.dropout(self.embedding(tokens)), carry)
        assert carry is not None
        return self.decoder(self.dropout(hidden)), carry


class SpeechLSTM(nn.Module):
    """An LSTM that classifies every frame of a segment `[batch, time, features]`.

    Each segment starts from a zero state.

    QSGD's paper (Alistarh et al., NeurIPS 2017, table 1) says only that its LSTM for AN4 has 13 M
    parameters. This one has as many; its 3 layers of 800 units are our choice.
    """

    def __init__(
        self,
        shape: Sequence[int],
        outputs: int,
        width: Count = 800,
        layers: Count = 3,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        self.lstm = nn.LSTM(shape[-1], width, layers, dropout=dropout, batch_first=True)
        self.classifier = nn.Linear(width, outputs)

    def forward(self, frames: Tensor) -> Tensor:
        return self.classifier(self.lstm(frames)[0])
