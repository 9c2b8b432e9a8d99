"""A small GPT, a decoder-only transformer.

Radford et al., "Language models are unsupervised multitask learners", 2019.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from gcbench.core.fields import Count, Positive, Share, example


class Block(nn.Module):
    """Causal attention and a two-layer perceptron, residual branches with normalized input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.dropout(self.mixed(self._attend(self.norm1(hidden))))
        return hidden + self.dropout(self.narrow(gelu(self.wide(self.norm2(hidden)))))

    def _attend(self, inputs: Tensor) -> Tensor:
        """Return the attention's output, `[batch, time, width]`."""
        q, k, v = self.qkv(inputs).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout.p if self.training else 0.0
        return (
            scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
            .transpose(1, 2)
            .flatten(2)
        )


class GPT(nn.Module):
    """A GPT that reads every window separately: no state is carried over from the one before.

    Positions are learned, and the output layer shares its weights with the embedding. Initial
    weights are as in GPT-2: their standard deviation is `std`, and std / sqrt(2 layers) in the last
    layer of each residual branch. With `std` of null it is 0.5 / sqrt(width), which is about
    GPT-2's for its width of 768, so that models of different widths begin alike.
    """

    def __init__(
        self,
        vocabulary: int,
        width: Count = 256,
        layers: Count = 4,
        heads: Count = 4,
        context: Count = 128,
        dropout: Share = 0.1,
        parameters: Literal["fp32", "bf16"] = "fp32",
        std: Annotated[Positive | None, example(0.02)] = 0.02,
    ) -> None:
        super().__init__()
        std = 0.5 / width**0.5 if std is None else std
        if width % heads:
            raise ValueError(
                f"model.heads={heads} does not divide model.width={width}; type a number that does"
            )
        self.context = context
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocabulary, bias=False)
        self.decoder.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if name.endswith(("mixed.weight", "narrow.weight")):
                nn.init.normal_(parameter, std=std / (2 * layers) ** 0.5)
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        if parameters == "bf16":
            self.to(torch.bfloat16)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(
                f"model.context={self.context} is less than a window of {length} words; type "
                f"model.context={length}, or dataset.bptt={self.context}"
            )
        positions = self.positions.weight[:length]
        hidden = self.blocks(self.dropout(self.embedding(tokens) + positions))
        return self.decoder(self.norm(hidden))
