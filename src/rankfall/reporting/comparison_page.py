"""A run or a comparison as one HTML file that needs nothing else: what was done, what came out, and pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall._files import write_file
from rankfall.reporting import html as page
from rankfall.reporting.comparison_table import caption, repeats, rows, short, unit, why_incomplete
from rankfall.reporting.html import Bar, Cell
from rankfall.reporting.run_page import run_report
from rankfall.reporting.stream_page import STREAM, STREAM_CONFIG, learned, stream_sections
from rankfall.training.cascade_metrics import JOINT
from rankfall.training.run_directory import CONFIG, REPORT, read_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SMALLEST_P = 1e-99  # that is told apart; further out the distribution is not the one of the test
COMPARISON, COMPARISON_CONFIG = "comparison.json", "comparison.yaml"


def report(path: Path) -> str:
    """The page of a run's directory, or of a comparison's or a stream's."""
    if (path / COMPARISON).is_file():
        return comparison_report(read_json(path / COMPARISON), title=f"Comparison {path.name}", **_command(path))
    if (path / STREAM).is_file():
        result = read_json(path / STREAM)
        sections = stream_sections(result)
        return comparison_report(
            result, title=f"Stream {path.name}", about=learned(result), sections=sections, **_command(path)
        )
    if (path / CONFIG).is_file():
        return run_report(path)
    raise ValueError(
        f"{path} is neither a run nor a comparison nor a stream: it has no {CONFIG} (from 'rankfall train'), no "
        f"{COMPARISON} (from 'rankfall compare') and no {STREAM} (from 'rankfall stream')"
    )


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write the page of a run or a comparison, by default into its directory; returns the file."""
    out = out or path / REPORT
    if out.is_file() and page.GENERATOR not in out.read_text(encoding="utf-8", errors="replace"):
        raise ValueError(f"out: {out} exists and is no report; name another file")
    content = report(path)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, content)
    return out


def _command(path: Path) -> dict[str, str]:
    """What was compared, and how to do it again."""
    commands = {
        COMPARISON_CONFIG: f"rankfall compare {path / COMPARISON_CONFIG} --out {path}",
        STREAM_CONFIG: f"rankfall stream {path / STREAM_CONFIG} --out {path} --force",
        CONFIG: "",
    }
    for name, verb in commands.items():
        if (path / name).is_file():
            return {"config": (path / name).read_text(encoding="utf-8"), "command": verb}
    return {}


# --- a comparison -------------------------------------------------------------------------------------------------


def comparison_report(
    result: dict[str, Any],
    *,
    title: str,
    about: str = "",
    sections: Sequence[str] = (),
    config: str = "",
    command: str = "",
) -> str:
    """The page of a comparison (``comparison.json``).

    `about` says in a sentence what was compared; `sections` stand before the details.
    """
    main = _main_metric(result)
    return page.page(
        title,
        page.paragraph(about, soft=True),
        page.paragraph(_finding(result, main)),
        _comparison_table(result),
        *sections,
        page.section(f"{main}, with 95 % confidence intervals", _intervals(result, main)),
        page.section("Where the relevant items end", _attribution(result)),
        _tests(result, main),
        page.section("Settings that validation chose", _settings(result)),
        page.section("What failed", _failures(result)),
        page.section(
            "Again",
            page.code(command) if command else "",
            page.folded("configuration", page.code(config)) if config else "",
        ),
    )


def _main_metric(result: dict[str, Any]) -> str:
    metrics: list[str] = result["metrics"]
    chosen: str = result.get("metric", JOINT)
    return chosen if chosen in metrics else metrics[0]


def _finding(result: dict[str, Any], metric: str) -> str:
    """The outcome in words, with no more certainty than the tests have."""
    tests = {test["method"]: test for test in result["tests"] if test["metric"] == metric}
    if not tests:
        return "No method finished."
    best = next(iter(tests.values()))["best"]
    figures = {method["name"]: method["metrics"][metric] for method in result["methods"]}
    worse = [name for name, test in tests.items() if test["significantly_worse"]]
    close = [name for name in tests if name not in (best, *worse)]
    reached, chance = (short(figures[best][key]) for key in ("mean", "chance"))
    text = f"{best} has the best {metric}, {reached}, where chance is {chance}."
    if worse:
        text += f" Significantly worse: {_listed(worse)}."
    if close:
        text += f" Not significantly worse: {_listed(close)}."
    failed = [name for name in result["incomplete"] if any(one["method"] == name for one in result["failed"])]
    if failed:
        text += f" Failed: {_listed(failed)}."
    return text


def _listed(names: Sequence[str]) -> str:
    """Names, which may have commas of their own."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _comparison_table(result: dict[str, Any]) -> str:
    body: list[list[str | Cell]] = []
    for name, cells in rows(result):
        body.append([name, *map(page.mean, cells)])
    body += [[name, why_incomplete(result, name)] for name in result["incomplete"]]
    soft = []
    if result["methods"]:
        soft.append(["chance", *(short(one["chance"]) for one in result["methods"][0]["metrics"].values())])
    runs = " x ".join(some for some in reversed(repeats(result)) if not some.startswith("1 "))
    spread = f" ± standard deviation over {runs}" if runs else ""
    below = f"Mean over {unit(result)}{spread}. Bold: best. {caption(result)}"
    return page.table(["method", *result["metrics"]], body, soft=soft, caption=below, staged=True)


