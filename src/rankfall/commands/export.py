"""``rankfall export``: write a run as a bundle that answers requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from rankfall import api
from rankfall.commands.terminal import print_json, print_message, print_result, table
from rankfall.commands.verb import Call, verb

if TYPE_CHECKING:
    from rankfall.api import ExportedBundle


@verb(api.export, quotas={"flag": "quota", "metavar": "STAGE=N"}, display={"metavar": "COLUMN"})
def export(call: Call, as_json: bool = False) -> None:
    """Export a trained cascade as a bundle that can be served.

    The bundle holds ONNX graphs of the best weights, an index of the items and their features. Before it is
    published, the bundle ranks impressions of the run's test days. Its scores and the items that every stage keeps
    are compared with PyTorch's. A difference, or an index with too low a recall, is an error.

    The recall of the bundle over all its items is measured on up to 1,024 of these impressions, by asking the bundle.
    It is lower than the recall of the run if the run was evaluated on lists that are shorter than the catalogue.

    Options:
        quotas: Number of items that a stage keeps in the bundle; repeatable.
        display: Attribute of items to show on the service's page: a column of --items, or a feature of items;
            repeatable.

    Examples:
        rankfall export runs/lcron --out bundle
        rankfall export runs/lcron --items new-items.parquet --recall 0.995 --out bundle
        rankfall export runs/lcron --items items.parquet --display title --display category --out bundle
        rankfall export runs/lcron --quota retrieval=120 --quota ranking=20 --out bundle
        rankfall export runs/lcron --stage ranking --out ranking-alone
    """
    exported: ExportedBundle = call()
    out = call["out"]
    for note in exported.notes:
        print_message(f"note: {note}")
    if as_json:
        print_json(exported.to_json())
        return
    _show(exported.manifest, out)
    print_message(f"next: rankfall serve {out}")


def _show(manifest: dict[str, Any], out: Path) -> None:
    """Print the stages of a bundle, the checks, and the measured recall."""
    print_result(f"{out}: {manifest['items']['count']:,} items, {_megabytes(manifest, '')} MB")
    print_result(_table(manifest))
    for line in _checked(manifest["checks"], has_index="index" in manifest["stages"][0]):
        print_result(line)
    if measured := manifest["measured"]:
        print_result(_measured_table(measured))
        for line in _measured_lines(measured):
            print_result(line)


def _table(manifest: dict[str, Any]) -> Table:
    rows = [
        (
            stage["name"],
            f"{stage['quota']:,}",
            _served_by(stage),
            f"{stage['index']['recall']:.4f}" if "index" in stage else "",
            _megabytes(manifest, f"stages/{stage['name']}/"),
        )
        for stage in manifest["stages"]
    ]
    return table([Column("stage", style="cyan"), ">keeps", "served by", ">index recall", ">MB"], rows)


def _measured_table(measured: dict[str, Any]) -> Table:
    names = (">items", ">keeps", ">kept", ">95 % interval", ">chance", ">lost", ">of losses", ">left")
    rows = [
        (
            stage["stage"],
            f"{stage['entered']:,.0f}",
            f"{stage['quota']:,}",
            _share(stage["kept"]["value"]),
            _interval(stage["kept"]),
            _share(stage["chance"]),
            _share(stage["lost"]["value"]),
            _share(stage["loss_share"]["value"]),
            _share(stage["survived"]["value"]),
        )
        for stage in measured["stages"]
    ]
    return table([Column("stage", style="cyan"), *names], rows, title="relevant items over all exported items")


def _measured_lines(measured: dict[str, Any]) -> list[str]:
    """Return sentences about the recall of the bundle, beside that of the run."""
    recall = measured["joint_recall"]
    lines = [
        "kept: of the relevant items that arrived; lost and left: of all relevant items",
        f"served: joint recall {_share(recall['value'])} {_interval(recall)} over {measured['items']:,} items, on "
        f"{measured['requests']:,} requests with relevant items",
    ]
    if run := measured["run"]:
        length = "all items" if run["list_length"] is None else f"lists of {run['list_length']:,.0f} items"
        days = {"test": "test", "valid": "validation"}[run["split"]]
        lines.append(f"run: joint recall {_share(run['joint_recall'])} on {length} of the {days} days")
    if missing := measured["not_exported"]:
        count = f"{missing:,} of {measured['relevant']:,} relevant items"
        lines.append(f"{count} are not exported; they count as lost by the first stage")
    return lines


def _interval(estimate: dict[str, Any]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "" if low is None else f"[{_share(low)}, {_share(high)}]"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _served_by(stage: dict[str, Any]) -> str:
    if "index" not in stage:
        return f"ONNX {stage['model']['kind']} model"
    index = stage["index"]
    if index["kind"] == "exact":
        return "ONNX request tower, exact index"
    return f"ONNX request tower, index that searches {index['nprobe']:,} of {index['lists']:,} lists"


def _megabytes(manifest: dict[str, Any], folder: str) -> str:
    size = sum(about["bytes"] for name, about in manifest["files"].items() if name.startswith(folder))
    return f"{size / 1e6:,.1f}"


def _checked(checks: dict[str, Any], *, has_index: bool) -> list[str]:
    """Return sentences about the comparison with PyTorch."""
    same, asked = checks["same_with_candidates"], checks["requests"]
    tied = f", the other {asked - same:,} differ in items with equal scores" if same < asked else ""
    lines = [
        f"{checks['scores']:,} scores differ from PyTorch's by at most {checks['largest_difference']:.1g}",
        f"{same:,} of {asked:,} impressions: every stage keeps the same candidates as PyTorch{tied}",
    ]
    if checks["open_requests"]:
        found = f"; the index finds {checks['found_by_index']:.2%} of the exact top items" if has_index else ""
        same, asked = checks["same_without"], checks["open_requests"]
        lines.append(f"{same:,} of {asked:,} requests over all items: same items as PyTorch{found}")
    return lines
