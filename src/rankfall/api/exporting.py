"""``rf.export``: a run as a bundle that answers requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, checked
from rankfall._tables import StoredTables
from rankfall.api.shared import Progress, issue, optional_path, reported, requires_extra, run_directory, stepper, warn
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankfall.api.shared import OnNotice, PathLike, ProgressLike, RunLike
    from rankfall.option_types import NotNegativeCount
    from rankfall.serving import Bundle

_REPORTED = ("items", "display", "stages", "checks", "measured", "files", "made_by", "source")


@dataclass(frozen=True, repr=False)
class ExportedBundle(StoredTables):
    """A bundle that was written and checked.

    Attributes:
        manifest: Content of the bundle's ``manifest.json``: its items, stages, checks and measured recall.
        notes: What the user who serves it has to know.
    """

    manifest: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    _directory: Path | None = None

    def load(self) -> Bundle:
        """Load the bundle, to rank items with it."""
        from rankfall.serving import Bundle

        return Bundle.load(self.directory)

    def to_json(self) -> dict[str, Any]:
        """Return what ``rankfall export --json`` prints."""
        content = {key: self.manifest[key] for key in _REPORTED}
        return {"bundle": str(self.directory), "notes": self.notes, **content}

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return the rows of `stages`, one per stage: what it keeps of the relevant items over all exported items."""
        measured = {one["stage"]: one for one in (self.manifest["measured"] or {"stages": []})["stages"]}
        return {"stages": [_row(stage, measured.get(stage["name"])) for stage in self.manifest["stages"]]}


def _row(stage: Mapping[str, Any], measured: Mapping[str, Any] | None) -> dict[str, Any]:
    index = stage.get("index", {})
    figures = measured or {}
    kept = figures.get("kept", {})
    return {
        "stage": stage["name"],
        "quota": stage["quota"],
        "model": stage["model"]["kind"],
        "index_recall": index.get("recall"),
        "entered": figures.get("entered"),
        "kept": kept.get("value"),
        "kept_low": kept.get("low"),
        "kept_high": kept.get("high"),
        "chance": figures.get("chance"),
        "lost": figures.get("lost", {}).get("value"),
        "survived": figures.get("survived", {}).get("value"),
    }


@checked
def export(
    run: RunLike,
    out: PathLike,
    *,
    items: PathLike | None = None,
    data: PathLike | None = None,
    stage: str | None = None,
    quotas: Mapping[str, int] | Sequence[str] | None = None,
    recall: float = 0.99,
    examples: NotNegativeCount = 16,
    display: Sequence[str] | None = None,
    force: bool = False,
    trust: bool = False,
    verify: bool = True,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
) -> ExportedBundle:
    """Export the best weights of a cascade as a bundle that can be served.

    Args:
        run: Run directory of a cascade, or what :func:`rankfall.train` returned.
        out: Directory of the bundle.
        items: A prepared log, or an Arrow or Parquet file of items. Default: the run's log.
        data: Path of the prepared data, if it was moved. Default: the path used for training.
        stage: Export only this stage. Default: all stages.
        quotas: Number of items that stages keep in the bundle, by stage, or as strings ``"STAGE=N"``. Default: the
            run's quotas.
        recall: Share of the best items that an index must find; 1 makes it exact.
        examples: Number of logged requests stored in the bundle as a self-test.
        display: Attributes of items to show on the service's page: columns of `items`, or features of items. Default: a
            few categorical features.
        force: Replace a bundle in `out`.
        trust: Import code that the stored configuration names.
        verify: Compare the data and the run with their checksums when they are first read.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they and the notes of the bundle are issued as
            :class:`~rankfall.RankfallWarning`.

    Raises:
        ValueError: If the run, its log and the items do not fit together, the bundle answers differently than PyTorch,
            the index does not reach the recall, or packages are not installed.
    """
    chosen = _quotas(quotas or {})
    if not 0 < recall <= 1:
        raise RankfallError(f"found {recall:g}, expected more than 0 and at most 1", "recall")
    check_installed("export")
    from rankfall.serving.export.export_run import ExportOptions, export_run

    with verification(verify, on_notice), reported(progress) as report:
        report(Progress("reading"))
        exported = export_run(
            run_directory(run),
            Path(out),
            ExportOptions(
                items=optional_path(items),
                stage=stage,
                quotas=chosen,
                recall=recall,
                examples=examples,
                display=display or None,
                force=force,
            ),
            data=optional_path(data),
            trust=trust,
            on_step=stepper(report),
        )
    issue(exported.notes, on_notice)
    return ExportedBundle(exported.manifest, exported.notes, Path(out))


def _quotas(given: Mapping[str, int] | Sequence[str]) -> Mapping[str, int]:
    """Return quotas by stage."""
    if isinstance(given, Mapping):
        return given
    quotas = {}
    for word in given:
        name, _, number = str(word).partition("=")
        if not name or not number.isdecimal() or int(number) < 1:
            raise RankfallError(f"found {word!r}, expected STAGE=N with a whole number of at least 1", "quotas")
        quotas[name] = int(number)
    return quotas


def check_installed(what: str) -> None:
    """Raise an error that names the extra if the packages that exporting needs are not installed."""
    with requires_extra(what, "serve"):
        import rankfall.serving.export.export_run  # noqa: F401
