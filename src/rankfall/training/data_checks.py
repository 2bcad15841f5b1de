"""Whether the data of a configuration exist: its directory, its days or splits, and its examination curve.

Nothing is read but manifests. All problems are returned together, as a configuration is valid without its data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from rankfall._seal import verification
from rankfall.data.impressions.log import ImpressionLog, is_log
from rankfall.data.lists.ranking_data import RankingData, is_prepared
from rankfall.training.config.sections import Role, as_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_USES = (*get_args(Role), "days")  # keys of `data` that name days or splits


class DataProblem(NamedTuple):
    """Something that a configuration names and that does not exist.

    `is_error` is False for files and directories that do not exist, perhaps not yet: a configuration may be written
    before its data are prepared. It is True if the data exist and contradict the configuration.
    """

    message: str
    is_error: bool


def data_problems(content: Mapping[str, Any]) -> list[DataProblem]:
    """Return what a configuration names and does not exist.

    Args:
        content: The mapping of a valid configuration: of a training run, a comparison, a search or a stream.
    """
    problems: list[DataProblem] = []
    data = content.get("data") or {}
    if "path" in data:
        problems += _of_directory(Path(data["path"]), bool(content.get("stages")), dict(_names(content)))
    weight = content.get("weight")
    curve = weight.get("examination") if isinstance(weight, dict) else None
    if curve and not Path(curve).is_file():
        message = f"weight.examination: {curve} is not a file; {Path(curve).absolute()} does not exist"
        problems.append(DataProblem(message, is_error=False))
    return problems


def _names(content: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yield the days or splits that each key names."""
    for use in _USES:
        if names := as_names(content["data"].get(use)):
            yield f"data.{use}", names
    for fold, uses in (content.get("folds") or {}).items():
        for use, names in uses.items():
            yield f"folds.{fold}.{use}", as_names(names)


def _of_directory(path: Path, is_cascade: bool, names: Mapping[str, list[str]]) -> list[DataProblem]:
    other = is_prepared if is_cascade else is_log
    if other(path):
        kind, wanted = ("ranking data", "an impression log") if is_cascade else ("an impression log", "ranking data")
        return [DataProblem(f"data.path: {path} is {kind}, expected {wanted} for this configuration", is_error=True)]
    try:
        with verification(False, lambda text: None):  # commands that read the data verify them
            data = ImpressionLog.load(path) if is_cascade else RankingData.load(path)
    except ValueError as error:
        return [DataProblem(f"data.{error}", is_error=path.exists())]
    found = [f"{key}: {problem}" for key, some in names.items() for name in some for problem in _of_name(data, name)]
    return [DataProblem(message, is_error=True) for message in found]


def _of_name(data: ImpressionLog | RankingData, name: str) -> Iterator[str]:
    try:
        data.choose([name]) if isinstance(data, ImpressionLog) else data[name]
    except ValueError as error:
        yield str(error).removeprefix("days: ").removeprefix("split: ")
