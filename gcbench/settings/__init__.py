"""The keys of a configuration: what each means, its range, and where it comes from.

A file for each group of conf/, of the same name. Defaults lie in conf/. Standard library only, so
that every room may read them.
"""

from gcbench.settings.bench import BenchSettings
from gcbench.settings.estimator import (
    DoubleSteps,
    EpochSteps,
    EstimatorSettings,
    Every,
    Fragments,
    InnerClipNorm,
    MaxEvery,
    OuterLr,
    OuterMomentum,
    OuterNesterov,
    Penalty,
)
from gcbench.settings.logger import LoggerKind, LoggerSettings, LogMode
from gcbench.settings.optimizer import LrScale, OptimizerKind, OptimizerSettings
from gcbench.settings.resume import ResumeMode, ResumeSettings, ResumeWorkers
from gcbench.settings.run import RunSettings
from gcbench.settings.schedule import Interval, ScheduleKind, ScheduleSettings
from gcbench.settings.trainer import (
    Backend,
    CodecBackend,
    Device,
    Launcher,
    Precision,
    TrainerSettings,
)

__all__ = [
    "Backend",
    "BenchSettings",
    "CodecBackend",
    "Device",
    "DoubleSteps",
    "EpochSteps",
    "EstimatorSettings",
    "Every",
    "Fragments",
    "InnerClipNorm",
    "Interval",
    "Launcher",
    "LogMode",
    "LoggerKind",
    "LoggerSettings",
    "LrScale",
    "MaxEvery",
    "OptimizerKind",
    "OptimizerSettings",
    "OuterLr",
    "OuterMomentum",
    "OuterNesterov",
    "Penalty",
    "Precision",
    "ResumeMode",
    "ResumeSettings",
    "ResumeWorkers",
    "RunSettings",
    "ScheduleKind",
    "ScheduleSettings",
    "TrainerSettings",
]
