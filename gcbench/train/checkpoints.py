"""Checkpoints: one directory a step, one file for what all workers share and one for each worker.

A worker's file is the same whichever process held it, so a run may resume with its workers spread otherwise. A directory
is written under another name and renamed when it is complete; the manifest holds the checksum of every file. Tensors are
read with `weights_only=True`: no pickled code is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcbench.compressors import State
from gcbench.train.run import Progress, Run

FORMAT = 2


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, and why."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run directory; `fingerprint` says which runs may continue each other."""

    directory: Path
    keep: int
    fingerprint: str

    def save(self, run: Run, progress: Progress) -> None:
        """Every process writes its workers' files; process 0 the rest."""
        final = self.directory / f"step-{progress.step:08d}"
        partial = final.with_suffix(".partial")
        if run.first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        run.control.barrier()
        files = {_worker_file(k): _worker_content(run, progress, row) for row, k in enumerate(run.comm.local)}
        if run.first:
            files["shared.pt"] = _shared_content(run, progress)
        sums = [_write(partial / name, content) for name, content in files.items()]
        everyone = run.control.gather(dict(zip(files, sums, strict=True)))
        if run.first:
            manifest = {
                "format": FORMAT,
                "step": progress.step,
                "workers": run.comm.workers,
                "fingerprint": self.fingerprint,
                "sha256": {name: digest for part in everyone for name, digest in part.items()},
            }
            _write_text(partial / "manifest.json", json.dumps(manifest, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            partial.rename(final)
            self._drop_old()
        run.control.barrier()

    def latest(self) -> Path | None:
        complete = self._complete()
        return complete[-1] if complete else None

    def check(self, workers: int) -> None:
        """CheckpointError where the latest checkpoint, if there is one, cannot be used by a run of so many workers."""
        path = self.latest()
        if path is not None:
            manifest = self._manifest(path, workers)
            for name in manifest["sha256"]:
                _refuse_damage(path / name, manifest)

    def load(self, path: Path, run: Run, progress: Progress) -> None:
        """Puts model, optimiser, compressor state, meters and `progress` where the checkpoint has them."""
        manifest = self._manifest(path, run.comm.workers)
        shared = _read(path / "shared.pt", manifest, run.replica.device)
        workers = [_read(path / _worker_file(k), manifest, run.replica.device) for k in run.comm.local]
        run.replica.model.load_state_dict(shared["model"])
        run.optimizer.load_state_dict(shared["optimizer"])
        _restore_workers(run, progress, workers)
        per_worker = [_stacked([w["state"][i] for w in workers]) for i in range(len(shared["state"]))]
        progress.state = State.of_layers(list(zip(shared["state"], per_worker, strict=True)))
        progress.estimator = shared["estimator"]
        progress.step, progress.logged = shared["step"], shared["logged"]
        progress.tests, progress.samples = shared["tests"], shared["samples"]
        progress.ledger.load(shared["ledger"])

    def _manifest(self, path: Path, workers: int) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']}, this gcbench reads {FORMAT}; type resume=never")
        if manifest["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                f"{path} belongs to a run with another configuration; type resume=never to start anew, or another name"
            )
        if manifest["workers"] != workers:
            raise CheckpointError(
                f"{path} was written by {manifest['workers']} workers, this run has {workers}; "
                f"type trainer.gpus={manifest['workers']} or resume=never"
            )
        return manifest

    def _complete(self) -> list[Path]:
        return sorted(p.parent for p in self.directory.glob("step-*[0-9]/manifest.json"))

    def _drop_old(self) -> None:
        for path in self._complete()[: -self.keep]:
            shutil.rmtree(path)


def _worker_file(worker: int) -> str:
    return f"worker-{worker:05d}.pt"


def _shared_content(run: Run, progress: Progress) -> dict[str, Any]:
    return {
        "model": run.replica.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "state": [dict(layer.shared) for layer in progress.state.layers()],
        "estimator": progress.estimator,
        "step": progress.step,
        "logged": progress.logged,
        "tests": progress.tests,
        "samples": progress.samples,
        "ledger": progress.ledger.state(),
    }


def _worker_content(run: Run, progress: Progress, row: int) -> dict[str, Any]:
    return {
        "state": [{k: t[row].clone() for k, t in layer.per_worker.items()} for layer in progress.state.layers()],
        "carry": run.replica.carries[row],
        "meter": run.comm.meter.state()[row],
        "loss": float(progress.losses[row]),
    }


def _restore_workers(run: Run, progress: Progress, workers: list[dict[str, Any]]) -> None:
    run.replica.carries = [w["carry"] for w in workers]
    run.comm.meter.load([w["meter"] for w in workers])
    progress.losses.copy_(torch.tensor([w["loss"] for w in workers], dtype=torch.float64))


def _stacked(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {k: torch.stack([row[k] for row in rows]) for k in rows[0]}


def _write(path: Path, content: dict[str, Any]) -> str:
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    return _digest(path)


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path, manifest: dict[str, Any], device: torch.device) -> dict[str, Any]:
    _refuse_damage(path, manifest)
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return content


def _refuse_damage(path: Path, manifest: dict[str, Any]) -> None:
    if not path.is_file() or _digest(path) != manifest["sha256"][path.name]:
        raise CheckpointError(f"{path} is missing or damaged (its checksum differs); remove {path.parent} to use an older one")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
