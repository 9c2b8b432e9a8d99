"""The points of a sweep as jobs of submitit, on a Slurm cluster or on this machine.

All points are submitted at once, each as a job whose shape follows from its own trainer.*; points
of one shape may share a job. This module needs the packages of gcbench[slurm]. It imports neither
torch nor submitit, which are slow, since Hydra imports it for every command.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, make_dataclass
from functools import cache
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra_plugins.hydra_submitit_launcher.config import (
    BaseQueueConf,
    LocalQueueConf,
    SlurmQueueConf,
)
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import LocalLauncher

from gcbench.core.errors import ConfigError
from gcbench.runner.config.compose import register
from gcbench.runner.config.errors import RunFailed
from gcbench.runner.config.hydra_versions import IS_1_3, store
from gcbench.runner.config.resolve import resolve
from gcbench.runner.launch import slurm
from gcbench.runner.launch.slurm import JobShape

log = logging.getLogger("gcbench")


PACKING = [("points_per_job", int, 1), ("points_at_once", int, 1)]
SCHEMAS = {  # the keys of the submitit plugin, and ours
    "local": make_dataclass("LocalKeys", PACKING, bases=(LocalQueueConf,)),
    "slurm": make_dataclass("SlurmKeys", PACKING, bases=(SlurmQueueConf,)),
}
for _name, _keys in SCHEMAS.items():  # the files of conf/hydra/launcher begin with them
    store(group="hydra/launcher/keys", name=_name, node=_keys)


class PackingKeys(SearchPathPlugin):
    """Replaces the schemas of the submitit plugin, under Hydra 1.3.

    By these it validates our files, too: they have the names of our files, and lack our keys. It
    calls this class once all plugins are imported, and then at every composition.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if IS_1_3:
            _replace_schemas()


@cache
def _replace_schemas() -> None:
    for name, keys in SCHEMAS.items():
        store(group="hydra/launcher", name=f"submitit_{name}", node=keys)


