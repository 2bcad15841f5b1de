"""Schema of the files in ``papers/``: what was published, and how each table or figure is reproduced.

A file describes one paper. Its `reproductions` are checked by the model of their driver, see `DRIVERS`; `protocols` and
`methods` are definitions that several reproductions share and refer to by name. Text of the form ``$tau`` in a method,
a metric or the options of lists is a variable, replaced by each value of a sweep or by the cut-offs of a protocol.

==================  ====================================================
``printed``         printed tables and sweeps
``variables``       replacement of ``$name``
``methods``         methods and training protocols
``reproduction``    what all reproductions have in common
``on_lists``        models of the drivers that need ranking lists
``on_impressions``  models of the drivers that need impressions
``on_operators``    models of the drivers that need no data
``paper_file``      the whole file, and what it states beside its tables
==================  ====================================================

Nothing here imports torch, so that ``rankfall reproduce --list`` responds at once.
"""

from rankfall.reproductions.paper_schema.methods import CascadeProtocol, ListProtocol, Method, Options, StageProtocol
from rankfall.reproductions.paper_schema.on_impressions import (
    LogStatistics,
    ObjectiveComparison,
    ObjectiveRuntime,
    ObjectiveStream,
    ObjectiveSweep,
    StageLossComparison,
)
from rankfall.reproductions.paper_schema.on_lists import (
    Cutoffs,
    CutoffTransfer,
    LengthTransfer,
    ListStatistics,
    LossComparison,
    LossCost,
    LossSweep,
    TrainingCurves,
)
from rankfall.reproductions.paper_schema.on_operators import (
    GradientConflict,
    GradientSigns,
    SortRuntime,
    SortTree,
    SurvivalBounds,
    SyntheticLists,
    TemperatureEffect,
    TopkRuntime,
    TrainingSteps,
)
from rankfall.reproductions.paper_schema.paper_file import DRIVERS, PaperFile, Statement
from rankfall.reproductions.paper_schema.printed import (
    Cell,
    Column,
    Marks,
    Measured,
    Number,
    PrintedNumber,
    PublishedSweep,
    PublishedTable,
    mean_of,
)
from rankfall.reproductions.paper_schema.reproduction import Kind, PublishedOnly, Reproduction, TableOfMethods, Time
from rankfall.reproductions.paper_schema.variables import fill, variables_in

__all__ = [
    "DRIVERS",
    "CascadeProtocol",
    "Cell",
    "Column",
    "CutoffTransfer",
    "Cutoffs",
    "GradientConflict",
    "GradientSigns",
    "Kind",
    "LengthTransfer",
    "ListProtocol",
    "ListStatistics",
    "LogStatistics",
    "LossComparison",
    "LossCost",
    "LossSweep",
    "Marks",
    "Measured",
    "Method",
    "Number",
    "ObjectiveComparison",
    "ObjectiveRuntime",
    "ObjectiveStream",
    "ObjectiveSweep",
    "Options",
    "PaperFile",
    "PrintedNumber",
    "PublishedOnly",
    "PublishedSweep",
    "PublishedTable",
    "Reproduction",
    "SortRuntime",
    "SortTree",
    "StageLossComparison",
    "StageProtocol",
    "Statement",
    "SurvivalBounds",
    "SyntheticLists",
    "TableOfMethods",
    "TemperatureEffect",
    "Time",
    "TopkRuntime",
    "TrainingCurves",
    "TrainingSteps",
    "fill",
    "mean_of",
    "variables_in",
]
