"""``rf.reproduce``: a published table or figure beside its published numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, checked
from rankfall._tables import StoredTables, json_text
from rankfall.api.comparing import failure_texts
from rankfall.api.shared import Progress, issue, reported, stepper, warn, write_figures
from rankfall.storage.disk import make_directory
from rankfall.storage.files import write_file

if TYPE_CHECKING:
    from rankfall.api.shared import OnNotice, PathLike, ProgressLike
    from rankfall.option_types import Count, Seed
    from rankfall.reproductions.data import DataSource
    from rankfall.reproductions.paper_schema import Reproduction
    from rankfall.reproductions.task import Report
    from rankfall.studies.results import RunFailure

DEFAULT_OUT = Path("reproduced")


@dataclass(frozen=True, repr=False)
class ReproductionResult(StoredTables):
    """A reproduced table or figure.

    Attributes:
        name: Name of the reproduction.
        content: Content of ``results.json``.
        report: Comparisons, tables of text beside the published numbers, and notes.
    """

    name: str
    content: dict[str, Any]
    report: Report
    _directory: Path | None = None

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The results of each comparison, if there are several."""
        results = self.report.results
        return list(results.get("parts", {"all": results}).values())

    @property
    def failed(self) -> list[RunFailure]:
        """Runs that failed."""
        from rankfall.studies.results import RunFailure

        found = [failure for part in self.parts for failure in part.get("comparison", {}).get("failed", [])]
        return [RunFailure.from_json(failure) for failure in found]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``results.json``."""
        return self.content

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the tables that ``rankfall reproduce`` prints by their titles: comparisons, then tables of text."""
        compared = {title: result.tables()["methods"] for title, result in self.report.comparisons}
        sheets = {
            sheet.title: [
                dict(zip(sheet.head, (cell.line() for cell in row), strict=False)) for _, row in sheet.cells() if row
            ]
            for sheet in self.report.sheets
        }
        return {**compared, **sheets}


@checked
def reproduce(
    name: str,
    out: PathLike | None = None,
    *,
    data: str | None = None,
    quick: bool = False,
    improved: bool = False,
    methods: PathLike | Mapping[str, Any] | None = None,
    seed: Seed = 0,
    jobs: Count = 2,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> ReproductionResult:
    """Run a published table or figure.

    Args:
        name: Name of a reproduction, such as ``"arf-table2"``; ``rankfall reproduce --list`` shows all.
        out: Directory of the results and runs; runs that exist are not repeated. Default: ``reproduced/NAME``.
        data: Lists: a benchmark in its published layout, a prepared directory, a file, generated, or one of
            mslr_sample, mq2007, clueweb09 (in $RANKFALL_DATA). Impressions: a prepared log, or RecFlow's directory.
            Default: lists: mslr_sample if available, else generated; impressions: a simulated platform.
        quick: Run a reduced version in one or two minutes.
        improved: Also run our better versions of the published methods, beside them.
        methods: Also run methods of your own: a YAML file or a dictionary with their names and what they change, as in
            a comparison.
        seed: Random seed of the data and of the first training run.
        jobs: Training runs at the same time.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they and failed runs are issued as :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If there is no such reproduction, or the data do not fit it.
    """
    from rankfall.reproductions.catalogue import find_reproduction, load_methods

    reproduction = find_reproduction(name)
    own = [] if methods is None else load_methods(methods if isinstance(methods, Mapping) else Path(methods))
    source = data_source(reproduction, data)
    directory = Path(out) if out is not None else DEFAULT_OUT / reproduction.id
    make_directory(directory)
    if improved and not reproduction.has_improved:
        issue([f"improved=True changes nothing: {reproduction.id} has no improved versions of its methods"], on_notice)
    settings: dict[str, Any] = {"quick": quick, "improved": improved, "seed": seed}
    with reported(progress) as report:
        report(Progress("preparing"))
        found = run_reproduction(
            reproduction,
            source,
            out=directory,
            jobs=jobs,
            progress=stepper(report),
            on_notice=on_notice,
            methods=own,
            **settings,
        )
    content = {"experiment": reproduction.id, "paper": reproduction.paper, **settings, **found.results}
    write_file(directory / "results.json", json_text(content) + "\n")
    write_figures(found.plots, directory, on_notice)
    result = ReproductionResult(reproduction.id, content, found, directory)
    issue(failure_texts(result.failed), on_notice)
    return result


def data_source(reproduction: Reproduction, data: str | None) -> DataSource:
    """Return the data of a reproduction.

    Raises:
        ValueError: If it uses no data, or cannot use these.
    """
    from rankfall.reproductions.data import DataSource, find_lists, find_log

    if reproduction.data in ("operators", "none"):
        if data is not None:
            raise RankfallError(f"data: {reproduction.id} uses no data")
        return DataSource("no data", "none", {})
    return find_log(data) if reproduction.data == "impressions" else find_lists(data)


def run_reproduction(reproduction: Reproduction, source: DataSource, *, quick: bool, **options: Any) -> Report:
    """Run a reproduction with its driver."""
    from rankfall.reproductions import task
    from rankfall.reproductions.catalogue import run

    return run(reproduction, task.Task(source=source, size=task.QUICK if quick else task.FULL, **options))