def _intervals(result: dict[str, Any], metric: str) -> str:
    figures = [(method["name"], method["metrics"][metric]) for method in result["methods"]]
    if not figures or unit(result) == "days":  # whose spread is that of learning
        return ""
    points = [(name, one["low"], one["mean"], one["high"]) for name, one in figures]
    label = f"{metric} of each method: " + ", ".join(f"{name} {short(one['mean'])}" for name, one in figures)
    return page.dots(points, label=label)


def _attribution(result: dict[str, Any]) -> str:
    """Where the relevant items end: in the result, or lost at a stage."""
    stages = [metric.removesuffix("/lost") for metric in result["metrics"] if metric.endswith("/lost")]
    if not stages or not result["methods"]:
        return ""
    shares = [(method["name"], {k: v["mean"] for k, v in method["metrics"].items()}) for method in result["methods"]]
    shares.append(("chance", {k: v["chance"] for k, v in result["methods"][0]["metrics"].items()}))
    drawn = []
    for name, values in shares:
        pieces = [values[JOINT], *(values[f"{stage}/lost"] for stage in stages)]
        said = ", ".join(map(short, pieces))
        drawn.append(Bar(f"{name}: {said}", [(share, number) for number, share in enumerate(pieces)]))
    legend: dict[str, int | None] = {"in the result": 0}
    legend |= {f"lost at {stage}": number for number, stage in enumerate(stages, 1)}
    label = f"Shares of the relevant items, {', '.join(legend)}: " + "; ".join(bar.name for bar in drawn)
    return page.bars(drawn, legend, label=label)


def _tests(result: dict[str, Any], metric: str) -> str:
    """How far the others are from the best."""
    tests = [test for test in result["tests"] if test["metric"] == metric]
    body = [
        [
            test["method"],
            f"{test['difference']:+z.4f}",
            f"[{test['low']:+z.4f}, {test['high']:+z.4f}]",
            _p_value(test["adjusted_p_value"]),
        ]
        for test in tests
        if test["method"] != test["best"]
    ]
    if not body:
        return ""
    head = ["method", f"{metric}, difference", "95 % interval, two-sided", "p, one-sided (Holm)"]
    return page.section(f"Against the best, {tests[0]['best']}", page.table(head, body))


def _p_value(value: float) -> str:
    return f"{value:.2g}" if value >= SMALLEST_P else f"<{SMALLEST_P:.0e}"


def _settings(result: dict[str, Any]) -> str:
    """What each method was tuned to, fold by fold, and what that reached on validation; nothing if none was."""
    if not any(settings for method in result["methods"] for settings in method.get("settings", {}).values()):
        return ""
    body: list[list[str | Cell]] = []
    for method in result["methods"]:
        for fold, settings in method.get("settings", {}).items():
            reached = [
                run["validation"] for run in method["runs"] if run["fold"] == fold and run["validation"] is not None
            ]
            name = method["name"] if len(result["folds"]) == 1 else f"{method['name']}, {fold}"
            words = Cell(page.flow(settings) or "nothing to choose", "words")
            body.append([name, words, page.figure(sum(reached) / len(reached) if reached else None)])
    return page.table(["method", "settings", "validation"], body) if body else ""


def _failures(result: dict[str, Any]) -> str:
    body = [[one["method"], Cell(f"{one['run']}: {one['message']}", "words")] for one in result["failed"]]
    return page.table(["method", "run"], body) if body else ""
