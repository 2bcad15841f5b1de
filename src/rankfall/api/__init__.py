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
from rankfall.api.preparing import PreparedData, SimulatedLog, prepare, simulate
from rankfall.api.serving import CleaningResult, CollectedRecords, ExportedBundle, clean, collect, export, join
from rankfall.api.shared import Progress
from rankfall.api.studies import ReproductionResult, compare, reproduce, stream, tune
from rankfall.api.training import TrainedRun, diagnose, evaluate, plan, report, train

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
