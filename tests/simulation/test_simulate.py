"""What `simulate` writes: the same bytes for the same plan, and a log that loops over its rows can vouch for."""

from __future__ import annotations

import json
import pickle
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import polars as pl
import pytest

from rankfall.api.preparing import Preset
from rankfall.data.impressions.log import ImpressionLog
from rankfall.data.sources.recflow import prepare_recflow
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import PRESETS
from rankfall.simulation.simulate import Simulation, simulate_log, simulate_recflow
from rankfall.storage.files import checksum
from support.command_line import run

if TYPE_CHECKING:
    from pathlib import Path

    from rankfall.simulation.platform import ServedPortion

    Row = dict[str, int]

DAYS = ["2024-01-13", "2024-01-14", "2024-01-15"]
TINY = Simulation(preset="tiny", days=3, requests_per_day=60, seed=5)
DAY_MS = 86_400_000
FIRST_MS = 1_705_075_200_000  # midnight of the first day in Shanghai


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ImpressionLog:
    return simulate_log(TINY, tmp_path_factory.mktemp("simulated") / "log")


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "recflow"
    simulate_recflow(TINY, folder)
    return folder


@pytest.fixture(scope="module")
def rows(layout: Path) -> dict[str, list[Row]]:
    return {day: pl.read_ipc(layout / "all_stage" / f"{day}.feather").to_dicts() for day in DAYS}


def pickled(layout: Path, folder: str, day: str) -> dict[int, Any]:
    with (layout / folder / f"{day}.pkl").open("rb") as file:
        content: dict[int, Any] = pickle.load(file)
    return content


def by_request(rows: list[Row]) -> dict[int, list[Row]]:
    requests = defaultdict(list)
    for row in rows:
        requests[row["request_id"]].append(row)
    return requests


