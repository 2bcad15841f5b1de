"""Training that would learn nothing ends with an error that says what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from rankfall._config import ConfigError
from rankfall.data import Recipe, prepare_letor
from rankfall.data.impressions.log import ImpressionLog
from rankfall.objectives import ARF, BCE, ICC, LCRON, FSRankNet, RankFlow
from rankfall.studies.evaluate import evaluate_run
from rankfall.studies.stream.day_learner import train_days
from rankfall.training.checks import sample_labels
from rankfall.training.config.cascade_config import validate_cascade
from rankfall.training.config.load_config import merge
from rankfall.training.learner import Learner, Position, StepResult
from rankfall.training.methods import train
from rankfall.training.run_directory import TrainingError
from support.cascades import content, liked_log
from support.interrupted import train as train_any
from support.logs import DAYS
from support.planted import config_for, plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rankfall.objectives._stages import Impression
    from support.logs import Columns

    Change = Callable[[dict[str, Columns]], None]


def set_lists(column: str, value: float, *, of: tuple[str, ...] = DAYS, keep: int = 0) -> Change:
    """Give all items of some days one value, except in the first lists of the day."""

    def change(days: dict[str, Columns]) -> None:
        for day in of:
            lists = days[day][column]
            days[day][column] = lists[:keep] + [[value] * len(one) for one in lists[keep:]]

    return change


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return liked_log(tmp_path_factory.mktemp("liked") / "log")


@pytest.fixture(scope="module")
def equal_grades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with relevant items in which every grade is 0."""
    return liked_log(tmp_path_factory.mktemp("equal") / "log", change=set_lists("grade", 0))


def train_on(log: Path, out: Path, objective: dict[str, Any], **changes: Any) -> list[str]:
    """Train one epoch, and return notices."""
    settings = content(log, training={"epochs": 1}, **changes) | {"objective": objective}
    notices: list[str] = []
    train(validate_cascade(settings), out, on_notice=notices.append)
    return notices


# --- labels of impressions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective",
    [
        {"name": "fs_ranknet"},
        {"name": "fs_lambda_loss"},
        {"name": "sort_ce"},
        {"name": "arf"},
        {"name": "arf_v2"},
        {"name": "per_stage", "loss": "softmax_loss"},
    ],
    ids=lambda objective: objective["name"],
)
def test_equal_grades_are_refused_by_objectives_that_compare_them(
    equal_grades: Path, tmp_path: Path, objective: dict[str, Any]
) -> None:
    message = (
        rf"^objective: {objective['name']} learns from grades, but all 300 training lists give no order to learn "
        r"\(all grades are 0\); try data.labels=relevance, or an objective that learns from the relevance \(bce, "
        r"lcron, icc, rankflow\), or prepare the log again"
    )
    with pytest.raises(ConfigError, match=message):
        train_on(equal_grades, tmp_path / "run", objective)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "labels"), [("lcron", "full"), ("bce", "full"), ("fs_ranknet", "relevance")])
def test_what_the_error_names_trains(equal_grades: Path, tmp_path: Path, name: str, labels: str) -> None:
    assert train_on(equal_grades, tmp_path / "run", {"name": name}, data={"labels": labels}) == []


def test_at_least_99_of_100_lists_without_order_are_refused(tmp_path: Path) -> None:
    for keep in (3, 4):
        liked_log(tmp_path / f"log{keep}", change=set_lists("grade", 0, keep=keep))
    with pytest.raises(ConfigError, match=r"but 99.0% of 300 training lists give no order to learn; try"):
        train_on(tmp_path / "log3", tmp_path / "run3", {"name": "fs_ranknet"})
    train_on(tmp_path / "log4", tmp_path / "run4", {"name": "fs_ranknet"})


def test_few_lists_with_an_order_can_be_allowed(tmp_path: Path) -> None:
    few, none = (liked_log(tmp_path / f"log{keep}", change=set_lists("grade", 0, keep=keep)) for keep in (2, 0))
    with pytest.raises(ConfigError, match=r"99.3% of 300 .*; data.least_informative=0 trains nevertheless$"):
        train_on(few, tmp_path / "run", {"name": "fs_ranknet"})
    notices = train_on(few, tmp_path / "run", {"name": "fs_ranknet"}, data={"least_informative": 0})
    assert notices == ["fs_ranknet learns from grades: 99.3% of 300 training lists give no order to learn"]
    with pytest.raises(ConfigError, match=r"all 300 training lists give no order to learn .*with its stages"):
        train_on(none, tmp_path / "none", {"name": "fs_ranknet"}, data={"least_informative": 0})


