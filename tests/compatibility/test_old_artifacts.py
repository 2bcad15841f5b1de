"""Logs, runs, comparisons, streams and bundles of earlier versions still work (``make_artifacts.py`` wrote them)."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rankfall.data import ImpressionLog
from rankfall.serving import Bundle
from support.command_line import run

ARCHIVES = sorted(Path(__file__).parent.glob("rankfall-*.tar.xz"))
RUNS = ("cascade", "ranker")
DATA = {"cascade": "log", "ranker": "lists"}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path


def expected(artifacts: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((artifacts / "expected.json").read_text())
    return content


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*.safetensors")
    }


def test_a_log_is_whole(artifacts: Path) -> None:
    with pytest.warns(UserWarning, match=r"log/manifest.json has no seal"):
        log = ImpressionLog.load(artifacts / "log", verify=True)
    assert [len(day) for day in log.days.values()] == [24, 24, 24]


@pytest.mark.parametrize("kind", RUNS)
def test_a_run_evaluates_to_the_same_figures(artifacts: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", artifacts / f"{kind}-run", "--data", artifacts / DATA[kind], "--json") == 0
    out, err = capsys.readouterr()
    found, wanted = json.loads(out), expected(artifacts)[f"{kind}-run"]
    for note in (f"{kind}-run has no manifest.json", f"{DATA[kind]}/manifest.json has no seal"):
        assert "".join(err.split()).count("".join(note.split())) == 1
    assert wanted["metrics"].keys() <= found["metrics"].keys()
    for section in ("metrics", "chance"):
        for name, value in wanted[section].items():
            assert found[section][name] == pytest.approx(value, abs=1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_an_interrupted_run_is_resumed(artifacts: Path, kind: str) -> None:
    out = artifacts / f"{kind}-stopped"
    before = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    words: list[str | Path] = ["training.epochs=60", f"data.path={artifacts / DATA[kind]}", "--out", out, "--resume"]
    assert run("train", artifacts / f"{kind}.yaml", *words) == 0
    after = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert before
    assert after[: len(before)] == before
    assert [line["epoch"] for line in after] == list(range(1, 61))


def old_part(after: Any, before: Any) -> Any:
    """The content of a result without the keys that earlier versions did not write."""
    if isinstance(before, dict):
        return {key: old_part(after[key], value) for key, value in before.items()}
    if isinstance(before, list) and len(before) == len(after):
        return [old_part(new, old) for new, old in zip(after, before, strict=True)]
    return after


def test_a_finished_comparison_and_stream_train_nothing_again(artifacts: Path) -> None:
    for verb, name, more in (("compare", "comparison", ()), ("stream", "stream", ("--resume",))):
        weights = contents(artifacts / name)
        result = (artifacts / name / f"{name}.json").read_text()
        path = f"data.path={artifacts / 'log'}"
        assert run(verb, artifacts / f"{name}.yaml", path, "--out", artifacts / name, *more) == 0
        assert contents(artifacts / name) == weights
        after = json.loads((artifacts / name / f"{name}.json").read_text())
        before = {key: value for key, value in json.loads(result).items() if key != "tests"}  # corrected since
        assert old_part(after, before) == before
        assert after["verdicts"]
        assert run("report", artifacts / name, "--out", artifacts / f"{name}.html") == 0


def test_a_bundle_answers_as_before(artifacts: Path) -> None:
    wanted = expected(artifacts)
    ranking = Bundle.load(artifacts / "bundle").rank([wanted["request"]], k=3)[0]
    assert list(map(str, ranking.ids)) == wanted["items"]
    assert ranking.scores == pytest.approx(wanted["scores"], abs=1e-5)
