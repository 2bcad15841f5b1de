"""``rf.export``, ``rf.collect``, ``rf.join`` and ``rf.clean``: bundles, and from what services recorded to a log."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall._errors import RankfallError, checked, stop_at_ctrl_c
from rankfall._tables import StoredTables, Tables
from rankfall.api.shared import Progress, issue, optional_path, reported, requires_extra, run_directory, stepper, warn
from rankfall.storage.files import Leftover, clean_tree
from rankfall.storage.manifests import verification

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankfall._config import ConfigLike
    from rankfall.api.shared import OnNotice, PathLike, ProgressLike, RunLike
    from rankfall.online.join_results import DayReport, JoinResult
    from rankfall.option_types import Fraction, NotNegativeCount, Seconds
    from rankfall.serving import Bundle
    from rankfall.serving.recording.collect import CollectionCounts


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


@dataclass(frozen=True, repr=False)
class CollectedRecords(StoredTables):
    """What :func:`collect` has written.

    Attributes:
        messages: Number of messages that were received.
        samples: Number of samples that were written.
        events: Number of events that were written.
        repeated: Number of messages that were delivered again, and not written again.
        rejected: Number of messages that hold no records.
        missed: Number of messages that the broker deleted before they were collected.
    """

    messages: int
    samples: int
    events: int
    repeated: int
    rejected: int
    missed: int

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return one row."""
        return {"collected": [self.to_json()]}

    def to_json(self) -> dict[str, int]:
        """Return the numbers by their names."""
        return asdict(self)


@checked
def collect(
    url: str,
    out: PathLike,
    *,
    follow: bool = False,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    stop: Callable[[], object] | None = None,
) -> CollectedRecords:
    """Write the samples and events that services sent to a broker to files.

    Messages are acknowledged after their records are on disk. A call that was interrupted or killed can be repeated:
    nothing is lost.

    Args:
        url: Stream of NATS JetStream, nats://HOST:PORT/STREAM, or topic of Kafka, kafka://HOST:PORT/TOPIC.
        out: Directory of the files, as ``rankfall serve --samples`` writes them. Earlier files stay.
        follow: Wait for further messages until `stop` returns a true value, or Ctrl-C.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices about rejected messages and lost connections. Default: they are issued as
            :class:`~rankfall.RankfallWarning`.
        stop: Called between groups of messages; a true value ends the work. With it, Ctrl-C is left to the caller.

    Raises:
        ValueError: If the URL is wrong, or the package of the broker is not installed.
        OSError: If the broker cannot be reached, or the records cannot be written.
    """
    with requires_extra("collect", "serve"):
        from rankfall.serving.recording.collect import collect as run

    directory = Path(out)
    with reported(progress) as report, stop_at_ctrl_c(stop) as stopping:
        report(Progress("connecting"))

        def on_counts(counts: CollectionCounts) -> None:
            report(Progress("collecting", status=f"{counts.samples:,} samples, {counts.events:,} events"))

        try:
            counts = run(url, directory, follow=follow, stop=stopping, on_notice=on_notice, on_counts=on_counts)
        except ValueError as error:
            raise RankfallError(f"url: {error}") from None
    return CollectedRecords(**asdict(counts)).stored_in(directory)


_DURATION = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_WAIT = timedelta(days=366)
_NAP = 0.1  # seconds between questions whether to stop