@pytest.mark.parametrize(("name", "noted"), [("bce", True), ("lcron", True), ("icc", False), ("fs_ranknet", False)])
def test_items_without_weight_are_noted(log: Path, tmp_path: Path, name: str, noted: bool) -> None:
    weight = {"of": "relevance", "base": 0}
    notices = train_on(log, tmp_path / "run", {"name": name}, weight=weight)
    message = (
        f"weight.base is 0, so that items without relevance have no weight: {name} does not learn to rank them lower"
    )
    assert [text.startswith(message) for text in notices] == [True] * noted


def test_random_negatives_order_lists_of_equal_positive_grades(tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log", change=set_lists("grade", 4))
    with pytest.raises(ConfigError, match="all grades are 4"):
        train_on(log, tmp_path / "run", {"name": "fs_ranknet"})
    train_on(log, tmp_path / "run", {"name": "fs_ranknet"}, data={"negatives": 3})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, r"the relevance of items, but all 300 training lists give no order to learn \(no item is relevant\); "
            r"`relevant` of the log is the stage shown: prepare the log again"),
        (1, r"no order to learn \(all items are relevant\); try data.negatives=20"),
    ],
)  # fmt: skip
def test_relevance_without_order_is_refused(tmp_path: Path, value: float, message: str) -> None:
    def change(days: dict[str, Columns]) -> None:
        set_lists("relevance", value)(days)
        set_lists("grade", 0)(days)  # the grade decides between equally relevant items

    log = liked_log(tmp_path / "log", change=change)
    for name in ("lcron", "icc", "rankflow"):
        with pytest.raises(ConfigError, match=message):
            train_on(log, tmp_path / "run", {"name": name})


def test_a_stage_that_sees_only_relevant_items_is_named(log: Path, tmp_path: Path) -> None:
    objective = {"name": "bce", "min_depth": [-1, "shown"]}
    message = (
        r"^objective: bce learns from the relevance of the items that ranking sees in the log, but all 300 .*; "
        r"try stages.1.min_depth=-1, which trains ranking on all items$"
    )
    with pytest.raises(ConfigError, match=message):
        train_on(log, tmp_path / "run", objective)


def brute_force(batch: Impression, k: int) -> dict[str, list[bool]]:
    """Whether grades, and the membership in the k best of the relevant items, differ between items of a list."""
    grades, truth = [], []
    for i in range(len(batch.mask)):
        real = batch.mask[i]
        grades.append(len(set(batch.grades[i, real].tolist())) > 1)
        truth.append(len(set(batch.truth(k)[i, real].tolist())) > 1)
    return {"grades": grades, "relevance": truth}


def test_informative_lists_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    grades = torch.randint(0, 3, (200, 4), generator=generator).float()
    relevance = torch.randint(0, 2, (200, 4), generator=generator).float()
    depth = torch.randint(0, 3, (200, 4), generator=generator)
    mask = torch.rand(200, 4, generator=generator) < 0.6
    given: dict[str, Any] = {"relevance": relevance, "depth": depth, "mask": mask}
    batch = FSRankNet(stages=1)._check([torch.zeros(200, 4)], grades, relevance, depth, mask)
    expected = brute_force(batch, 2)
    assert FSRankNet().informative(grades, **given)["grades"].tolist() == expected["grades"]
    arf = ARF(relevant=2, quotas=[3, 2]).informative(grades, **given)
    assert {kind: lists.tolist() for kind, lists in arf.items()} == expected
    for objective in (ICC(relevant=2, quotas=[3, 2]), RankFlow(relevant=2, quotas=[3, 2])):
        assert objective.informative(grades, **given)["relevance"].tolist() == expected["relevance"]
    longer = mask.sum(-1) > 2  # recall at 2 is 1 in a list of two items
    found = LCRON(relevant=2).informative(grades, **given)["relevance"]
    assert found.tolist() == (torch.tensor(expected["relevance"]) & longer).tolist()
    seen = BCE(relevant=2, stages=1, min_depth=1).informative(grades, **given)["stage1"]
    truth, visible = batch.truth(2), mask & (depth >= 1)
    assert seen.tolist() == [len(set(truth[i, visible[i]].tolist())) > 1 for i in range(200)]


def test_the_sample_is_spread_over_the_days(log: Path) -> None:
    objective = FSRankNet()
    opened = ImpressionLog.load(log)
    sample = sample_labels(opened, validate_cascade(content(log)), [f"{DAYS[0]}..{DAYS[2]}"], objective)
    assert (sample.lists, sample.informative, sample.grades) == (300 + 60 + 60, {"grades": 420}, (0, 9))
    assert (sample.relevant, sample.all_relevant, sample.sizes) == (420, 0, (1.0, 1.0))


