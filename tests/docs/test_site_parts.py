"""Parts of the documentation site: markup of doc strings, formulas, rows of tables, navigation, links of methods."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from docs_site import blocks, config_keys, doc_strings, formulas, method_links, methods, navigation, notebooks, tables
from rankfall import register
from support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

PAGE = """\
# Title

| method | value |
|---|---:|
| first | 1 |

## Second part

Text.

```text
## no heading
```

| method | value |
|---|---:|
| **best** \\* | `a` \\| b |
| | [link](other.md#there) |

## Third part
"""


def test_formulas_and_references_of_doc_strings_become_markdown() -> None:
    text = "Value of\n\n.. math:: a_1\n          + b\n\nwith :math:`c` and :func:`~rankfall.ops.topk`::\n\n    x = 1\n"
    converted = doc_strings.to_markdown(text)
    assert "$$\na_1\n+ b\n$$\n" in converted
    assert "with $c$ and `topk`:\n" in converted


def test_a_command_unknown_to_the_converter_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\\unknowncommand is not a command"):
        formulas.mathml(r"a + \unknowncommand", "inline")


def test_formulas_of_html_keep_their_signs() -> None:
    drawn = formulas.with_mathml('<p><span class="arithmatex">\\(a &lt; b\\)</span></p>')
    assert drawn.startswith("<p><math")
    assert "&lt;" in drawn or "&#x0003C;" in drawn


def test_tables_of_a_section() -> None:
    part = tables.section(PAGE, "second-part")
    (found,) = tables.tables(part)
    assert found.header == ["method", "value"]
    assert found.rows == [[r"**best** \*", r"`a` \| b"], ["", "[link](other.md#there)"]]
    with pytest.raises(ValueError, match="no heading has the anchor 'fourth-part'"):
        tables.section(PAGE, "fourth-part")


def test_every_row_of_measured_results_exists() -> None:
    """The pages of methods raise an error otherwise; this test names the row."""
    for method, sources in methods.MEASURED["rows"].items():
        assert method in {f"{one.kind}.{one.name}" for one in methods.all_methods()}
        for source, labels in sources.items():
            path, _, anchor = source.partition("#")
            text = (ROOT / "docs" / path).read_text(encoding="utf-8")
            rows = [row for one in tables.tables(tables.section(text, anchor)) for row in one.rows]
            assert set(labels) <= {methods.label(row[0]) for row in rows}, (method, source)


def test_links_of_moved_rows_lead_to_the_same_page() -> None:
    text = "[a](metrics.md#x) [b](#here) [c](../how-to/train.md)"
    moved = methods.moved(text, "reference/results.md#y", "methods/losses/z.md")
    assert moved == "[a](../../reference/metrics.md#x) [b](../../reference/results.md#here) [c](../../how-to/train.md)"


def test_directories_of_the_navigation_hold_the_pages_that_nobody_names() -> None:
    nav: list[navigation.Entry] = [{"A": ["a/first.md", "a/"]}, {"B": "a/b/"}, {"Empty": ["c/"]}, "/"]
    pages = ["a/other.md", "a/first.md", "a/b/deep.md", "top.md"]
    assert navigation.expanded(nav, pages) == [{"A": ["a/first.md", "a/other.md"]}, {"B": ["a/b/deep.md"]}, "top.md"]


def test_names_of_methods_become_links() -> None:
    text = "<p><code>lcron</code> <a href='x'><code>lcron</code></a> <code>arf</code></p>"
    linked = method_links.linked(text, "index.md")
    assert linked.count('<a href="methods/objectives/lcron/"><code>lcron</code></a>') == 1
    assert "<code>arf</code></p>" in linked  # a loss and an objective have this name


def test_reasons_are_found_before_blocks() -> None:
    page = ROOT / "docs" / "index.md"
    reasons = {block.reason for block in blocks.blocks(page, "sh")}
    assert "the tutorial on LETOR files runs it" in reasons
    assert re.search(r"\| docs/index\.md:\d+ \|", blocks.executed_page())


def test_a_notebook_becomes_a_page(tmp_path: Path) -> None:
    output = {"output_type": "execute_result", "data": {"text/plain": ["2"]}, "metadata": {}, "execution_count": 1}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text."], "metadata": {}},
        {"cell_type": "code", "source": ["1 + 1"], "outputs": [output], "metadata": {}, "execution_count": 1},
    ]
    path = tmp_path / "sum.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8")
    text = notebooks.notebook_page(path)
    assert text.startswith("# Title\nText.\n\n```python\n1 + 1\n```\n\n```text\n2\n```\n")
    assert "[notebook](sum.ipynb)" in text


def test_every_key_of_configurations_is_described() -> None:
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", config_keys.keys_page(), re.MULTILINE)
    assert len(rows) > 120
    assert [key for key, meaning in rows if not meaning.strip()] == []


def test_a_newly_registered_loss_gets_a_page() -> None:
    def cubic_loss(scores: Tensor, labels: Tensor, *, mask: Tensor | None = None, power: float = 3.0) -> Tensor:
        r"""Power of the error (Holm 1979, eq. 3).

        .. math:: |s - y|^p

        Args:
            scores: Scores.
            labels: Labels.
            mask: Real items.
            power: Exponent :math:`p`.
        """
        return (scores - labels).abs().pow(power).mean()

    register.loss("cubic_loss")(cubic_loss)
    try:
        methods.all_methods.cache_clear()
        (method,) = [one for one in methods.all_methods() if one.name == "cubic_loss"]
        page = methods.method_page(method)
    finally:
        register.unregister("loss", "cubic_loss")
        methods.all_methods.cache_clear()
    assert method.path == "methods/losses/cubic_loss.md"
    for part in ("# cubic_loss", "Power of the error.", "Multiple Test Procedure", "eq. 3", "$$\n|s - y|^p\n$$"):
        assert part in page
    assert "| `power` | `3.0` | Exponent $p$. |" in page
    assert "loss: {name: cubic_loss}" in page
