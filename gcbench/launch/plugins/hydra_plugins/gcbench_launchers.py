"""hydra/launcher=submitit_slurm and submitit_local for gcbench.

Hydra takes launchers from a package of this name only. All points of a sweep are submitted at once,
each as a job of the shape that its own trainer.* says.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher

log = logging.getLogger("gcbench")

ONE_TASK = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": None}

if find_spec("hydra_plugins.hydra_submitit_launcher"):
    from hydra_plugins.hydra_submitit_launcher import submitit_launcher as theirs

    class SubmititLocal(theirs.LocalLauncher):
        """A launcher of jobs as processes of this machine."""

        def __call__(self, sweep_overrides: list[str], *rest: Any) -> JobReturn:
            """Run a point as a task of its job."""
            from gcbench.config import register

            register()
            # The process that waits for the jobs reports them.
            self.hydra_context.callbacks.callbacks = []
            quiet = (
                ["hydra.output_subdir=null"] if os.environ.get("SLURM_PROCID", "0") != "0" else []
            )
            failed: list[JobReturn] = []
            # Slurm must see the failure, but only after submitit has written the result.
            atexit.register(lambda: os._exit(1) if failed else None)
            returned = super().__call__([*sweep_overrides, *quiet], *rest)
            if returned.status is JobStatus.FAILED:
                failed.append(returned)
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
                    returned[index] = _collect_return(jobs[index], points[index])
                self.hydra_context.callbacks.on_job_end(config=config, job_return=returned[index])
            return [returned[index] for index in points]

        def shape(self, config: Any) -> dict[str, Any]:
            """Return the nodes, tasks and GPUs of a point's job."""
            return ONE_TASK

        def _submit(
            self, points: Mapping[int, list[str]], configs: Mapping[int, Any]
        ) -> tuple[dict[int, Any], dict[int, JobReturn]]:
            """Submit the points; return the jobs, and the returns of points that are refused.

            Points of one shape go as one array.
            """
            from submitit.core.utils import FailedJobError

            from gcbench.config import ConfigError

            shapes: dict[int, dict[str, Any]] = {}
            returned: dict[int, JobReturn] = {}
            for index, config in configs.items():
                try:
                    shapes[index] = self.shape(config)
                except ConfigError as error:
                    returned[index] = _failure(points[index], error)
            jobs: dict[int, Any] = {}
            for shape in [
                s for i, s in enumerate(shapes.values()) if s not in list(shapes.values())[:i]
            ]:
                alike = [index for index, its in shapes.items() if its == shape]
                arguments = [
                    (points[i], "hydra.sweep.dir", i, f"job_id_for_{i}", Singleton.get_state())
                    for i in alike
                ]
                try:
                    submitted = self._executor(shape).map_array(self, *zip(*arguments, strict=True))
                except FailedJobError as error:
                    returned.update({i: _failure(points[i], _refusal(error)) for i in alike})
                else:
                    jobs.update(zip(alike, submitted, strict=True))
            return jobs, returned

        def _executor(self, shape: Mapping[str, Any]) -> Any:
            import submitit

            params = {k: v for k, v in {**self.params, **shape}.items() if v is not None}
            folder, timeouts = params.pop("submitit_folder"), params.pop("max_num_timeout", None)
            limits = {} if timeouts is None else {"slurm_max_num_timeout": timeouts}
            executor = submitit.AutoExecutor(folder, cluster=self._EXECUTOR, **limits)
            common = {
                "timeout_min",
                "cpus_per_task",
                "gpus_per_node",
                "tasks_per_node",
                "mem_gb",
                "nodes",
                "name",
                "stderr_to_stdout",
            }
            executor.update_parameters(
                **{k if k in common else f"{self._EXECUTOR}_{k}": v for k, v in params.items()}
            )
            return executor

    class SubmititSlurm(SubmititLocal):
        """A launcher of jobs on a cluster."""

        _EXECUTOR = "slurm"

        def launch(
            self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
        ) -> Sequence[JobReturn]:
            from gcbench.launch import slurm

            self.cluster = slurm.find_cluster(self.params["partition"])
            return super().launch(job_overrides, initial_job_idx)

        def _submit(
            self, points: Mapping[int, list[str]], configs: Mapping[int, Any]
        ) -> tuple[dict[int, Any], dict[int, JobReturn]]:
            jobs, returned = super()._submit(points, configs)
            if jobs:
                numbers = " ".join(job.job_id for job in jobs.values())
                log.info(
                    "waiting for jobs that go on without this command; type scancel %s to end them",
                    numbers,
                )
            return jobs, returned

        def shape(self, config: Any) -> dict[str, Any]:
            from gcbench.config import ConfigError, resolve
            from gcbench.launch import slurm

            for key, usual in ONE_TASK.items():
                if self.params.get(key, usual) != usual:
                    raise ConfigError(
                        f"hydra.launcher.{key}={self.params[key]}: jobs follow trainer.*; type "
                        "trainer.nodes, trainer.gpus and trainer.device instead"
                    )
            if "trainer" not in config:
                return ONE_TASK
            shape = slurm.job_shape(resolve(config)["trainer"], self.cluster)
            return shape if self.params["gres"] is None else {**shape, "gpus_per_node": None}

    def _collect_return(job: Any, overrides: list[str]) -> JobReturn:
        """Return what the first task returned, or the first that failed."""
        from submitit.core.utils import UncompletedJobError

        from gcbench.config import RunFailed

        job.wait()
        tasks = [job.task(number) for number in range(job.num_tasks)]
        try:
            returns: list[JobReturn] = [
                task.result() for task in tasks if task.paths.result_pickle.exists()
            ]
            failed = [each for each in returns if each.status is JobStatus.FAILED]
            first: JobReturn = failed[0] if failed else tasks[0].result()
        except UncompletedJobError as error:
            reason = str(error).strip().splitlines()[-1]
            logs = job.paths.folder
            return _failure(
                overrides,
                RunFailed(
                    f"job {job.job_id} ended as {job.state}: {reason}; its logs are in {logs}"
                ),
            )
        return first

    def _refusal(error: Exception) -> Exception:
        from gcbench.config import ConfigError

        reason = str(error).splitlines()[-1].removeprefix("sbatch: error: ")
        return ConfigError(
            f"hydra/launcher=submitit_slurm: sbatch says {reason!r}; type other hydra.launcher.* "
            "or trainer.*"
        )

    def _failure(overrides: list[str], error: Exception) -> JobReturn:
        failed = JobReturn(overrides=overrides, status=JobStatus.FAILED)
        failed.return_value = error
        return failed

else:

    class SubmititLocal(Launcher):  # type: ignore[no-redef]
        """A stand-in that says how to install Hydra's plugin for submitit."""

        def __init__(self, **_: Any) -> None:
            from gcbench.config import ConfigError

            raise ConfigError(
                "hydra/launcher=submitit_slurm and submitit_local need a plugin of Hydra; "
                "type pip install '.[slurm]' in gcbench's checkout"
            )

        def setup(self, **_: Any) -> None:
            pass

        def launch(
            self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
        ) -> Sequence[JobReturn]:
            return []

    class SubmititSlurm(SubmititLocal):  # type: ignore[no-redef]
        """A stand-in like SubmititLocal."""