# --- sizes of relevance -------------------------------------------------------------------------------------------


def test_sizes_of_relevance_that_nothing_uses_are_noted(tmp_path: Path) -> None:
    def change(days: dict[str, Columns]) -> None:
        for day in days.values():
            day["relevance"] = [
                [10 * one if i % 2 else one for i, one in enumerate(list_)] for list_ in day["relevance"]
            ]

    log = liked_log(tmp_path / "log", change=change)
    (notice,) = train_on(log, tmp_path / "run", {"name": "bce"})
    assert notice.startswith("relevance has sizes 1 to 10, which this configuration ignores")
    assert "weight=relevance" in notice
    assert evaluate_run(tmp_path / "run").summary().warnings[-1] == notice
    assert train_on(log, tmp_path / "weighted", {"name": "bce"}, weight="relevance") == []
    assert notice not in evaluate_run(tmp_path / "weighted").summary().warnings
    # grades of the relevance follow its sizes, but only objectives that compare grades use them
    assert train_on(log, tmp_path / "ranknet", {"name": "fs_ranknet"}, data={"labels": "relevance"}) == []
    assert train_on(log, tmp_path / "lcron", {"name": "lcron"}, data={"labels": "relevance"}) == [notice]


# --- gradients and terms ------------------------------------------------------------------------------------------


def test_a_loss_without_gradient_is_refused(log: Path, tmp_path: Path) -> None:
    objective = {"name": "per_stage", "loss": {"name": "lambda_recall_loss", "m": 50, "k": 2}}  # lists of 11 items
    with pytest.raises(
        TrainingError,
        match=r"^per_stage: the gradient of all weights of retrieval and of ranking was exactly 0 in all 10 batches of "
        r"epoch 1, so it was not trained",
    ):
        train_on(log, tmp_path / "run", objective)


@pytest.mark.parametrize("shared", [[], ["video"]], ids=["apart", "shared tables"])
def test_a_single_stage_without_gradient_is_named(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: list[str]
) -> None:
    terms = FSRankNet.terms

    def first_alone(self: FSRankNet, batch: Impression) -> dict[str, torch.Tensor]:
        batch.scores[1] = batch.scores[1] * 0 + torch.randn_like(batch.scores[1])  # the term varies
        return terms(self, batch)

    monkeypatch.setattr(FSRankNet, "terms", first_alone)
    with pytest.raises(TrainingError, match="the gradient of all weights of ranking was exactly 0 in all 10 batches"):
        train_on(log, tmp_path / "run", {"name": "fs_ranknet"}, share=shared)


