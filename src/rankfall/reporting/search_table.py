"""A search as a table for the terminal, and its figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rankfall.reporting.figures import SearchHistory
    from rankfall.studies.results import SearchResult, TrialResult

_STATES = ("complete", "pruned", "running", "failed")


def terminal_search(result: SearchResult) -> RenderableType:
    """Return the trials: complete ones, the best first, then those that were pruned or failed."""
    from rich.text import Text

    from rankfall.reporting.folding import FoldedTable, plain_table

    table = plain_table(gap=2)
    keys = list(result.search)
    for column in ("trial", "state", result.metric, *keys):
        table.add_column(column)
    for trial in _ordered(result):
        is_best = result.best is not None and trial.trial == result.best.trial
        value = trial_value(trial) + (" <" if is_best else "")
        settings = [setting_text(trial.settings.get(key)) for key in keys]
        style = "bold" if is_best else "" if trial.state == "complete" else "red" if trial.error else "dim"
        table.add_row(*(Text(cell) for cell in (str(trial.trial), trial.state, value, *settings)), style=style)
    return FoldedTable(table)


def search_figure(result: SearchResult, name: str) -> SearchHistory | None:
    """Return the figure of a search, or None if no trial has a value."""
    from rankfall.reporting.figures import SearchHistory

    if all(trial.value is None for trial in result.trials):
        return None
    count, pruned = len(result.trials), sum(trial.state == "pruned" for trial in result.trials)
    return SearchHistory(
        rows=[trial.to_json() for trial in result.trials],
        title=f"Search in {name}",
        subtitle=f"{count} trial{'s' * (count != 1)}, {pruned} of them pruned",
        metric=f"validation {result.metric}",
        higher_is_better=result.higher_is_better,
        logarithmic=[key for key, values in result.search.items() if isinstance(values, dict) and values.get("log")],
    )


def trial_value(trial: TrialResult) -> str:
    """Return the value of a trial as text, empty if it has none."""
    return "" if trial.value is None else f"{trial.value:.4f}"


def settings_text(settings: dict[str, Any]) -> str:
    """Return settings as ``key=value`` words."""
    return " ".join(f"{key}={setting_text(value)}" for key, value in settings.items())


def setting_text(value: Any) -> str:
    """Return a setting as YAML, numbers with four digits."""
    from rankfall.reporting.page import flow

    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else "" if value is None else flow(value).removesuffix("\n...")


def _ordered(result: SearchResult) -> list[TrialResult]:
    sign = -1 if result.higher_is_better else 1
    return sorted(result.trials, key=lambda trial: (_STATES.index(trial.state), sign * (trial.value or 0.0)))
