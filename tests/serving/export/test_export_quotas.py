"""Bundles with other quotas than those of their run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rankfall.serving import Bundle
from support.bundles import exported, platform_bundle, platform_run
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_bundle_keeps_the_given_quotas(tmp_path: Path) -> None:
    exported(platform_run(), tmp_path / "bundle", "--quota", "retrieval=15", "--quota", "ranking=6")
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.quotas == [15, 6]
    assert bundle.manifest["source"]["run_quotas"] == {"retrieval": 25, "ranking": 10}
    answer = bundle.rank(bundle.examples()[0]["request"], explain=True)
    assert len(answer.ids) == 6
    assert answer.stages is not None
    assert [len(stage.ids) for stage in answer.stages] == [15, 15]
    assert [stage.kept for stage in answer.stages] == [15, 6]


@pytest.mark.parametrize(
    ("quota", "code", "message"),
    [
        ("ranker=5", 1, "quota: found the stage 'ranker', expected one of retrieval, ranking, did you mean 'ranking'"),
        ("ranking=30", 1, "quota: ranking would keep 30, expected at most 25, which retrieval keeps"),
        ("ranking=0", 2, "found 'ranking=0', expected STAGE=N with a whole number of at least 1"),
        ("ranking", 2, "found 'ranking', expected STAGE=N"),
    ],
)
def test_wrong_quotas_are_refused(
    quota: str, code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", platform_run(), "--quota", quota, "--out", tmp_path / "bundle") == code
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "bundle").exists()


def test_a_bundle_with_the_quotas_of_the_run_does_not_repeat_them() -> None:
    assert "run_quotas" not in Bundle.load(platform_bundle()).manifest["source"]