class LocalJobs(LocalLauncher):
    """A launcher of jobs that are processes on this machine."""

    def __init__(self, points_per_job: int, points_at_once: int = 1, **params: Any) -> None:
        super().__init__(**params)
        self.points_per_job = _count("points_per_job", points_per_job)
        self.points_at_once = _count("points_at_once", points_at_once)

    def __call__(self, *points: tuple[Any, ...]) -> dict[int, JobReturn]:
        """Run points one after another in a task of their job; return each result by number.

        If points run at the same time, each of the job's n tasks runs every n-th point.
        """
        register()
        # The process that waits for the jobs reports their progress.
        self.hydra_context.callbacks.callbacks = []
        apart = slurm.tasks(os.environ) if self.points_at_once > 1 else 0
        first = slurm.rank(os.environ) if apart else 0
        returned: dict[int, JobReturn] = {}
        # Slurm must see the failure, but only after submitit has written the result.
        atexit.register(lambda: os._exit(1) if any(map(_failed, returned.values())) else None)
        with slurm.task_of_its_own() if apart else nullcontext():
            for overrides, *rest in points[first :: apart or 1]:
                quiet = [] if slurm.rank(os.environ) == 0 else ["hydra.output_subdir=null"]
                number = rest[1]
                returned[number] = super().__call__([*overrides, *quiet], *rest)
        return returned

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        points = {
            initial_job_idx + index: list(overrides)
            for index, overrides in enumerate(job_overrides)
        }
        configs = {
            i: self.hydra_context.config_loader.load_sweep_config(self.config, p)
            for i, p in points.items()
        }
        jobs, returned = self._submit(points, configs)
        for index, config in configs.items():
            self.hydra_context.callbacks.on_job_start(
                config=config, task_function=self.task_function
            )
            if index in jobs:
                apart = self.points_at_once > 1
                returned[index] = _collect_return(jobs[index], index, points[index], apart)
            self.hydra_context.callbacks.on_job_end(config=config, job_return=returned[index])
        return [returned[index] for index in points]

    def shape(self, config: Any) -> JobShape:
        """Return the nodes, tasks and GPUs of a point."""
        return JobShape()

    def _submit(
        self, points: Mapping[int, list[str]], configs: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, JobReturn]]:
        """Submit the points; return the job of each, and the failures of refused points."""
        by_shape: dict[JobShape, list[int]] = {}
        jobs: dict[int, Any] = {}
        returned: dict[int, JobReturn] = {}
        for index, config in configs.items():
            try:
                shape = self._refuse_packing(self.shape(config))
            except ConfigError as error:
                returned[index] = _failure(points[index], error)
            else:
                by_shape.setdefault(shape, []).append(index)
        for shape, indices in by_shape.items():
            try:
                submitted = self._submit_array(shape, {i: points[i] for i in indices})
            except ConfigError as error:
                returned.update({i: _failure(points[i], error) for i in indices})
            else:
                jobs.update(submitted)
        return jobs, returned

    def _submit_array(self, shape: JobShape, points: Mapping[int, list[str]]) -> dict[int, Any]:
        """Submit points of one shape as a job array; return the job of each point.

        A job has up to `points_per_job` points.
        """
        from submitit.core.utils import FailedJobError

        arguments = [
            (overrides, "hydra.sweep.dir", i, f"job_id_for_{i}", Singleton.get_state())
            for i, overrides in points.items()
        ]
        size = self.points_per_job
        packs = [arguments[i : i + size] for i in range(0, len(arguments), size)]
        together = min(self.points_at_once, len(packs[0]))
        executor = self._executor(shape.side_by_side(together)._asdict())
        try:
            with executor.batch():
                jobs = [executor.submit(self, *pack) for pack in packs]
        except FailedJobError as error:
            reason = slurm.last_line(str(error)).removeprefix("sbatch: error: ")
            raise ConfigError(
                f"hydra/launcher=submitit_slurm: sbatch says {reason!r}; type other "
                "hydra.launcher.* or trainer.*"
            ) from error
        return {i: jobs[n // size] for n, i in enumerate(points)}

    def _refuse_packing(self, shape: JobShape) -> JobShape:
        if self.points_at_once > self.points_per_job:
            raise ConfigError(
                f"hydra.launcher.points_at_once={self.points_at_once}: a job has "
                f"points_per_job={self.points_per_job} points; type "
                f"hydra.launcher.points_per_job={self.points_at_once} too, or more"
            )
        tasks = shape.nodes * shape.tasks_per_node
        if self.points_at_once > 1 and tasks > 1:
            raise ConfigError(
                f"hydra.launcher.points_at_once={self.points_at_once}: each of these points "
                f"has one task, and this one has {tasks}; type points_at_once=1, or "
                "trainer.launcher=local"
            )
        return shape

    def _executor(self, shape: Mapping[str, Any]) -> Any:
        import submitit

        params = {k: v for k, v in {**self.params, **shape}.items() if v is not None}
        folder, timeouts = params.pop("submitit_folder"), params.pop("max_num_timeout", None)
        limits = {} if timeouts is None else {"slurm_max_num_timeout": timeouts}
        executor = submitit.AutoExecutor(folder, cluster=self._EXECUTOR, **limits)
        common = {field.name for field in fields(BaseQueueConf)}
        executor.update_parameters(
            **{k if k in common else f"{self._EXECUTOR}_{k}": v for k, v in params.items()}
        )
        return executor


class SlurmJobs(LocalJobs):
    """A launcher that submits jobs to a Slurm cluster."""

    _EXECUTOR = "slurm"

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        self.cluster = slurm.find_cluster(self.params["partition"])
        return super().launch(job_overrides, initial_job_idx)

    def _submit(
        self, points: Mapping[int, list[str]], configs: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, JobReturn]]:
        jobs, returned = super()._submit(points, configs)
        if jobs:
            numbers = " ".join(dict.fromkeys(job.job_id for job in jobs.values()))
            log.info(
                "waiting for jobs that go on without this command; type scancel %s to end them",
                numbers,
            )
        return jobs, returned

    def _executor(self, shape: Mapping[str, Any]) -> Any:
        if self.points_at_once > 1:  # a failed task must not end those of other points
            setup = [*(self.params["setup"] or []), "export SLURM_KILL_BAD_EXIT=0"]
            shape = {**shape, "setup": setup}
        return super()._executor(shape)

    def shape(self, config: Any) -> JobShape:
        one_task = JobShape()
        for key, usual in one_task._asdict().items():
            if self.params.get(key, usual) != usual:
                raise ConfigError(
                    f"hydra.launcher.{key}={self.params[key]}: jobs follow trainer.*; type "
                    "trainer.nodes, trainer.workers and trainer.device instead"
                )
        if "trainer" not in config:
            return one_task
        shape = slurm.job_shape(resolve(config).trainer, self.cluster)
        asked = [self.params[key] for key in ("gres", "gpus_per_task")]
        return shape if asked == [None, None] else shape._replace(gpus_per_node=None)


def _collect_return(job: Any, number: int, overrides: list[str], apart: bool) -> JobReturn:
    """Return the first task's result for a point, or that of the first task that failed.

    Every task of the job must have returned; if tasks run points `apart`, only the point's own.
    """
    from submitit.core.utils import UncompletedJobError

    job.wait()
    tasks = [job.task(index) for index in range(job.num_tasks)]
    ended = [task for task in tasks if task.paths.result_pickle.exists()]
    lost = [task for task in tasks if task not in ended]
    try:
        returns: list[JobReturn] = [
            task.result()[number] for task in ended if number in task.result()
        ]
        failed = [each for each in returns if _failed(each)]
        if not failed and lost and not (apart and returns):
            lost[0].result()  # raises the reason why there is no result
        first: JobReturn = (failed or returns)[0]
    except UncompletedJobError as error:
        reason = slurm.last_line(str(error))
        ending = f"job {job.job_id} ended as {job.state}: {reason}"
        failure = RunFailed(f"{ending}; its logs are in {job.paths.folder}")
        return _failure(overrides, failure)
    return first


def _failed(returned: JobReturn) -> bool:
    return returned.status is JobStatus.FAILED


def _count(key: str, value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"hydra.launcher.{key}={value}: type a number of points, 1 or more")
    return value


def _failure(overrides: list[str], error: Exception) -> JobReturn:
    failed = JobReturn(overrides=overrides, status=JobStatus.FAILED)
    failed.return_value = error
    return failed
