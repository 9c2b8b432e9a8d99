"""The trainers and scripts of others, with the lines of gcbench that scripts/examples mark."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
from foreign_loops import run_loop
from needed import patience, skip
from processes import under_torchrun
from torch import nn

from gcbench.core.errors import ConfigError
from gcbench.integrations import exchanging, refuse_without

EXAMPLES = Path(__file__).parents[3] / "scripts" / "examples"
# What each saves half way, in the folder where it runs.
LOOPS = {
    "with_accelerate.py": "checkpoints/step_4",
    "with_lightning.py": "checkpoints/epoch=0-step=4.ckpt",
    "with_transformers.py": "checkpoints/checkpoint-4",
    "with_fsdp2.py": "checkpoints/step-4",
    "with_timm.py": "checkpoints/checkpoint-1.pth.tar",
    "with_nanogpt.py": "out/ckpt.pt",
}


def needs(package: str) -> None:
    if not find_spec(package):
        skip("integrations", f"there is no {package}")


def free_ports(count: int) -> list[str]:
    """Return ports that are free, and that Linux gives to no connection until they are used."""
    found: list[str] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(str(port))
    return found


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_others_compresses_and_resumes(name: str, tmp_path: Path) -> None:
    """Replicas are equal, bits are those of the method, and each residual comes back."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for package in re.findall(r"^from (accelerate|lightning|transformers|timm)\b", text, re.M):
        needs(package)
    assert 2 <= text.count("  # gcbench\n") <= 3
    args = [str(EXAMPLES / name), LOOPS[name], *free_ports(3)]
    ended = under_torchrun(run_loop, args, args, folder=tmp_path, timeout=patience(100))
    assert [done.returncode for done in ended] == [0, 0], ended[0].stderr
    ranks = [json.loads(done.stdout.splitlines()[-1]) for done in ended]
    for seen in ranks:
        assert seen["whole"] == seen["resumed"]
        assert seen["whole"]["weights"] != seen["plain"]
    first, second = (seen["whole"] for seen in ranks)
    assert first["state"] != second["state"]  # a residual is a worker's own
    if name != "with_fsdp2.py":  # whose workers have different shards
        assert first["weights"] == second["weights"]
        assert first["bits"] == second["bits"] == first["expected"]


def test_what_does_not_fit_is_told_in_a_sentence() -> None:
    needs("accelerate")
    from gcbench.integrations.accelerate import CompressionKwargs

    with pytest.raises(ConfigError, match="accelerate.prepare|Accelerator\\(kwargs_handlers"):
        CompressionKwargs("qsgd", bits=4).state_dict()
    with pytest.raises(
        ConfigError, match="^Linear: no DistributedDataParallel or FSDP2 .*; type X"
    ):
        exchanging(nn.Linear(2, 2), "X")
    with pytest.raises(
        ConfigError, match="^torch .* has no Linear.fly, .* type pip install torch==3"
    ):
        refuse_without(nn.Linear, "forward", "fly", tested="3")
