"""Checkpoints and the weights of a finished run, as files.

A checkpoint is a directory with one file for shared state and one for each worker. A worker's
file does not depend on the process that wrote it, so a run may resume with its workers spread
differently over processes; `snapshot.py` merges or splits them if their number changes. A directory
is written under another name and renamed when it is complete; the manifest holds the checksums of
every file and of itself. Tensors are read with `weights_only=True`, so that no code is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from gcbench.core.library.saved import replaced_shares
from gcbench.core.library.states import StateError
from gcbench.runner.identity import fingerprint
from gcbench.runner.records.files import FULL, replacing
from gcbench.runner.records.gradients import write_tensors
from gcbench.runner.settings.config import RunConfig
from gcbench.runner.train.run import Progress, Run
from gcbench.runner.train.schedules import total_steps
from gcbench.runner.train.snapshot import (
    merge_workers,
    other_epochs_reason,
    restore,
    shared_content,
    unmergeable_content,
    worker_content,
)

T = TypeVar("T")
FORMAT = 7
SHARED = "shared.pt"
# The keys of a manifest, besides its checksum, and their types.
KEYS = {"format": int, "step": int, "workers": int, "fingerprint": str, "sha256": dict}
# Up to this size, the weights of a finished run and its last checkpoint are kept unless
# trainer.keep_weights is typed.
LIMIT_BYTES = 200e6


class CheckpointError(ValueError):
    """A checkpoint cannot be written, read or continued; the message says why."""


def write_in_all(run: Run, path: Path, before: Path | None, write: Callable[[], T]) -> list[T]:
    """Run `write` in every process and return all results.

    If it raises OSError in one, all raise CheckpointError: `path` could not be written. `before` is
    the last checkpoint, from which the run can continue then.
    """
    outcome: tuple[T | None, int | None, str]
    try:
        outcome = (write(), None, "")
    except OSError as error:
        number = error.errno or 0
        outcome = (None, number, os.strerror(number) if number else str(error))
    outcomes = run.control.gather(outcome)
    for _, number, cause in outcomes:
        if number is not None:
            whole, there = (f"{before} is whole; ", " to continue there") if before else ("", "")
            remedy = "make room, and" if number in FULL else "once it can be written,"
            raise CheckpointError(
                f"{path} could not be written ({cause}); {whole}{remedy} type the same "
                f"command{there}"
            )
    return [returned for returned, _, _ in outcomes]


def last_step(directory: Path) -> int:
    """Return the step of the latest complete checkpoint in a directory, or 0 if there is none."""
    folders = _complete_folders(directory)
    return max((int(path.name.removeprefix("step-")) for path in folders), default=0)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run directory, of which the last `keep` are kept.

    Only runs with the same `fingerprint` may continue each other.
    """

    directory: Path
    keep: int
    fingerprint: str

    @staticmethod
    def of(config: RunConfig, directory: Path) -> Checkpoints:
        return Checkpoints(directory, config.trainer.checkpoint_keep, fingerprint(config.as_dict()))

    def save(self, run: Run, progress: Progress) -> None:
        """Write a checkpoint: every process its workers' files, process 0 the rest.

        If one of them cannot, all raise CheckpointError.
        """
        final = self.directory / _folder(progress.step)
        unfinished = final.with_suffix(".partial")

        def begin() -> None:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)

        def write() -> dict[str, str]:
            files = {
                _worker_file(k): worker_content(run, progress, row)
                for row, k in enumerate(run.comm.local)
            }
            if run.first:
                files[SHARED] = shared_content(run, progress)
            return {name: _write(unfinished / name, content) for name, content in files.items()}

        def complete() -> None:
            manifest = {
                "format": FORMAT,
                "step": progress.step,
                "workers": run.comm.workers,
                "fingerprint": self.fingerprint,
                "sha256": {name: digest for part in everyone for name, digest in part.items()},
            }
            _write_text(
                unfinished / "manifest.json",
                json.dumps({**manifest, "checksum": _checksum(manifest)}, indent=1),
            )
            # An earlier checkpoint of this step is kept until the new one has its name.
            replaced = final.with_suffix(".replaced")
            shutil.rmtree(replaced, ignore_errors=True)
            if final.exists():
                final.rename(replaced)
            unfinished.rename(final)
            shutil.rmtree(replaced, ignore_errors=True)
            self._drop_old()

        before = self.latest()
        try:
            write_in_all(run, final, before, begin if run.first else lambda: None)
            everyone = write_in_all(run, final, before, write)
            write_in_all(run, final, before, complete if run.first else lambda: None)
        except CheckpointError:
            if run.first:
                shutil.rmtree(unfinished, ignore_errors=True)  # makes room for the result
            raise

    def latest(self) -> Path | None:
        complete = _complete_folders(self.directory)
        return complete[-1] if complete else None

    def check(self, config: RunConfig, steps_per_epoch: int) -> None:
        """Raise CheckpointError if a run of `config` cannot continue from the latest checkpoint.

        `resume.workers=merge` allows residuals to be averaged for another number of workers.
        """
        path = self.latest()
        if path is None:
            return
        trainer = config.trainer
        merge = config.resume.workers == "merge"
        manifest, workers = self._manifest(path), trainer.workers
        for name in manifest["sha256"]:
            self._refuse_damage(path / name, manifest)
        steps = total_steps(trainer.max_steps, trainer.epochs, steps_per_epoch)
        if manifest["step"] > steps:
            raise CheckpointError(
                f"{path}: this run ends after {steps} steps with {workers} workers; type "
                f"trainer.max_steps={manifest['step']} or more"
            )
        names = (SHARED, _worker_file(0))
        shared, worker = (self._load_file(path / name, torch.device("meta")) for name in names)
        before = shared.get("steps_per_epoch", steps_per_epoch)
        if problem := other_epochs_reason(config, manifest["workers"], before, steps_per_epoch):
            raise CheckpointError(f"{path}: {problem}")
        if manifest["workers"] != workers:
            reason = partial(unmergeable_content, worker, shared["model"].keys())
            if problem := reason(merge):
                merges = not merge and reason(True) is None
                raise CheckpointError(
                    f"{path} was written by {manifest['workers']} workers, this run has {workers}, "
                    f"and {problem}; type trainer.workers={manifest['workers']}"
                    + (", or resume.workers=merge" if merges else " or resume=never")
                )

    def load(self, path: Path, run: Run, progress: Progress) -> None:
        """Restore model, optimizer, compressor state, meters and `progress` from the checkpoint.

        Raises CheckpointError, and replaces nothing, if it is damaged, or belongs to a run with
        another fingerprint.
        """
        manifest = self._manifest(path)
        shared = self._read(path / SHARED, manifest, run.replica.device)
        if shared["step"] != manifest["step"]:
            raise self._damage_error(path / SHARED, "it is of another step")
        workers = [self._read_worker(path, manifest, k, run) for k in run.comm.local]
        try:
            restore(run, progress, shared, workers)
        except StateError as error:
            raise self._damage_error(path / "*.pt", str(error)) from error

    def _read_worker(
        self, path: Path, manifest: dict[str, Any], worker: int, run: Run
    ) -> dict[str, Any]:
        """Return the content of this worker's file, merged if the number of workers has changed."""
        shares = replaced_shares(worker, run.comm.workers, manifest["workers"])
        contents = [
            self._read(path / _worker_file(k), manifest, run.replica.device) for k in shares
        ]
        if manifest["workers"] == run.comm.workers:
            return contents[0]
        return merge_workers(contents, list(shares.values()))

    def _read(self, path: Path, manifest: dict[str, Any], device: torch.device) -> dict[str, Any]:
        self._refuse_damage(path, manifest)
        return self._load_file(path, device)

    def _load_file(self, path: Path, device: torch.device) -> dict[str, Any]:
        try:
            content = torch.load(path, map_location=device, weights_only=True)
        except Exception as error:  # torch raises many classes for a file that it did not write
            raise self._damage_error(path, f"torch.load says {type(error).__name__}") from error
        if not isinstance(content, dict):
            raise self._damage_error(path, "it is no dictionary")
        return content

    def _refuse_damage(self, path: Path, manifest: dict[str, Any]) -> None:
        if not path.is_file() or _digest(path) != manifest["sha256"][path.name]:
            raise self._damage_error(path)

    def _damage_error(self, file: Path, how: str = "its checksum differs") -> CheckpointError:
        older = [path.name for path in _complete_folders(self.directory) if path < file.parent]
        advice = "type resume=never to start anew"
        if older:
            advice = f"remove {file.parent} to continue from {older[-1]}"
        return CheckpointError(f"{file} is missing or damaged ({how}); {advice}")

    def _manifest(self, path: Path) -> dict[str, Any]:
        file = path / "manifest.json"
        try:
            manifest = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise self._damage_error(file, "it is no JSON") from error
        if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
            raise self._damage_error(file, "it is no manifest")
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"{path} has format {manifest['format']}, this gcbench reads {FORMAT}; continue "
                "with the gcbench that began the run, whose commit is in start.json, or type "
                "resume=never to start anew"
            )
        if manifest.pop("checksum", None) != _checksum(manifest):
            raise self._damage_error(file)
        if {key: type(value) for key, value in manifest.items()} != KEYS or not _is_whole(
            manifest, path.name
        ):
            raise self._damage_error(file, "it is not what gcbench writes")
        if manifest["fingerprint"] != self.fingerprint:
            raise CheckpointError(
                f"{path} belongs to a run with another configuration; type resume=never to start "
                "anew, or another name"
            )
        return manifest

    def _drop_old(self) -> None:
        for path in _complete_folders(self.directory)[: -self.keep]:
            shutil.rmtree(path)


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _is_whole(manifest: dict[str, Any], name: str) -> bool:
    """Return whether the manifest lists all workers' files, and has the directory's step."""
    files = manifest["sha256"]
    whole = len(files) == manifest["workers"] + 1 and set(files) == {
        SHARED,
        *map(_worker_file, range(manifest["workers"])),
    }
    return whole and name == _folder(manifest["step"])


