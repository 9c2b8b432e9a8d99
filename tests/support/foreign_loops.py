"""Runs the loops of others in scripts/examples in the process of a rank, one after the other."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import gcbench
from gcbench.core.comm.collectives import Comm
from gcbench.core.comm.transport import MirrorTransport
from gcbench.core.method_files import read_method
from gcbench.core.parameters import shapes_of_parameters
from gcbench.core.wrappers.virtual import aggregate
from gcbench.runner.launch.instantiate import make_compressor

MARK = re.compile(r"^.*# (gcbench|residual)\n", re.MULTILINE)
Found = Mapping[str, Any]
HANDLES: dict[str, Callable[[Found], gcbench.Compression]] = {
    "with_accelerate.py": lambda found: found["accelerator"].ddp_handler.handles[0],
    "with_lightning.py": lambda found: found["trainer"].callbacks[0].handle,
    "with_fsdp2.py": lambda found: found["states"]["compression"].handle,
    "with_transformers.py": lambda found: found["compression"].handle,
}


def run_loop(example: str, checkpoint: str, *ports: str) -> None:
    """Print what two runs of a loop ended with, the second one resumed, after one without a method.

    Each has a port to meet at, as rank 0 may still listen at the last one.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    text = Path(example).read_text(encoding="utf-8")
    plain = _digest(_run(MARK.sub("", text), "plain", ports[0])["model"])
    handle_of = HANDLES.get(Path(example).name, lambda found: found["compression"])
    seen: dict[str, Any] = {"plain": plain}
    for name, port, *arguments in (
        ("whole", ports[1]),
        ("resumed", ports[2], f"../whole/{checkpoint}"),
    ):
        found = _run(text, name, port, *arguments)
        handle = handle_of(found)
        seen[name] = {
            "weights": _digest(found["model"]),
            "state": repr(handle.state_dict()["exchanges"]),
            "bits": handle.bits_sent,
            "expected": 8 * _powersgd_bits(found["model"]),
            "handle": repr(handle),
        }
    print("\n" + json.dumps(seen))


def _run(text: str, folder: str, port: str, *arguments: str) -> Found:
    Path(folder).mkdir(exist_ok=True)
    os.environ["MASTER_PORT"] = port
    os.chdir(folder)
    script = f"script_{os.environ['RANK']}.py"  # another rank may be writing its own just now
    Path(script).write_text(text, encoding="utf-8")
    sys.argv = [script, *arguments]
    found = runpy.run_path(script, run_name="__main__")
    os.chdir("..")
    return found


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for p in model.parameters():
        own = p.to_local() if isinstance(p, DTensor) else p
        digest.update(own.detach().float().contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()


def _powersgd_bits(model: nn.Module) -> int:
    """Return the payload of one step of the examples' method, as a step of zeros has it."""
    method = make_compressor(read_method("powersgd", {"rank": 2})["compressor"])
    comm = Comm(2, MirrorTransport(0, 2))
    rows = {name: torch.zeros(1, *shape) for name, shape in shapes_of_parameters(model).items()}
    aggregate(method, rows, number=0, comm=comm)
    bits: int = comm.meter.sent_bits[0]
    return bits
