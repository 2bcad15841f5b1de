"""The Python API above losses and cascades: the functions behind the commands.

All of them are also attributes of the package: ``rf.train`` is :func:`rankfall.api.train`. Nothing here imports torch
before a function is called.

Configurations are paths of YAML files, dictionaries with their content, or validated models. Results are typed; each
has tables as data frames (``to_polars()``, ``to_pandas()``), a form for notebooks, and the directory of its files.
Errors are exceptions, notices are warnings of the class :class:`RankfallWarning`, and nothing is printed to standard
output.
"""

from __future__ import annotations

from rankfall._errors import RankfallWarning
from rankfall.api.comparing import compare, tune
from rankfall.api.exporting import ExportedBundle, export
from rankfall.api.measuring import diagnose, evaluate, plan, report
from rankfall.api.preparing import PreparedData, prepare
from rankfall.api.records import CleaningResult, CollectedRecords, clean, collect, join
from rankfall.api.reproducing import ReproductionResult, reproduce
from rankfall.api.shared import Progress
from rankfall.api.simulating import SimulatedLog, simulate
from rankfall.api.streaming import stream
from rankfall.api.training import TrainedRun, train

__all__ = [
    "CleaningResult",
    "CollectedRecords",
    "ExportedBundle",
    "PreparedData",
    "Progress",
    "RankfallWarning",
    "ReproductionResult",
    "SimulatedLog",
    "TrainedRun",
    "clean",
    "collect",
    "compare",
    "diagnose",
    "evaluate",
    "export",
    "join",
    "plan",
    "prepare",
    "report",
    "reproduce",
    "simulate",
    "stream",
    "train",
    "tune",
]
