"""A loop as nanoGPT's train.py, with gradients compressed by the two lines marked `gcbench`.

    torchrun --nproc-per-node 2 with_nanogpt.py
    torchrun --nproc-per-node 2 with_nanogpt.py out/ckpt.pt

Four more lines, marked `residual`, put what each process has not sent into the checkpoint that
process 0 writes. `print(compression)` says how many times fewer bits a worker sent.
"""

from __future__ import annotations

import os
import sys

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, get_rank, init_process_group
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import gcbench  # gcbench

max_iters, eval_interval, gradient_accumulation_steps = 7, 4, 2
batch_size, block_size, vocab_size, n_embd, n_head, n_layer = 4, 32, 64, 32, 2, 2
grad_clip, learning_rate, dtype, out_dir = 1.0, 1e-3, torch.bfloat16, "out"
init_from = sys.argv[1] if len(sys.argv) > 1 else "scratch"

device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
init_process_group("nccl" if torch.cuda.is_available() else "gloo")
master_process = get_rank() == 0
torch.manual_seed(1337)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).view(B, T, 3, n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(B, T, C))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.Sequential(*(Block() for _ in range(n_layer)))
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        return F.cross_entropy(self.lm_head(self.h(x)).flatten(0, 1), targets.flatten())


def get_batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * number + get_rank())
    ix = torch.randint(vocab_size, (batch_size, block_size + 1), generator=generator).to(device)
    return ix[:, :-1], ix[:, 1:]


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
iter_num = 0
checkpoint = None
if init_from != "scratch":
    checkpoint = torch.load(init_from, map_location=device)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
model = DDP(model)
compression = gcbench.compress(model, "powersgd", rank=2)  # gcbench
if checkpoint:  # residual
    compression.load_state_dict(checkpoint["compression"])  # residual
raw_model = model.module
X, Y = get_batch(iter_num * gradient_accumulation_steps)
while True:
    saves = iter_num > 0 and iter_num % eval_interval == 0
    residuals = compression.state_dict(gather_to=0) if saves else {}  # residual
    if saves and master_process:
        checkpoint = {
            "model": raw_model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iter_num": iter_num,
            "compression": residuals,  # residual
        }
        os.makedirs(out_dir, exist_ok=True)
        torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with torch.autocast(device.split(":")[0], dtype=dtype):
            loss = model(X, Y) / gradient_accumulation_steps
        X, Y = get_batch(iter_num * gradient_accumulation_steps + micro_step + 1)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num > max_iters:
        break
destroy_process_group()
