"""What functions of the API share: arguments, progress and notices, figures, optional packages."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from rankfall._errors import RankfallError, RankfallWarning
from rankfall.storage.disk import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rankfall.api.training import TrainedRun

    ProgressLike: TypeAlias = "bool | Callable[[Progress], object]"
    OnNotice: TypeAlias = Callable[[str], None]

    from rankfall.reporting.charts import Chart


PathLike: TypeAlias = str | os.PathLike[str]
RunLike: TypeAlias = "str | os.PathLike[str] | TrainedRun"
"""A run: its directory, or what :func:`rankfall.train` returns."""
Overrides: TypeAlias = Sequence[str] | Mapping[str, Any]
"""Values that replace those of a configuration: ``key=value`` strings, or a mapping by dotted keys."""
EngineName: TypeAlias = Literal["local", "ray"]


def override_words(overrides: Overrides) -> list[str]:
    """Return overrides as ``key=value`` strings.

    >>> override_words({"loss.tau": 0.5, "data.length": "all", "data.train": ["S1", "S2"], "data.path": "1"})
    ['loss.tau=0.5', 'data.length=all', 'data.train=["S1", "S2"]', 'data.path="1"']

    Raises:
        ConfigError: If it is one string, or a value cannot be written as YAML.
    """
    from rankfall._config import ConfigError

    if isinstance(overrides, str):
        raise ConfigError(f"overrides: found the string {overrides!r}, expected a list of strings or a dictionary")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    return [f"{key}={_value_text(key, value)}" for key, value in overrides.items()]


def _value_text(key: str, value: Any) -> str:
    from rankfall._config import ConfigError

    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and _is_plain(value):
        return value
    try:
        text = json.dumps(value, default=os.fspath, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError):
        raise ConfigError(f"overrides: found {value!r} for {key}, expected a value that YAML can hold") from None
    return "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    """Return a letter of JSON for YAML, which does not know surrogate pairs, and breaks lines at more letters."""
    if " " <= letter <= "~":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _is_plain(text: str) -> bool:
    """Return whether YAML reads a text as itself."""
    from rankfall._config import ConfigError, parse_yaml

    try:
        return bool(parse_yaml(text, "") == text)
    except ConfigError:
        return False


def run_directory(run: RunLike) -> Path:
    """Return the directory of a run."""
    return Path(run) if isinstance(run, str | os.PathLike) else run.directory


def optional_path(path: PathLike | None) -> Path | None:
    """Return a path, or None."""
    return None if path is None else Path(path)


_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Progress:
    """How far some work is.

    Attributes:
        step: What is being done.
        done: Finished units of the step.
        total: All units of the step, None if the number is not known.
        status: Figures of the work so far, such as the loss and the last validation.
    """

    step: str
    done: float = 0.0
    total: float | None = None
    status: str = ""


class Display:
    """Shows :class:`Progress` on standard error while its block runs, with notes above it.

    Args:
        shown: Whether progress is shown; notes always are.
    """

    def __init__(self, *, shown: bool = True) -> None:
        from rankfall._progress import progress

        self._bar = progress()
        self._shown = shown
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._shown:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Show how far the work is."""
        if not self._shown:
            return
        if self._task is None:
            self._task = self._bar.add_task(progress.step, total=progress.total, status=progress.status)
        self._bar.update(
            self._task,
            description=progress.step,
            completed=progress.done,
            total=progress.total,
            status=progress.status,
        )

    def note(self, text: str) -> None:
        """Print a note above the progress, where it remains."""
        self._bar.console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def reported(progress: ProgressLike) -> Iterator[Callable[[Progress], object]]:
    """Yield a function that passes :class:`Progress` on as the caller of the API asks.

    Args:
        progress: True shows it on standard error, False shows nothing, a function receives it.
    """
    if progress is True:
        with Display() as display:
            yield display.show
    else:
        yield progress or _ignore


def warn(text: str) -> None:
    """Issue a :class:`RankfallWarning` at the line of the caller's code that called the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RankfallWarning, stacklevel=level)


def issue(texts: Iterable[str], on_notice: OnNotice) -> None:
    """Issue the warnings of a result, unless the caller receives notices itself and reads them from the result."""
    if on_notice is warn:
        for text in texts:
            warn(text)


def stepper(report: Callable[[Progress], object]) -> Callable[[str, float, float | None], None]:
    """Return a function that receives a step, the amount done and the total, and reports them."""

    def show(step: str, done: float, total: float | None) -> None:
        report(Progress(step, done, total))

    return show


def counter(report: Callable[[Progress], object], step: str) -> Callable[[int, int], None]:
    """Return a function that receives the number of units since the last call and of all, and reports their sum."""
    done = 0

    def add(count: int, total: int) -> None:
        nonlocal done
        done += count
        report(Progress(step, done, total))

    return add


def _ignore(progress: Progress) -> None:
    pass


@contextmanager
def requires_extra(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import inside the block into an error that names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise RankfallError(
            f"{what} needs {error.name}, which is not installed: pip install 'rankfall[{extra}]'"
        ) from None


def write_figures(plots: Mapping[str, Chart | None], out: Path, on_notice: OnNotice) -> list[Path]:
    """Write figures as PNG and SVG; without the library for PNG, say how to install it and write SVG only."""
    from rankfall.reporting.charts import SVG, MissingExtraError, save

    make_directory(out)
    drawn = {name: plot for name, plot in plots.items() if plot is not None}
    if not drawn:
        return []
    try:
        return save(drawn, out)
    except MissingExtraError as error:
        on_notice(str(error))
        return save(drawn, out, formats=[SVG])
