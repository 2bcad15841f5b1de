"""A comparison as one HTML file that needs nothing else: the table, what it means, and two pictures."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from rankfall.evaluation.table import CAPTION, Cell, rows, short

if TYPE_CHECKING:
    from collections.abc import Sequence

JOINT = "joint_recall"

_WIDTH, _NAMES, _ROW = 720, 170, 30  # of pictures: all, what is left for names, and a line
_STYLE = """
:root { --ink: #1c2430; --soft: #667085; --line: #d9dee7; --page: #ffffff; --band: #f5f7fa; --best: #0b6bcb;
  --kept: #2f7fd6; --lost1: #f2b36b; --lost2: #e07a5f; --lost3: #9b5de5; --lost4: #8a8f98; --chance: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #9aa4b2; --line: #344054; --page: #14181f;
  --band: #1d232c; --best: #6cb2ff; --kept: #4b95e6; --chance: #ff7b6b; } }
* { box-sizing: border-box; }
body { font: 15px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 60rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { max-width: 44rem; } .soft, caption { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { border-bottom: 2px solid var(--line); }
tr.chance td { color: var(--soft); } td.best { color: var(--best); font-weight: 650; }
caption { caption-side: bottom; text-align: left; padding-top: .5rem; font-size: .88rem; }
svg { display: block; width: 100%; height: auto; max-width: 46rem; } svg text { fill: var(--ink); font-size: 13px; }
svg text.soft { fill: var(--soft); font-size: 12px; }
.legend span { display: inline-block; margin-right: 1.2rem; font-size: .9rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }
pre { background: var(--band); padding: .8rem 1rem; border-radius: 6px; overflow-x: auto; }
"""


def comparison_report(result: dict[str, Any], *, title: str, about: str = "", config: str = "") -> str:
    """The page of a comparison (``comparison.json``); `about` says in a sentence what was compared."""
    main = _main_metric(result)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(about)}</p>' if about else "",
        f"<p>{escape(_finding(result, main))}</p>",
        _table(result),
        f"<h2>{escape(main)}, with 95 % confidence intervals</h2>",
        _intervals(result, main),
        _attribution(result),
        "<h2>Against the best</h2>",
        _tests(result, main),
        f"<h2>Configuration</h2><pre>{escape(config)}</pre>" if config else "",
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _main_metric(result: dict[str, Any]) -> str:
    metrics: list[str] = result["metrics"]
    return JOINT if JOINT in metrics else metrics[0]


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
        text += f" Significantly worse: {', '.join(worse)}."
    if close:
        text += f" Not significantly worse: {', '.join(close)}."
    return text


def _table(result: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(metric)}</th>" for metric in result["metrics"])
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(map(_table_cell, cells))}</tr>" for name, cells in rows(result)
    )
    body += "".join(f"<tr><td>{escape(name)}</td><td>failed</td></tr>" for name in result["incomplete"])
    if result["methods"]:
        figures = result["methods"][0]["metrics"].values()
        chance = "".join(f"<td>{short(one['chance'])}</td>" for one in figures)
        body += f'<tr class="chance"><td>chance</td>{chance}</tr>'
    caption = f"Bold: best. {CAPTION}"
    return (
        f'<div class="scroll"><table><thead><tr><th>method</th>{head}</tr></thead><tbody>{body}</tbody>'
        f"<caption>{escape(caption)}</caption></table></div>"
    )


def _table_cell(cell: Cell) -> str:
    mark = " *" if cell.close else ""
    return f"<td{' class=best' if cell.best else ''}>{escape(cell.number)}{mark}</td>"


# --- pictures -----------------------------------------------------------------------------------------------------


def _intervals(result: dict[str, Any], metric: str) -> str:
    """A dot and an interval for each method, on an axis that shows their differences."""
    figures = [(method["name"], method["metrics"][metric]) for method in result["methods"]]
    if not figures:
        return ""
    low, high = min(one["low"] for _, one in figures), max(one["high"] for _, one in figures)
    edge = 0.08 * (high - low) or 0.01
    scale = _Scale(low - edge, high + edge)
    height = _ROW * len(figures) + 34
    lines = []
    for number, (name, one) in enumerate(figures):
        y = _ROW * number + _ROW / 2
        lines.append(f'<text x="{_NAMES - 12}" y="{y + 4:.0f}" text-anchor="end">{escape(name)}</text>')
        lines.append(
            f'<line x1="{scale(one["low"]):.1f}" x2="{scale(one["high"]):.1f}" y1="{y}" y2="{y}" '
            'stroke="var(--kept)" stroke-width="2.5" stroke-linecap="round"/>'
            f'<circle cx="{scale(one["mean"]):.1f}" cy="{y}" r="5" fill="var(--kept)"/>'
        )
    bottom = _ROW * len(figures) + 6
    for value in scale.ticks():
        x = scale(value)
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="var(--line)" stroke-width=".7"/>')
        lines.append(f'<text class="soft" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:.3f}</text>')
    return _svg(height, lines, f"{metric} of each method")


def _attribution(result: dict[str, Any]) -> str:
    """Where the relevant items end: in the result, or lost at a stage."""
    stages = [metric.removesuffix("/lost") for metric in result["metrics"] if metric.endswith("/lost")]
    if not stages or not result["methods"]:
        return ""
    names = [(method["name"], {k: v["mean"] for k, v in method["metrics"].items()}) for method in result["methods"]]
    names.append(("chance", {k: v["chance"] for k, v in result["methods"][0]["metrics"].items()}))
    colors = ["var(--kept)", *(f"var(--lost{1 + stage % 4})" for stage in range(len(stages)))]
    scale = _Scale(0.0, 1.0)
    lines = []
    for number, (name, values) in enumerate(names):
        y, left = _ROW * number + 4, 0.0
        lines.append(f'<text x="{_NAMES - 12}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        for share, color in zip([values[JOINT], *(values[f"{stage}/lost"] for stage in stages)], colors, strict=True):
            start, stop = scale(left), scale(left + share)
            width = max(0.0, stop - start)
            lines.append(f'<rect x="{start:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 8}" fill="{color}"/>')
            if stop - start > 40:
                lines.append(
                    f'<text x="{(start + stop) / 2:.1f}" y="{y + 16}" text-anchor="middle" '
                    f'style="fill:#10151c">{short(share)}</text>'
                )
            left += share
    labels = ["in the result", *(f"lost at {stage}" for stage in stages)]
    legend = "".join(
        f'<span><i style="background:{color}"></i>{escape(label)}</span>'
        for label, color in zip(labels, colors, strict=True)
    )
    return (
        "<h2>Where the relevant items end</h2>"
        f'<div class="legend">{legend}</div>{_svg(_ROW * len(names), lines, "what each stage loses")}'
    )


def _tests(result: dict[str, Any], metric: str) -> str:
    body = ""
    for test in result["tests"]:
        if test["metric"] != metric or test["method"] == test["best"]:
            continue
        body += (
            f"<tr><td>{escape(test['method'])}</td><td>{test['difference']:+.4f}</td>"
            f"<td>[{test['low']:+.4f}, {test['high']:+.4f}]</td><td>{test['adjusted_p_value']:.2g}</td></tr>"
        )
    if not body:
        return '<p class="soft">There is nothing to compare it with.</p>'
    head = f"<th>method</th><th>{escape(metric)}, difference</th><th>95 % interval</th><th>p (Holm)</th>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


class _Scale:
    """From values to pixels."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, value: float) -> float:
        return _NAMES + (value - self.low) / (self.high - self.low) * (_WIDTH - _NAMES - 30)

    def ticks(self) -> list[float]:
        """Round values on the axis, about five."""
        rough = (self.high - self.low) / 5
        power = 10 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        return [number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _svg(height: float, lines: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(lines)}</svg>'
    )