# --- the same again ---------------------------------------------------------------------------------------------


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): checksum(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_plan_gives_the_same_bytes_again(log: ImpressionLog, layout: Path, tmp_path: Path) -> None:
    assert files(simulate_log(TINY, tmp_path / "log").path) == files(log.path)
    simulate_recflow(TINY, tmp_path / "recflow")
    assert files(tmp_path / "recflow") == files(layout)


def test_another_seed_gives_another_log(log: ImpressionLog, tmp_path: Path) -> None:
    other = simulate_log(Simulation(preset="tiny", days=1, requests_per_day=60, seed=6), tmp_path / "log")
    assert other.days[DAYS[0]].manifest["sha256"] != log.days[DAYS[0]].manifest["sha256"]


def test_a_longer_log_begins_with_the_days_of_a_shorter_one(log: ImpressionLog, tmp_path: Path) -> None:
    shorter = simulate_log(Simulation(preset="tiny", days=2, requests_per_day=60, seed=5), tmp_path / "log")
    assert list(shorter.days) == DAYS[:2]
    for day in shorter.days:
        assert shorter.days[day].manifest == log.days[day].manifest


@pytest.mark.parametrize("preset", ["tiny", "recflow-like-3"])
def test_recflows_layout_becomes_the_same_impressions(preset: str, tmp_path: Path) -> None:
    plan = Simulation(preset=preset, days=2, requests_per_day=40, seed=3)
    ours = simulate_log(plan, tmp_path / "ours")
    simulate_recflow(plan, tmp_path / "recflow")
    stages = 3 if preset == "recflow-like-3" else 2
    prepared = prepare_recflow(tmp_path / "recflow", tmp_path / "prepared", stages=stages, seed=3)  # type: ignore[arg-type]
    assert prepared.spec == ours.spec
    assert prepared.features == ours.features
    assert checksum(prepared.path / "items.arrow") == checksum(ours.path / "items.arrow")
    for day in ours.days:
        assert prepared.days[day].manifest == ours.days[day].manifest


# --- a request --------------------------------------------------------------------------------------------------


def test_every_item_ends_in_one_place_of_the_funnel(rows: dict[str, list[Row]]) -> None:
    production = PRESETS["tiny"].production
    for items in (items for day in DAYS for items in by_request(rows[day]).values()):
        ranked = {row["rank_index"]: row for row in items if row["rank_index"] >= 0}
        mixed = {row["rerank_index"]: row for row in items if row["rerank_index"] >= 0}
        assert set(range(production.rank_keeps)) <= set(ranked) <= set(range(production.coarse_keeps))
        assert set(mixed) == set(range(production.rank_keeps))
        assert all(row["rank_index"] < production.rank_keeps for row in mixed.values())
        for row in items:
            assert row["rank_pos"] == (0 <= row["rank_index"] < 10)
            assert row["rank_neg"] == (row["rank_index"] >= 10)
            assert row["rerank_pos"] == (0 <= row["rerank_index"] < 10)
            assert row["rerank_neg"] == (row["rerank_index"] >= 10)
            assert row["prerank_neg"] + row["coarse_neg"] + (row["rank_index"] >= 0) == 1
        for flag in ("prerank_neg", "coarse_neg"):
            assert sum(row[flag] for row in items) == production.logged
        assert len({row["video_id"] for row in items}) == len(items)


@pytest.mark.parametrize("preset", ["tiny", "industry-easy"])
def test_positions_are_those_of_shown_items(preset: str, tmp_path: Path) -> None:
    plan = Simulation(preset=preset, days=1, requests_per_day=40, seed=3)
    log = simulate_log(plan, tmp_path / "log")
    expected = {}
    for portion in plan.platform().run(1):
        for place, number in enumerate(portion.requests.number):
            for item, shown, at in zip(
                portion.items[place],
                portion.feedback["realshow"][place],
                portion.served.rerank_index[place],
                strict=True,
            ):
                expected[int(number), int(item)] = int(at) if shown else -1
    found = {
        (row["request"], item): position
        for row in log.days[DAYS[0]].table().to_pylist()
        for item, position in zip(row["item"], row["position"], strict=True)
    }
    assert found == {key: expected[key] for key in found}
    assert max(found.values()) > 2


def test_clicks_can_be_the_relevant_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", str(tmp_path / "log"), "--days", "1", "--requests-per-day", "30")
    assert run(*options, "--relevant", "efective_view") == 1
    assert "relevant: found 'efective_view', did you mean 'effective_view'" in capsys.readouterr().err
    assert run(*options, "--relevant", "effective_view") == 0
    for row in ImpressionLog.load(tmp_path / "log").days[DAYS[0]].table().to_pylist():
        assert row["relevance"] == row["feedback.effective_view"]


def test_only_what_is_shown_gets_feedback(rows: dict[str, list[Row]]) -> None:
    for items in (items for day in DAYS for items in by_request(rows[day]).values()):
        shown = sorted(row["rerank_index"] for row in items if row["realshow"])
        assert shown == list(range(len(shown)))
        assert 4 <= len(shown) <= 10
        for row in items:
            share = row["playing_time"] / row["duration"]
            assert row["realshow"] or not row["playing_time"]
            assert row["effective_view"] == (share >= 0.3)
            assert row["long_view"] == (share >= 1)
            for reaction in ("like", "follow", "forward", "comment"):
                assert row[reaction] <= row["effective_view"]


def test_requests_are_of_their_day_and_of_one_user(rows: dict[str, list[Row]]) -> None:
    people: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for number, day in enumerate(DAYS):
        times = [row["request_timestamp"] for row in rows[day]]
        assert times == sorted(times)
        assert all(number <= (time - FIRST_MS) / DAY_MS < number + 1 for time in times)
        for items in by_request(rows[day]).values():
            assert len({(row["user_id"], row["device_id"], row["request_timestamp"]) for row in items}) == 1
            people[items[0]["user_id"]].add(tuple(items[0][name] for name in ("age", "gender", "province")))
    assert all(len(found) == 1 for found in people.values())


def test_items_stay_what_they_are_and_are_not_shown_before_they_exist(rows: dict[str, list[Row]]) -> None:
    about: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    category_of: dict[int, set[int]] = defaultdict(set)
    names = ("author_id", "category_level_one", "category_level_two", "upload_type", "upload_timestamp", "duration")
    for row in (row for day in DAYS for row in rows[day]):
        about[row["video_id"]].add(tuple(row[name] for name in names))
        category_of[row["category_level_two"]].add(row["category_level_one"])
        assert row["upload_timestamp"] * 1000 < row["request_timestamp"]
    assert all(len(found) == 1 for found in about.values())
    assert all(len(found) == 1 for found in category_of.values())


def test_new_items_keep_coming_and_old_ones_go(rows: dict[str, list[Row]]) -> None:
    seen = [{row["video_id"] for row in rows[day]} for day in DAYS]
    born = [{row["video_id"] for row in rows[day] if row["upload_timestamp"] * 1000 > FIRST_MS} for day in DAYS]
    assert not born[0]
    assert born[2] - seen[1] - seen[0]
    assert len(seen[0] - seen[2]) > 0.1 * len(seen[0])


# --- the other files --------------------------------------------------------------------------------------------


def test_sequences_are_what_users_viewed_before(layout: Path, rows: dict[str, list[Row]]) -> None:
    columns = [
        "video_id",
        "author_id",
        "category_level_two",
        "category_level_one",
        "upload_type",
        "upload_timestamp",
        "duration",
    ]
    columns += ["request_timestamp", "playing_time", "request_id"]
    viewed: dict[int, list[tuple[int, ...]]] = defaultdict(list)  # by user, on the days before
    for day in DAYS:
        sequences = pickled(layout, "seq_effective_50_dict", day)
        requests = by_request(rows[day])
        assert list(sequences) == list(requests)
        today: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for number, items in requests.items():
            user, time = items[0]["user_id"], items[0]["request_timestamp"]
            events = [tuple(event) for event in sequences[number].tolist()]
            real = [event for event in events if event[7] > 0]
            assert events == [(0,) * 10] * (50 - len(real)) + real
            assert [event[7] for event in real] == sorted(event[7] for event in real)
            assert all(event[7] < time for event in real)
            old = [event for event in real if event[7] < FIRST_MS + DAYS.index(day) * DAY_MS]
            logged = [event for event in old if event[7] >= FIRST_MS]
            assert logged == viewed[user][len(viewed[user]) - len(logged) :]
            assert logged == viewed[user] or len(real) == 50
            assert set(real) - set(old) <= set(today[user])
            shown = sorted((row for row in items if row["effective_view"]), key=lambda row: row["rerank_index"])
            today[user] += [tuple(row[name] for name in columns) for row in shown]
        for user, events in today.items():
            viewed[user] += events
    assert sum(map(len, viewed.values())) > 100


def test_the_dict_of_stages_repeats_the_rows(layout: Path, rows: dict[str, list[Row]]) -> None:
    names = [
        "video_id",
        "author_id",
        "duration",
        "category_level_two",
        "upload_type",
        "upload_timestamp",
        "category_level_one",
    ]
    names += ["effective_view"]
    stages = ("realshow", "rerank_pos", "rerank_neg", "rank_pos", "rank_neg", "coarse_neg", "prerank_neg")
    found = pickled(layout, "request_id_dict", DAYS[1])
    requests = by_request(rows[DAYS[1]])
    assert list(found) == list(requests)
    for number, items in requests.items():
        expected = {stage: [[row[name] for name in names] for row in items if row[stage]] for stage in stages}
        assert {stage: array.tolist() for stage, array in found[number].items()} == {
            stage: values for stage, values in expected.items() if values
        }


def test_there_is_room_for_every_id(layout: Path, rows: dict[str, list[Row]]) -> None:
    with (layout / "others" / "id_cnt.pkl").open("rb") as file:
        counts = pickle.load(file)
    for name, count in counts.items():
        assert all(0 <= row[name] < count for day in DAYS for row in rows[day])


# --- impressions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "stages"),
    [
        ("tiny", {"prerank_neg": 10, "coarse_neg": 10, "rank_neg": 10, "rank_pos": 10}),
        ("recflow-like-3", {"prerank_neg": 10, "coarse_neg": 10, "rank_neg": 10, "rerank_neg": 10, "rerank_pos": 10}),
        ("recflow-noisy", {"prerank_neg": 10, "coarse_neg": 10, "rank_neg": 10, "rank_pos": 10}),
        ("recflow-noisy-3", {"prerank_neg": 10, "coarse_neg": 10, "rank_neg": 10, "rerank_neg": 10, "rerank_pos": 10}),
        ("industry-easy", {"q2": 4, "q3": 4, "q4": 2}),
        ("industry-hard", {"q2": 6, "q3": 10, "q4": 4}),
        ("industry-cascade", {"prerank_neg": 5, "coarse_neg": 5, "rank_neg": 8, "rank_pos": 2}),
    ],
)
def test_impressions_have_the_sample_of_their_preset(preset: str, stages: dict[str, int], tmp_path: Path) -> None:
    log = simulate_log(Simulation(preset=preset, days=1, requests_per_day=50), tmp_path / "log", truth=True)
    table = log.days[DAYS[0]].table().to_pylist()
    assert log.spec.stage_names == list(stages)
    assert len(table) == 50
    for impression in table:
        assert Counter(log.spec.stage_names[depth] for depth in impression["depth"]) == stages
        assert sum(impression["relevance"]) == list(stages.values())[-1]
        assert len(impression["truth"]) == sum(stages.values())


