"""The diagnosis of a trained run: what is written, printed and drawn, and how it fits the evaluation."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import yaml
from rich.console import Console

import rankfall as rf
from rankfall.data.impressions.log import ImpressionLog
from rankfall.reporting import html
from rankfall.reporting.diagnosis import diagnosis_blocks
from rankfall.reporting.terminal import show
from rankfall.studies.diagnosis.diagnose import diagnose, diagnose_run
from rankfall.studies.diagnosis.diagnosis_result import DIAGNOSIS, Diagnosis
from rankfall.studies.evaluate import collect_scores
from rankfall.training.cascade_metrics import ScoredBatch
from rankfall.training.config.cascade_config import CascadeConfig, validate_cascade
from support.cascades import content
from support.command_line import run
from support.logs import DAYS, ITEMS, SPEC, item_columns, random_log, spec
from support.planted import config_for, plant
from support.sealing import edit_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.data.impressions.loader import Impressions
    from support.logs import Columns

AUTHORS = 4
USER = {"id": {"kind": "categorical", "num_buckets": 30, "column": "user"}, "taste": {"kind": "dense", "size": 3}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    described = spec(features=SPEC["features"] | {"user": USER})
    items = {**item_columns(), "item.author": [item % AUTHORS + 2 for item in range(ITEMS)]}

    def write_authors(days: dict[str, Columns]) -> None:
        for columns in days.values():
            columns["item.author"] = [[item % AUTHORS + 2 for item in items] for items in columns["item"]]

    path = tmp_path_factory.mktemp("diagnose") / "log"
    return random_log(path, description=described, impressions=150, change=write_authors, items=items).path


@pytest.fixture(scope="module")
def trained(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("diagnose")
    (directory / "config.yaml").write_text(yaml.safe_dump(content(log, training={"epochs": 1})))
    assert run("train", directory / "config.yaml", "--out", directory / "run") == 0
    return directory / "run"


@pytest.fixture(scope="module")
def diagnosis(trained: Path) -> Diagnosis:
    return diagnose_run(trained)


# --- the command --------------------------------------------------------------------------------------------------


def test_the_command_prints_findings_and_writes_a_file_per_split(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", trained, "--split", "valid", "--diagnose") == 0
    printed = capsys.readouterr().out
    assert "Diagnosis: joint recall" in printed
    assert "1. " in printed
    written = Diagnosis.load(trained / "diagnosis-valid.json")
    assert written.split == "valid"
    assert " ".join(written.findings[0].text.split()[:4]) in printed
    assert not (trained / DIAGNOSIS).exists()


def test_the_diagnosis_fits_the_evaluation(
    trained: Path, diagnosis: Diagnosis, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("evaluate", trained, "--diagnose", "--json") == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["diagnosis"] == diagnosis.to_json()  # draws are seeded
    assert Diagnosis.load(trained / DIAGNOSIS).to_json() == diagnosis.to_json()
    assert diagnosis.joint_recall.to_json() == pytest.approx(evaluated["funnel"][-1]["survived"], abs=1e-6)
    for stage, figures in zip(diagnosis.stages, evaluated["funnel"], strict=True):
        assert stage.lost.to_json() == pytest.approx(figures["lost"], abs=1e-6)
        assert stage.arrived.value - stage.lost.value == pytest.approx(figures["survived"]["value"], abs=1e-6)


def test_other_measurements_do_not_touch_the_run(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()}
    assert run("evaluate", copy, "stages.0.quota=4", "--diagnose") == 0
    assert {path.name: path.read_bytes() for path in copy.iterdir() if path.is_file()} == before
    assert run("evaluate", copy, "stages.0.quota=4", "--diagnose", "--out", tmp_path / "other") == 0
    assert Diagnosis.load(tmp_path / "other" / DIAGNOSIS).stages[0].quota == 4
    page = (tmp_path / "other" / "report.html").read_text()  # of the evaluation with 4 items, not of the run
    assert "<h1>Run run, stages.0.quota=4</h1>" in page
    assert "keeps 4" in page
    assert "<h2>Diagnosis</h2>" in page
    assert f"rankfall plan {copy} stages.0.quota=4" in page


def test_rankers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config_for(plant(tmp_path / "planted"))))
    assert run("train", tmp_path / "config.yaml", "--out", tmp_path / "run") == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "run", "--diagnose") == 1
    assert "is the run of a ranker, expected the run of a cascade" in capsys.readouterr().err
    assert not (tmp_path / "run" / "evaluation.json").exists()


# --- contents -----------------------------------------------------------------------------------------------------


def test_items_outside_the_lists_are_the_first_finding(trained: Path, log: Path, tmp_path: Path) -> None:
    """Lists of 11 of 40 items, without random negatives; those of the log itself are left out of its spec."""
    assert not any(one.kind == "negatives" for one in diagnose_run(trained).findings)
    content_of = json.loads((log / "manifest.json").read_text())
    shutil.copytree(log, tmp_path / "log")
    edit_manifest(tmp_path / "log" / "manifest.json", spec={**content_of["spec"], "negatives": 0})
    without = str(tmp_path / "log")
    first, *others = diagnose_run(trained, data=without).findings
    assert "retrieval was never trained on items outside the lists: a training list holds 11 of the 40" in first.text
    assert "data.negatives=100" in first.text
    assert (first.kind, first.stage, first.at_stake) == ("negatives", "retrieval", None)
    assert not any(one.kind == "negatives" for one in others)
    every = diagnose_run(trained, data=without, overrides=["data.length=all"])
    assert every.findings[0].at_stake == every.stages[0].oracle.gain
    with_negatives = content(tmp_path / "log", training={"epochs": 1})
    with_negatives["data"]["negatives"] = 20
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(with_negatives))
    assert run("train", tmp_path / "config.yaml", "--out", tmp_path / "run") == 0
    assert not any(one.kind == "negatives" for one in diagnose_run(tmp_path / "run").findings)


def test_findings_are_ordered_by_what_is_at_stake(diagnosis: Diagnosis) -> None:
    stakes = [one.at_stake.value for one in diagnosis.findings if one.at_stake is not None]
    assert stakes == sorted(stakes, reverse=True)
    measured = [one.at_stake is not None for one in diagnosis.findings]
    assert measured == sorted(measured, reverse=True)
    of_stages = {one.stage: one for one in diagnosis.findings if one.kind == "stage"}
    for stage in diagnosis.stages:
        if stage.stage in of_stages:
            assert of_stages[stage.stage].at_stake == stage.oracle.gain
    for one in diagnosis.findings:
        if one.kind == "quota":
            assert ("more items would be returned" in one.text) == (one.stage == diagnosis.stages[-1].stage)


def test_requests_are_spread_over_causes(log: Path, diagnosis: Diagnosis) -> None:
    shown = diagnosis.worst_requests
    assert len({one.request for one in shown}) == len(shown)
    assert {one.stage for one in shown} == {"retrieval", "ranking"}
    assert {"retrieval, near the cut", "ranking, near the cut"} <= {one.cause for one in shown}
    rows = {str(row["request"]): row for row in ImpressionLog.load(log).days[DAYS[2]].table().to_pylist()}
    for one in shown:
        row = rows[one.request]
        relevant = {str(item) for item, value in zip(row["item"], row["relevance"], strict=True) if value > 0}
        assert one.attributes["id"] == str(row["user.id"] - 2)
        assert one.items == len(relevant)
        assert {item.item for item in one.lost} <= relevant
        assert not {item.item for item in one.kept_instead} & relevant
        assert all(item.rank > one.quota for item in one.lost)
        assert all(item.rank <= one.quota for item in one.kept_instead)
        for item in (*one.lost, *one.kept_instead):
            assert item.attributes["author"] == f"hash {int(item.item) % AUTHORS}"
            place = row["item"].index(int(item.item))
            depth = row["depth"][place]
            stage = "not logged" if depth < 0 else SPEC["stages"][depth]["name"]
            assert item.logged.partition(",")[0] == stage


def scored(config: CascadeConfig, log: Path, *, blind: int | None) -> Diagnosis:
    """Diagnose a cascade that knows the grades, but whose first stage drops the items of one author."""

    def score(batch: Impressions) -> ScoredBatch:
        good = batch.grade.float()
        ignored = batch.items["author"] == (-1 if blind is None else blind + 2)
        return ScoredBatch.of_lists(batch, [good.masked_fill(ignored, -1.0), good])

    loader = rf.data.ImpressionLoader(log, DAYS[1:], batch=50, shuffle=False)
    scores = collect_scores(score, loader, stages=["retrieval", "ranking"], relevant=2)
    return diagnose(scores, config, ImpressionLog.load(log))


def test_a_planted_defect_is_the_first_segment(log: Path) -> None:
    config = validate_cascade(content(log))
    perfect = scored(config, log, blind=None)
    assert perfect.joint_recall.value == 1.0
    assert perfect.findings == []
    assert perfect.worst_requests == []
    for author in (1, 3):
        found = scored(config, log, blind=author)
        worst = found.stages[0].segments[0]
        assert (worst.attribute, worst.value, worst.explained_by) == ("item.author", f"hash {author}", None)
        assert worst.kept.value < 0.5
        assert worst.kept_elsewhere == 1.0
        assert found.stages[1].segments == []
        assert found.findings[0].kind in ("stage", "quota")
        segments = [one for one in found.findings if one.kind == "segment"]
        assert segments[0].stage == "retrieval"
        assert f"item.author = hash {author}" in segments[0].text


def test_lists_over_all_items_are_diagnosed(trained: Path) -> None:
    found = diagnose_run(trained, overrides=["data.length=all"])
    assert found.all_items
    assert found.agreement[0].wanted is None
    assert any("not all items" in note for note in found.notes)
    assert found.stages[0].cut.known_up_to is not None
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json()))).to_json() == found.to_json()


def test_progress_is_reported(trained: Path) -> None:
    steps: list[tuple[int, int]] = []
    diagnose_run(trained, on_step=lambda name, number, of: steps.append((number, of)))
    assert steps == [(number, len(steps)) for number in range(len(steps))]


# --- drawing ------------------------------------------------------------------------------------------------------


def test_the_section_shows_every_part(diagnosis: Diagnosis) -> None:
    page = html.page("", diagnosis_blocks(diagnosis))
    for finding in diagnosis.findings:
        assert finding.stage in page
    for one in diagnosis.worst_requests:
        assert f"request {one.request} on {one.day}" in page
        for item in one.lost:
            assert f"<td>{item.attributes['author']}</td>" in page
    for text in ("Joint recall with perfect stages", "retrieval perfect", "all but ranking perfect"):
        assert text in page
    assert ">nan" not in page


def test_ranks_that_are_lower_bounds_are_shown_as_such(diagnosis: Diagnosis) -> None:
    lost = [
        replace(item, rank=65 + place, at_least=place > 0)
        for place, item in enumerate(diagnosis.worst_requests[0].lost)
    ]
    requests = [replace(diagnosis.worst_requests[0], lost=lost, quota=50)]
    blocks = diagnosis_blocks(replace(diagnosis, worst_requests=requests))
    console = Console(width=120, file=io.StringIO())
    console.print(show(blocks))
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    for place in range(1, len(lost)):
        assert f"at least {65 + place}" in text
        assert f"<td>at least {65 + place}</td>" in html.page("", blocks).replace(' class="number"', "")
    assert "> 6" not in text


def test_the_terminal_is_not_wider_than_a_pipe(diagnosis: Diagnosis) -> None:
    console = Console(width=120, file=io.StringIO())
    console.print(show(diagnosis_blocks(diagnosis)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 120
    assert "…" not in text
    assert "Agreement of neighbouring stages" in text
    assert "retrieval, near the cut" in text