def _folder(step: int) -> str:
    return f"step-{step:08d}"


def _worker_file(worker: int) -> str:
    return f"worker-{worker:05d}.pt"


def _write(path: Path, content: dict[str, Any]) -> str:
    with path.open("wb") as file:
        write_tensors(content, file)
        file.flush()
        os.fsync(file.fileno())
    return _digest(path)


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _complete_folders(directory: Path) -> list[Path]:
    return sorted(p.parent for p in directory.glob("step-*[0-9]/manifest.json"))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def save_weights(run: Run, progress: Progress, checkpoints: Checkpoints, path: Path) -> str | None:
    """Write the model's `state_dict` to `path`, and a last checkpoint; every process calls it.

    If they cannot be written, for example to a full disk, all return why. Such a run has failed:
    when it is started again, it continues from its last checkpoint, and keeps both.
    """
    asked = run.settings.keep_weights
    if asked is False:
        return None
    weights = run.replica.model.state_dict()

    def write() -> None:
        with replacing(path) as file:
            write_tensors({name: tensor.cpu() for name, tensor in weights.items()}, file)

    try:
        if asked or sum(run.control.gather(_state_bytes(run, progress))) <= LIMIT_BYTES:
            checkpoints.save(run, progress)
        if asked or _bytes(weights) <= LIMIT_BYTES:
            write_in_all(run, path, checkpoints.latest(), write if run.first else lambda: None)
    except CheckpointError as error:
        return f"{error}, or add trainer.keep_weights=false"
    return None


def _state_bytes(run: Run, progress: Progress) -> int:
    """Return the bytes of the part of a checkpoint that this process writes."""
    workers = (worker_content(run, progress, row) for row in range(len(run.comm.local)))
    return sum(map(_bytes, workers)) + (_bytes(shared_content(run, progress)) if run.first else 0)


def _bytes(value: Any) -> int:
    """Return the bytes of all tensors in a value."""
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, Tensor))
