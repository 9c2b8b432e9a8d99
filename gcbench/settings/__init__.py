"""The keys of a configuration: what each means, its range, and where it comes from.

Each module is for the group of conf/ with the same name; `wrappers` has a part of `compressor`.
Most defaults are in conf/. Only the standard library is needed, so that every package can import
the settings, and mistakes are reported before torch is imported.
"""

from gcbench.settings.bench import BenchSettings
from gcbench.settings.compressor import MethodSettings
from gcbench.settings.estimator import EstimatorSettings
from gcbench.settings.logger import LoggerSettings
from gcbench.settings.optimizer import LrScale, OptimizerSettings
from gcbench.settings.resume import ResumeSettings
from gcbench.settings.run import RunSettings
from gcbench.settings.schedule import Interval, ScheduleKind, ScheduleSettings
from gcbench.settings.trainer import Precision, TrainerSettings

__all__ = [
    "BenchSettings",
    "EstimatorSettings",
    "Interval",
    "LoggerSettings",
    "LrScale",
    "MethodSettings",
    "OptimizerSettings",
    "Precision",
    "ResumeSettings",
    "RunSettings",
    "ScheduleKind",
    "ScheduleSettings",
    "TrainerSettings",
]
