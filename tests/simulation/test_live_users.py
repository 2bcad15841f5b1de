"""Users whose requests are answered from outside, against loops over requests and items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from rankfall.simulation.live_users import BEST, LiveUsers
from rankfall.simulation.platform import Platform
from rankfall.simulation.presets import LOOP
from rankfall.simulation.world import DAY, FIRST_DAY, NO_ITEM, mixed

if TYPE_CHECKING:
    from rankfall.simulation.live_users import LivePortion

REQUESTS = 80


def new_users(seed: int = 3) -> LiveUsers:
    users = LiveUsers(Platform(LOOP, seed, REQUESTS), 1)
    for _ in users.past():
        pass
    return users


def random_answers(portion: LivePortion, width: int = 12) -> np.ndarray:
    random = np.random.default_rng(portion.number)
    rows = [random.permutation(portion.alive)[:width] for _ in portion.requests.user]
    return np.array(rows, np.int32)


def test_the_best_items_are_those_of_a_loop_over_all_items() -> None:
    users = new_users()
    platform = users.platform
    users.react(first := users.arrive(), first.best)
    portion = users.arrive()
    start = FIRST_DAY + portion.day * DAY
    alive = [n for n in range(len(platform.items)) if platform.items.upload_time[n] < start < platform.items.death[n]]
    assert portion.alive.tolist() == alive
    for row in range(len(portion.requests.user)):
        some = portion.requests.take(slice(row, row + 1))
        relevance = {}
        for item in alive:
            parts = platform.relevance.parts(some, np.array([[item]], np.int32))
            relevance[item] = float(mixed(parts, LOOP.shares)[0, 0])
        np.testing.assert_allclose(portion.relevance[row], list(relevance.values()), atol=1e-5)
        viewed = set(some.history.item[0].tolist())
        order = sorted((item for item in alive if item not in viewed), key=lambda item: -relevance[item])
        assert set(portion.best[row].tolist()) == set(order[:BEST])


def test_a_day_is_answered_in_portions_that_begin_with_its_first_half_hour() -> None:
    users = new_users()
    portions = []
    for _ in range(9):
        portions.append(portion := users.arrive())
        users.react(portion, portion.best)
    assert [portion.is_last for portion in portions] == [False] * 8 + [True]
    assert {portion.day for portion in portions} == {1}
    times = np.concatenate([portion.requests.time for portion in portions]) / 1000 - FIRST_DAY - DAY
    assert len(times) == REQUESTS
    assert (np.diff(times) >= 0).all()
    assert 0 <= times[0] < 3600
    assert times[-1] < DAY
    assert users.arrive().day == 2


def test_the_items_of_tomorrow_are_those_that_can_be_answered_then() -> None:
    users = new_users()
    while True:
        portion = users.arrive()
        users.react(portion, portion.best)
        if portion.is_last:
            break
    items, alive = users.tomorrow()
    before = len(users.platform.items)
    following = users.arrive()
    assert following.alive.tolist() == alive.tolist()
    assert len(items) == len(users.platform.items) > before
    np.testing.assert_array_equal(items.upload_time, users.platform.items.upload_time)
    assert not set(alive.tolist()) <= set(portion.alive.tolist())  # new ones,
    assert not set(portion.alive.tolist()) <= set(alive.tolist())  # and some have expired


def test_recall_and_reward_are_counts() -> None:
    users = new_users()
    portion = users.arrive()
    answers = random_answers(portion)
    reactions = users.react(portion, answers)
    for row, found in enumerate(reactions.recall):
        assert found == pytest.approx(len(set(answers[row].tolist()) & set(portion.best[row].tolist())) / BEST)
        assert reactions.reward[row] == sum(reactions.feedback["effective_view"][row].tolist())


def test_users_react_alike_to_the_same_item_at_the_same_place_whoever_answers() -> None:
    one, other = new_users(), new_users()
    first, second = one.arrive(), other.arrive()
    answers, others = random_answers(first), random_answers(second)
    others[:, 5:] = random_answers(second, 40)[:, 33:]  # other items at the end
    others[:, 5:][others[:, 5:] == answers[:, 5:]] = NO_ITEM
    reactions, changed = one.react(first, answers), other.react(second, others)
    for kind, values in reactions.feedback.items():
        np.testing.assert_array_equal(values[:, :5], changed.feedback[kind][:, :5])
    assert any((values[:, 5:] != changed.feedback[kind][:, 5:]).any() for kind, values in reactions.feedback.items())


def test_better_answers_have_a_higher_reward() -> None:
    rewards = {}
    for name in ("best", "random"):
        users, found = new_users(), []
        for _ in range(9):
            portion = users.arrive()
            found += users.react(
                portion, portion.best if name == "best" else random_answers(portion, BEST)
            ).reward.tolist()
        rewards[name] = np.mean(found)
    assert rewards["best"] > 2 * rewards["random"]


def test_views_enter_the_history_of_their_user() -> None:
    users = new_users()
    viewed: dict[int, list[int]] = {}
    for _ in range(9):
        portion = users.arrive()
        for user, history in zip(portion.requests.user.tolist(), portion.requests.history.item.tolist(), strict=True):
            expected = viewed.get(user, [])
            assert not expected or history[-len(expected) :] == expected[-50:]
        reactions = users.react(portion, portion.best)
        for row, user in enumerate(portion.requests.user.tolist()):
            seen = reactions.feedback["effective_view"][row] > 0
            viewed.setdefault(user, []).extend(portion.best[row][seen].tolist())
    assert sum(map(len, viewed.values())) > REQUESTS


def test_expired_items_and_empty_places_get_no_feedback() -> None:
    users = new_users()
    portion = users.arrive()
    dead = np.setdiff1d(np.arange(len(users.platform.items)), portion.alive)[:3]
    assert len(dead)
    answers = np.full((len(portion.best), 10), NO_ITEM, np.int32)
    answers[:, : len(dead)] = dead
    answers[:, 4] = portion.best[:, 0]
    reactions = users.react(portion, answers)
    for values in reactions.feedback.values():
        assert not values[:, [0, 1, 2, 3, 5, 6, 7, 8, 9]].any()
    reactions_at_4 = reactions.feedback["realshow"][:, 4]
    assert reactions_at_4.any()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda portion: portion.best[1:], "answers: found the shape"),
        (lambda portion: np.full((len(portion.best), 2), 10**6, np.int32), "answers: found the item 1000000, expected"),
        (lambda portion: np.full((len(portion.best), 2), -2, np.int32), "answers: found the item -2, expected"),
        (lambda portion: portion.best[:, [0, 0]], r"answers: found the item \d+ twice in one answer"),
    ],
)
def test_wrong_answers_are_refused(wrong: object, message: str) -> None:
    users = new_users()
    portion = users.arrive()
    with pytest.raises(ValueError, match=message):
        users.react(portion, wrong(portion))  # type: ignore[operator]
    users.react(portion, portion.best)  # and nothing has changed


def test_portions_are_answered_in_their_order() -> None:
    users = new_users()
    portion = users.arrive()
    with pytest.raises(ValueError, match="portion: the answers of the last one are missing"):
        users.arrive()
    users.react(portion, portion.best)
    with pytest.raises(ValueError, match="portion: found 0 of day 1, which does not wait for answers"):
        users.react(portion, portion.best)
    with pytest.raises(ValueError, match="first_days: found 0, expected at least 1"):
        LiveUsers(users.platform, 0)