@pytest.mark.parametrize("value", [0.0, 3.5])
def test_a_constant_term_is_named(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    terms = FSRankNet.terms
    monkeypatch.setattr(
        FSRankNet, "terms", lambda self, batch: terms(self, batch) | {"stage1/extra": batch.scores[0].sum() * 0 + value}
    )
    with pytest.raises(TrainingError, match=rf"stage1/extra was {value:g} in all 10 batches of epoch 1"):
        train_on(log, tmp_path / "run", {"name": "fs_ranknet"})


def test_stages_that_take_turns_are_trained(log: Path, tmp_path: Path) -> None:
    """One batch per epoch trains one of the two stages."""
    objective = {"name": "rankflow", "schedule": "alternate"}
    settings = content(log, training={"epochs": 2, "batch": 512}) | {"objective": objective}
    notices: list[str] = []
    result = train(validate_cascade(settings), tmp_path / "run", on_notice=notices.append)
    assert result.epochs == 2
    assert notices == []


class _Still(Learner[Any]):
    """A learner of two parts that is only asked what was not trained."""

    def __init__(self) -> None:
        self.turns = 1

    def depends_on(self, term: str, part: str) -> bool:
        return term == part

    terms = validate = line = save = where = None  # type: ignore[assignment]


_Still.__abstractmethods__ = frozenset()


def after(position: Position, *steps: tuple[float, float, list[str]]) -> Position:
    """Add batches of two lists with the terms a and b, and the parts that got a gradient."""
    for a, b, moved in steps:
        position.add(StepResult(2, {"a": 2 * a, "b": 2 * b}, moved), ["a", "b"])
    return position


def test_what_an_epoch_did_not_train() -> None:
    learner = _Still()
    both = ["a", "b"]
    assert learner.find_untrained(after(Position(), (1, 2, both), (3, 4, [])), new=True) == ""
    assert learner.find_untrained(after(Position(), (1, 2, ["a"]), (3, 4, [])), new=True).endswith("of b was exactly 0")
    # equal in all batches; a single batch says something only if the term is 0
    assert learner.find_untrained(after(Position(), (1, 2, both), (1, 4, [])), new=True) == "a was 1"
    assert learner.find_untrained(after(Position(), (1, 2, both)), new=True) == ""
    assert learner.find_untrained(after(Position(), (1, 0, both)), new=True) == "b was 0"


def test_a_perfect_fit_of_lists_seen_before_is_no_error() -> None:
    learner, both = _Still(), ["a", "b"]
    position = after(Position(), (1, 2, both))
    position.next_epoch()
    after(position, (1, 0, ["a"]), (2, 0, []))
    assert learner.find_untrained(position, new=False) == ""
    assert learner.find_untrained(position, new=True) == "the gradient of all weights of b was exactly 0"
    after(position, (2, 0.5, []))  # not at its minimum
    assert learner.find_untrained(position, new=False) == "the gradient of all weights of b was exactly 0"


def test_positions_of_earlier_releases_say_nothing() -> None:
    stored = asdict(after(Position(), (1, 2, ["a"])))
    restored = Position(**stored)
    assert restored.gradients == {"a": 1, "b": 0}
    for key in ("gradients", "constant"):
        stored.pop(key)
    position = after(Position(**stored), (0, 0, []))
    assert _Still().find_untrained(position, new=True) == ""


# --- streams ------------------------------------------------------------------------------------------------------


def streamed(log: Path, out: Path, objective: str = "fs_ranknet") -> list[str]:
    opened = ImpressionLog.load(log)
    notices: list[str] = []
    settings = merge(content(log), {"objective": {"name": objective}, "training": {"epochs": 1}})
    settings["objective"] = {"name": objective}
    days = {day: opened.days[day].manifest["sha256"] for day in DAYS}
    train_days(validate_cascade(settings), out, opened, days, on_notice=notices.append)
    return notices


def test_a_day_without_order_is_a_warning_and_a_stream_an_error(equal_grades: Path, tmp_path: Path) -> None:
    log = liked_log(tmp_path / "log", change=set_lists("grade", 0, of=DAYS[1:2]))
    (notice,) = streamed(log, tmp_path / "one")
    assert notice.startswith(f"{DAYS[1]}: fs_ranknet: the gradient of all weights of retrieval and of ranking was")
    with pytest.raises(ConfigError, match="all 420 training lists give no order to learn"):
        streamed(equal_grades, tmp_path / "all")


def test_a_stream_that_never_trained_a_stage_is_an_error(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = FSRankNet.terms
    monkeypatch.setattr(
        FSRankNet, "terms", lambda self, batch: {name: 0 * term for name, term in terms(self, batch).items()}
    )
    with pytest.raises(TrainingError, match=r"the gradient of all weights of retrieval and of ranking .*of epoch 3"):
        streamed(log, tmp_path / "run")


# --- ranking lists ------------------------------------------------------------------------------------------------


def test_lists_of_one_label_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{number % 3} qid:{number} 1:{x:.3f}" for number in range(200) for x in rng.normal(size=4)]
    for name, others in (("all", 0), ("most", 2), ("fewer", 3)):
        changed = [
            line.replace(line[0], str((int(line[0]) + 1) % 3), 1) if i % 4 == 0 and i // 4 < others else line
            for i, line in enumerate(lines)
        ]
        (tmp_path / f"{name}.txt").write_text("\n".join(changed) + "\n")
    splits = {name: [tmp_path / f"{name}.txt"] for name in ("all", "most", "fewer")}
    prepare_letor(splits, tmp_path / "data", Recipe())

    def settings(split: str) -> dict[str, Any]:
        return config_for(tmp_path / "data", data={"train": [split], "valid": ["fewer"], "test": []})

    with pytest.raises(ConfigError, match=r"loss: softmax_loss learns from labels, but all 200 lists of data.train"):
        train_any(settings("all"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"but 99.0% of 200 lists of data.train give no order to learn; try"):
        train_any(settings("most"), tmp_path / "run")
    trains = settings("fewer")
    trains["data"]["valid"] = ["most"]
    train_any(trains, tmp_path / "run")


def test_a_ranker_without_gradient_is_refused(tmp_path: Path) -> None:
    data = plant(tmp_path / "planted")
    settings = config_for(data, loss={"name": "lambda_recall_loss", "m": 30, "k": 2})  # lists of at most 25 documents
    with pytest.raises(
        TrainingError, match=r"^lambda_recall_loss: the gradient of all weights of the model was exactly 0 in all 5"
    ):
        train_any(settings, tmp_path / "run")