@checked
def join(
    directory: PathLike,
    out: PathLike,
    *,
    spec: ConfigLike,
    items: PathLike | None = None,
    users: PathLike | None = None,
    wait: str | float | timedelta = "1h",
    close: bool = False,
    follow: bool = False,
    poll: Seconds = 10.0,
    parity: Fraction = 0.01,
    parity_limit: Fraction = 0.01,
    user_requests: NotNegativeCount = 1_000,
    bundles: PathLike | None = None,
    grow: bool = False,
    grow_limit: NotNegativeCount | None = None,
    progress: ProgressLike = True,
    on_notice: OnNotice = warn,
    on_day: Callable[[DayReport], None] = lambda report: None,
    stop: Callable[[], object] | None = None,
) -> JoinResult:
    """Join what ``rankfall serve --samples`` recorded to an impression log, day by day.

    Args:
        directory: The directory that the service writes.
        out: The log. New days are appended to it; if it does not exist, it is fitted to the first day.
        spec: Spec of the log, as a YAML file, a dictionary or a model.
        items: A table with features of items.
        users: A table with features of users that requests lack.
        wait: Time to wait for records after a day, such as 1h, 90m or 30s.
        close: Close all days that have samples now.
        follow: Wait for new records. The function then returns only after `stop` or Ctrl-C.
        poll: Seconds between checks for new records, with `follow`.
        parity: Share of the requests that the bundles that answered them encode and score again; 0: none.
        parity_limit: Share of these requests that may differ. They are set apart; more of them stop the day.
        user_requests: Largest number of requests of one user and day; further ones are set apart.
        bundles: Where to look for moved bundles.
        grow: Give new values of vocabularies ids of their own, behind the known ones.
        grow_limit: Largest number of new values of a vocabulary and day, the most frequent ones. Default: a tenth of
            the vocabulary, at least 1,000.
        progress: True shows progress on standard error, False shows none, a function receives
            :class:`~rankfall.api.Progress`.
        on_notice: Receives notices. Default: they are issued as :class:`~rankfall.RankfallWarning`.
        on_day: Receives the report of each day after the log has it.
        stop: Called while waiting; a true value ends the function. With it, Ctrl-C is left to the caller.

    Returns:
        The reports of all joined days, and the days that wait for records.

    Raises:
        ConfigError: If the spec is wrong.
        ParityError: If more requests than `parity_limit` allows are encoded or scored differently now. The log does not
            get their day.
        ValueError: If records, tables or arguments are wrong; the message says where.
    """
    for name, count in (("user_requests", user_requests), ("grow_limit", grow_limit)):
        if count is not None and count < 0:
            raise RankfallError(f"{name}: found {count}, expected a number of at least 0")
    settings = {
        "wait": milliseconds("wait", wait),
        "close": close,
        "parity": _share("parity", parity),
        "parity_limit": _share("parity_limit", parity_limit),
        "user_requests": user_requests,
        "grow": grow,
        "grow_limit": grow_limit,
    }
    if follow and close:
        raise RankfallError("found with `follow`; a day is closed at once, or when its records are complete", "close")
    if not poll > 0:
        raise RankfallError(f"poll: found {poll!r}, expected seconds above 0")
    with reported(progress) as report, stop_at_ctrl_c(stop) as stopping:
        report(Progress("opening the log"))
        from rankfall.api.preparing import read_spec
        from rankfall.online.join_log import Joiner, JoinSettings

        paths = {
            name: None if path is None else Path(path)
            for name, path in {"items": items, "users": users, "bundles": bundles}.items()
        }
        for name, path in paths.items():
            if path is not None and not path.exists():
                raise RankfallError(f"{path} does not exist", name)
        joiner = Joiner(
            Path(directory),
            Path(out),
            read_spec(spec),
            JoinSettings(**settings, **paths),  # type: ignore[arg-type]  # of their types
            on_progress=stepper(report),
            on_notice=on_notice,
        )
        with joiner.locked():
            closed: list[str] = []
            while True:
                result = joiner.close_days(on_day)
                closed += result.closed
                if not follow or stopping():
                    result = result.of_call(closed)
                    issue(result.warnings, on_notice)
                    return result
                report(
                    Progress(
                        "waiting for records",
                        status="; ".join(f"{day}: {why}" for day, why in list(result.waiting.items())[:3]),
                    )
                )
                _sleep(poll, stopping)
                if stopping():
                    return result.of_call(closed)


def _sleep(seconds: float, stopping: Callable[[], object]) -> None:
    end = time.monotonic() + seconds
    while not stopping() and (left := end - time.monotonic()) > 0:
        time.sleep(min(_NAP, left))


def milliseconds(name: str, wait: str | float | timedelta) -> int:
    """Return a duration in milliseconds."""
    if isinstance(wait, str):
        found = _DURATION.fullmatch(wait.strip())
        seconds = float(found["number"]) * _SECONDS[found["unit"]] if found else -1.0
    else:
        is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
        seconds = wait.total_seconds() if isinstance(wait, timedelta) else float(wait) if is_number else -1.0
    if not 0 <= seconds <= MAX_WAIT.total_seconds():
        raise RankfallError(
            f"{name}: found {wait!r}, expected a duration up to {MAX_WAIT.days} days, such as 1h, 90m or 30s"
        )
    return round(seconds * 1000)


def _share(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise RankfallError(f"{name}: found {value!r}, expected a share from 0 to 1")
    return float(value)


@dataclass(frozen=True, repr=False)
class CleaningResult(Tables):
    """What :func:`clean` has found.

    Attributes:
        leftovers: Files and directories that were removed or restored.
        failed: Messages about leftovers that could not be removed.
        dry_run: Whether nothing was changed.
    """

    leftovers: list[Leftover]
    failed: list[str]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """Size of all that was removed."""
        return sum(one.bytes for one in self.leftovers if one.action == "removed")

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Return one row per leftover."""
        rows = [{"path": str(one.path), "bytes": one.bytes, "action": one.action} for one in self.leftovers]
        return {"leftovers": rows}

    def to_json(self) -> dict[str, Any]:
        """Return the result as dictionaries, lists, strings and numbers."""
        return {**self.tables(), "bytes": self.bytes, "failed": self.failed, "dry_run": self.dry_run}


@checked
def clean(*directories: PathLike, dry_run: bool = False) -> CleaningResult:
    """Remove temporary files and directories of processes that have died.

    These have hidden names that end in ``.tmp``, ``.unfinished``, ``.replaced`` or ``.deleted``. Those of living
    processes, on this machine or on another one that shares the file system, are locked and stay. If a process died
    while it replaced a directory, the earlier content is restored.

    Args:
        directories: Directories to search, with all subdirectories. Default: the current directory.
        dry_run: Change nothing, and return what would be done.

    Raises:
        ValueError: If there is no such directory.
    """
    places = [Path(directory) for directory in directories or (".",)]
    for place in places:
        if not place.is_dir():
            found = "is a file" if place.exists() else "does not exist"
            raise RankfallError(f"directories: {place} {found}, expected a directory")
    done = [one for place in places for one in clean_tree(place, dry_run=dry_run)]
    leftovers = [one for one in done if isinstance(one, Leftover)]
    return CleaningResult(leftovers, [str(one) for one in done if isinstance(one, OSError)], dry_run)
