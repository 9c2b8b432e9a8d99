"""A script that starts two workers, which fail, stop or go on as its first argument says."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

from gcbench.core.meeting import join
from gcbench.runner.launch import local


def work(case: str, folder: str) -> None:
    rank = int(os.environ["RANK"])
    if case == "alone":  # rank 0 waits in torch's own code for rank 1, which never joins
        (Path(folder) / f"started-{rank}").touch()
        if rank:
            time.sleep(600)
    if case.startswith("stop"):
        return work_until_stopped(case, rank, Path(folder))
    import torch
    import torch.distributed as dist

    try:
        with join("gloo"):
            assert os.environ["GOMP_SPINCOUNT"] == "1000"
            total = torch.full((2,), rank + 1.0)
            dist.all_reduce(total)
            print(f"rank {rank} of {os.environ['WORLD_SIZE']} has {total.tolist()}", flush=True)
            if rank == 1:
                die(case)
            dist.all_reduce(total)  # where rank 0 waits for rank 1
    finally:
        if case == "cleanup":  # peers lose their connections before the error leaves the target
            time.sleep(0.2 * rank)


def die(case: str) -> None:
    if case == "raise":
        raise ValueError("the data are gone")
    if case == "cleanup":
        raise RuntimeError("the model is gone")
    if case == "leave":
        sys.exit(4)
    if case == "ctrl-c":
        raise KeyboardInterrupt
    if case == "nothing":
        os._exit(0)
    if case == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if case == "exit":
        os._exit(3)


def work_until_stopped(case: str, rank: int, folder: Path) -> None:
    stops: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: stops.append(number))
    (folder / f"started-{rank}").touch()
    while not stops or (case.startswith("stop-deaf") and rank == 1):
        time.sleep(0.02)
    (folder / f"checkpoint-{rank}").touch()


def main(case: str, folder: str) -> None:
    if case == "stop-deaf":
        local.STOP_SECONDS = 1.0
    # Under nohup or in a shell's background, where tests may run, these signals are ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.getsignal(signal.SIGINT)
    # Workers do not run the script that starts them: what they do must be importable.
    target = import_module(Path(__file__).stem).work
    try:
        local.run_processes(target, (case, folder), 2)
    except local.WorkerFailed as failure:
        print(f"failed: {failure.rank} {failure.reason}")
        sys.stderr.write(failure.traceback_text)
    except local.Interrupted as interrupted:
        print(f"interrupted: {interrupted.signal_name}")
    assert signal.getsignal(signal.SIGINT) is before
    print(f"took {time.monotonic()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