def test_truth_is_written_only_when_asked_for(log: ImpressionLog) -> None:
    assert "truth" not in log.days[DAYS[0]].table().column_names


def test_industry_grades_are_the_order_of_the_ranking_model_in_each_queue(tmp_path: Path) -> None:
    log = simulate_log(Simulation(preset="industry-hard", days=1, requests_per_day=30), tmp_path / "log")
    for impression in log.days[DAYS[0]].table().to_pylist():
        best_first = sorted(zip(impression["depth"], impression["rank"], impression["grade"], strict=True), key=order)
        assert [grade for _, _, grade in best_first] == list(range(19, -1, -1))


def order(item: tuple[int, int, int]) -> tuple[int, int]:
    return -item[0], item[1]


def test_industry_statistics_count_what_was_shown_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    portions: list[ServedPortion] = []
    served = Platform._serve
    first_views: list[Any] = []

    def watched(self: Platform, *place: int) -> ServedPortion:
        if not portions:
            first_views.append(self.recent.item.copy())
        portions.append(served(self, *place))
        return portions[-1]

    monkeypatch.setattr(Platform, "_serve", watched)
    log = simulate_log(Simulation(preset="industry-easy", days=2, requests_per_day=40), tmp_path / "log")
    views = Counter(first_views[0][first_views[0] >= 0].tolist())
    shows = Counter({ad: 2 * count for ad, count in views.items()})
    impressions = {row["request"]: row for day in log.days.values() for row in day.table().to_pylist()}
    for portion in portions:
        for number in portion.requests.number.tolist():
            row = impressions[number]
            for place, ad in enumerate(row["item"]):
                assert row["item.ad_shows"][place] == pytest.approx(np.log1p(shows[ad]), rel=1e-6)
                assert row["item.ad_rate"][place] == pytest.approx((views[ad] + 5) / (shows[ad] + 10), rel=1e-6)
        shows.update(portion.items[portion.feedback["realshow"] > 0].tolist())
        views.update(portion.items[portion.feedback["effective_view"] > 0].tolist())


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_knows_every_preset() -> None:
    assert list(get_args(Preset)) == list(PRESETS)


