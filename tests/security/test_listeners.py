"""The sockets on which a run listens, and what an attacker who reaches them can do."""

from __future__ import annotations

import base64
import multiprocessing
import os
import pickle
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
import torch.distributed as dist
from gloo_pool import pool
from hostile import Exploit, gather_with_a_stranger
from processes import Copy, gcbench

from gcbench.runner.launch.meeting import RUN_ID, security_notice

LISTEN = "0A"


class Live(NamedTuple):
    parent: Copy
    folder: Path
    temporary: Path

    def processes(self) -> list[int]:
        sockets = [self.parent.pid]
        for pid in sockets:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            sockets += [int(word) for word in children.read_text().split()]
        return sockets


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Yield a run of two workers in the middle of training."""
    folder, temporary = tmp_path_factory.mktemp("live"), tmp_path_factory.mktemp("temporary")
    overrides = [
        "trainer.launcher=local",
        "trainer.threads=1",
        "trainer.epochs=9999",
        "logger.mode=disabled",
        "model.widths=[16]",
    ]
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    overrides = [*overrides, "trainer.log_every=5", "trainer.eval_every=null"]
    with Copy(gcbench, *overrides, folder=folder, environment=environment) as parent:
        while "train step 5" not in parent.stdout:
            assert parent.returncode is None, parent.stderr
            time.sleep(0.1)
        yield Live(parent, folder, temporary)


def listeners(pids: list[int]) -> list[tuple[str, int]]:
    """Return the address and port of every socket on which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # a file closed meanwhile, such as a checkpoint's
                if sockets := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(link)):
                    inodes.add(sockets[1])
    places = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pids[0]}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTEN and words[9] in inodes:
                places.append(address(words[1]))
    return places


def address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    words = [int(host[i : i + 8], 16) for i in range(0, len(host), 8)]
    return str(ip_address(b"".join(struct.pack("<I", word) for word in words))), int(port, 16)


def test_every_socket_that_listens_is_for_this_machine_only(live: Live) -> None:
    sockets = listeners(live.processes())
    assert sockets, "gloo's own are not seen"
    assert [place for place in sockets if not ip_address(place[0]).is_loopback] == []


@pytest.mark.slow
def test_what_a_stranger_sends_to_the_ports_runs_nothing(live: Live, tmp_path: Path) -> None:
    """A pickle is sent by itself, and as a value in the store that torch's rendezvous reads."""
    mark = tmp_path / "ran"
    attack = pickle.dumps(Exploit(mark))
    for host, port in listeners(live.processes()):
        with socket.create_connection((host, port), timeout=5) as connection:
            connection.sendall(attack)
        planter = multiprocessing.get_context("fork").Process(
            target=plant, args=(host, port, attack), daemon=True
        )
        planter.start()
        planter.join(3)  # a port without a store never answers
        if planter.exitcode == 0:
            time.sleep(12)
        planter.kill()
    before = lines(live.folder)
    end = time.monotonic() + 60
    while lines(live.folder) < before + 2:
        assert live.parent.returncode is None and time.monotonic() < end
        time.sleep(0.1)
    assert not mark.exists()


def plant(host: str, port: int, attack: bytes) -> None:
    store = dist.TCPStore(
        host, port, is_master=False, timeout=timedelta(seconds=1), wait_for_workers=False
    )
    store.set("torch.rendezvous.gcbench", base64.b64encode(attack))


def lines(folder: Path) -> int:
    return sum(
        len(path.read_text().splitlines()) for path in folder.glob("outputs/*/metrics.jsonl")
    )


def test_the_file_in_which_workers_meet_is_for_this_user_only(live: Live) -> None:
    (folder,) = live.temporary.glob("gcbench-run-*")
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "attempt-0" / "meeting").exists()


def test_a_peer_that_sends_a_pickle_is_not_understood(tmp_path: Path) -> None:
    answers = pool(2).run(gather_with_a_stranger, tmp_path / "ran")
    assert answers[1] == "sent" and answers[0] in ("JSONDecodeError", "UnicodeDecodeError")
    assert not (tmp_path / "ran").exists()


def test_what_a_run_trusts_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_ID, raising=False)
    assert security_notice(on_one_machine=True) is None
    assert "use a trusted network" in (security_notice(on_one_machine=False) or "")
    monkeypatch.setenv(RUN_ID, "none")
    for on_one_machine, advice in ((True, "type gcbench without torchrun"), (False, "use a trust")):
        notice = security_notice(on_one_machine) or ""
        assert "--standalone" in notice and "runs the code" in notice and advice in notice
        assert "\n" not in notice