def test_the_command_sums_up_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("simulate", str(tmp_path / "log"), "--days", "2", "--requests-per-day", "30", "--seed", "4")
    assert run(*asked, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["impressions"] == 60
    assert summary["rows"] == sum(stage["logged"] for stage in summary["stages"].values())
    assert summary["stages"]["rank_pos"] == {"logged": 600, "kept": 600}
    log = ImpressionLog.load(tmp_path / "log", verify=True)
    assert log.manifest["about"]["seed"] == 4
    assert run(*asked) == 1
    assert "--force" in capsys.readouterr().err
    assert run(*asked, "--force") == 0
    assert "rank_pos" in capsys.readouterr().out


def test_recflows_layout_is_replaced_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("simulate", str(tmp_path / "log"), "--days", "1", "--requests-per-day", "1", "--layout", "recflow")
    assert run(*asked, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["stages"]["rank_pos"] == {"logged": 10}
    assert run(*asked) == 1
    assert run(*asked, "--force", "--truth") == 0
    assert "truth" in pl.read_ipc_schema(tmp_path / "log" / "all_stage" / f"{DAYS[0]}.feather")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--preset", "recflow"), 2, "recflow-like"),
        (("--preset", "industry-easy", "--layout", "recflow"), 2, "industry-easy"),
        (("--days", "0"), 2, "--days"),
        (("--requests-per-day", "0"), 2, "--requests-per-day"),
    ],
)
def test_mistakes_are_explained(
    options: tuple[str, ...], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("simulate", str(tmp_path / "log"), *options) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("layout", ["rankfall", "recflow"])
def test_a_crash_leaves_nothing_behind(layout: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    served = Platform._serve

    def breaks(self: Platform, day: int, *place: int) -> ServedPortion:
        if day == 1:
            raise OSError("no space left")
        return served(self, day, *place)

    monkeypatch.setattr(Platform, "_serve", breaks)
    assert run("simulate", str(tmp_path / "log"), "--requests-per-day", "30", "--layout", layout) == 1
    assert not list(tmp_path.iterdir())


def test_what_is_not_a_log_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    for layout in ("rankfall", "recflow"):
        assert run("simulate", str(tmp_path / "mine"), "--days", "1", "--force", "--layout", layout) == 1
        assert "not what this command writes" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


@pytest.mark.parametrize(
    ("name", "value"), [("days", 0), ("requests_per_day", 0), ("seed", -1), ("seed", 2**63), ("preset", "tinny")]
)
def test_impossible_plans_name_the_argument(name: str, value: Any) -> None:
    fields: dict[str, Any] = {"preset": "tiny", "days": 1, "requests_per_day": 1, name: value}
    with pytest.raises(ValueError, match=f"^{name}: found '?{value}"):
        Simulation(**fields)
