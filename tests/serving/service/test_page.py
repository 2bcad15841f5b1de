"""The funnel explorer, in a real browser, against the real service."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from rankfall.serving import Bundle
from support import chromium
from support.bundles import platform_bundle
from support.page_driver import (
    ATTACKS,
    DIGITS,
    address_of,
    assert_has_numbers,
    assert_shows,
    card,
    explain,
    focused,
    foreign_elements,
    funnel,
    hostile_bundle,
    in_its_list,
    in_window,
    narrow_bundle,
    rank_again,
    rows,
    show,
    step,
    tab_to,
)
from support.services import running
from support.trials import trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rankfall.serving.bundle import Ranking

pytestmark = [
    pytest.mark.browser,
    pytest.mark.service,
    chromium.needed,
    pytest.mark.xdist_group("page"),  # tests share bundles
]
PATIENCE = 90_000  # ms for something to happen on a busy machine


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as found:
        yield found


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow_bundle(tmp_path_factory.mktemp("other") / "bundle")


@pytest.fixture(scope="module")
def address(browser: Browser, other: Path) -> Iterator[str]:
    with running(platform_bundle(), other=other) as service:
        yield address_of(service)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return Bundle.load(platform_bundle())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return hostile_bundle(tmp_path_factory.mktemp("hostile") / "bundle")


@pytest.fixture(scope="module")
def hostile_address(browser: Browser, hostile: Bundle) -> Iterator[str]:
    with running(hostile.path) as service:
        yield address_of(service)


@dataclass
class Watch:
    """Errors and external requests of a page."""

    hosts: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
def page(browser: Browser, watch: Watch) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page = context.new_page()
    page.on("request", lambda request: watch.hosts.add(urlsplit(request.url).netloc))
    page.on("pageerror", lambda error: watch.problems.append(str(error)))
    page.on("console", lambda message: watch.problems.append(message.text) if message.type != "log" else None)
    yield page
    # Chromium itself reports every answer that is an error, and every request that a test aborts.
    unexpected = [one for one in watch.problems if not one.startswith("Failed to load resource")]
    context.close()
    assert unexpected == []


# --- the funnel of a user -----------------------------------------------------------------------------------------


def test_page_loads_without_external_resources(page: Page, watch: Watch, address: str, bundle: Bundle) -> None:
    show(page, address)
    expect(page.get_by_label("Example user")).to_have_value("0")  # it is ranked without a click
    assert_shows(page, funnel(bundle)[1])
    model = bundle.manifest["sha256"][:12]
    expect(page.locator("#models")).to_contain_text(f"{model} {len(bundle.items):,} items → retrieval 25 → ranking 10")
    assert page.locator("#example option").count() == 1 + len(bundle.examples())
    assert page.request.get(f"{address}/{page.get_by_text('API docs').get_attribute('href')}").ok
    assert watch.hosts == {urlsplit(address).netloc}
    assert watch.problems == []


def test_funnel_of_a_user_equals_that_of_the_bundle(page: Page, address: str, bundle: Bundle) -> None:
    show(page, address)
    rank_again(page, lambda: page.get_by_label("Example user").select_option("2"))
    ranking, stages = funnel(bundle, 2)
    assert_shows(page, stages)
    before = {str(one): rank for rank, one in enumerate(stages[0].ids, 1)}
    for row in rows(card(page, "ranking")):
        by = before[row["id"]] - row["rank"]
        assert row["moved"] == (f"▲ {by}" if by > 0 else f"▼ {-by}" if by < 0 else "=")
    counts = page.locator(".overview .counts").all_text_contents()
    assert counts == [f"{len(bundle.items):,} → 25", "25 → 10"]
    assert re.search(r"retrieval \d[\d.]* ms", page.locator(".spent").inner_text())
    assert page.get_by_text("ranking kept 10 of 25").count() == 1  # for screen readers
    assert len(ranking.ids) == 10


def test_url_restores_the_state_of_the_page(page: Page, address: str, bundle: Bundle, browser: Browser) -> None:
    show(page, address)
    page.get_by_label("user_id").fill("7")
    page.get_by_label("k", exact=True).fill("4")
    rank_again(page, page.get_by_role("button", name="Rank").click)
    shown = rows(card(page, "ranking"))
    dropped = shown[-1]["id"]
    page.get_by_label("Find an item").fill(dropped)
    page.keyboard.press("Enter")
    page.wait_for_selector(".path")
    again = browser.new_context().new_page()
    again.goto(page.url)
    again.wait_for_selector(".path")
    assert rows(card(again, "ranking")) == shown
    assert again.locator(".path .id").text_content() == dropped
    expect(again.locator(".asked")).to_have_text("returned: the first 4")
    again.context.close()


def test_form_and_json_stay_synchronised_to_the_last_digit(page: Page, address: str) -> None:
    show(page, address)
    large = 2**60 + 1  # not representable as a floating point number
    page.get_by_label("user_id").fill(str(large))
    page.get_by_text("Whole request as JSON").click()
    editor = page.get_by_label("Request as JSON")
    assert json.loads(editor.input_value())["user"]["user_id"] == large
    with page.expect_request("**/rank") as sent:
        page.keyboard.press("Control+Enter")
    assert json.loads(sent.value.post_data or "")["user"]["user_id"] == large
    editor.fill('{"user": {"age": 4}, "k": 3}')
    expect(page.get_by_label("age")).to_have_value("4")
    expect(page.get_by_label("user_id")).to_have_value("")
    editor.fill('{"user": {"age": ')
    expect(page.locator("#json-error")).to_contain_text("not valid JSON")
    expect(page.get_by_label("age")).to_be_disabled()  # a change would overwrite the typed text
    page.get_by_role("button", name="Rank").click()
    expect(editor).to_be_focused()


# --- where an item went -------------------------------------------------------------------------------------------


def test_search_shows_stage_and_score_of_a_dropped_item(page: Page, address: str, bundle: Bundle) -> None:
    _, (retrieval, ranking) = funnel(bundle)
    assert retrieval.threshold is not None
    assert ranking.threshold is not None
    show(page, f"{address}/#example=0")
    last = ranking.ids[-1]
    explain(page, str(last))
    state, text = step(page, "ranking")
    assert state == "dropped"
    assert "rank 25 of 25" in text
    score = ranking.scores[-1]
    assert_has_numbers(text, score, ranking.threshold - score, ranking.threshold)
    assert step(page, "retrieval")[0] == "kept"
    expect(page.locator(".badge.bad")).to_have_text("dropped by ranking")

    absent = next(one for one in bundle.items.ids(range(100)) if one not in retrieval.ids)  # type: ignore[arg-type]
    scores = bundle.score(bundle.examples()[0]["request"], [absent])
    explain(page, str(absent))
    state, text = step(page, "retrieval")
    assert state == "dropped"
    assert_has_numbers(text, scores["retrieval"][0], retrieval.threshold - scores["retrieval"][0], retrieval.threshold)
    state, text = step(page, "ranking")
    assert state == "never"
    assert_has_numbers(text, scores["ranking"][0], ranking.threshold)
    assert ("would have been kept" in text) == (scores["ranking"][0] > ranking.threshold)


def test_search_for_a_kept_an_excluded_and_an_unknown_item(page: Page, address: str, bundle: Bundle) -> None:
    ranking, _ = funnel(bundle)
    request = {**bundle.examples()[0]["request"], "k": 3, "exclude": [ranking.ids[0]]}
    show(page, f"{address}/#request={quote(json.dumps(request))}")
    explain(page, str(ranking.ids[0]))
    state, text = step(page, "retrieval")
    assert (state, "The request excludes it" in text) == ("out", True)
    expect(page.locator(".path .badge").first).to_have_text("left out by the request")
    assert_blames_the_request(page, bundle, ranking.ids[0], "because the request excludes it")
    explain(page, str(ranking.ids[1]))
    assert step(page, "ranking")[0] == "kept"
    assert "rank 1 of 25" in step(page, "ranking")[1]
    explain(page, str(ranking.ids[5]))
    state, text = step(page, "ranking")
    assert (state, "the request asked for 3 items" in text) == ("cut", True)
    explain(page, "123456789")
    expect(page.locator(".path")).to_contain_text("not an item of this bundle")
    explain(page, "seven")
    expect(page.locator("#item-error")).to_have_text("found seven, expected an item id, which is an integer")


def assert_blames_the_request(page: Page, bundle: Bundle, item: int | str, why: str) -> None:
    """Check that a later stage neither repeats that an earlier one dropped the item nor shows a score."""
    state, text = step(page, "ranking")
    assert state == "never"
    assert f"Not received, {why}." in text
    assert "dropped it" not in text
    assert "would have been" not in text
    assert_has_numbers(text, bundle.score(bundle.examples()[0]["request"], [item])["ranking"][0])


def test_search_for_an_item_that_is_not_a_candidate(page: Page, address: str, bundle: Bundle) -> None:
    ranking, _ = funnel(bundle)
    request = {**bundle.examples()[0]["request"], "candidates": ranking.ids[1:]}
    show(page, f"{address}/#request={quote(json.dumps(request))}")
    explain(page, str(ranking.ids[0]))
    state, text = step(page, "retrieval")
    assert (state, "It is not a candidate of the request" in text) == ("out", True)
    assert_blames_the_request(page, bundle, ranking.ids[0], "because it is not a candidate of the request")


def test_ids_with_markup_and_items_that_the_index_misses(page: Page, hostile_address: str, hostile: Bundle) -> None:
    request = hostile.examples()[0]["request"]
    _, (retrieval, ranking) = funnel(hostile)
    show(page, f"{hostile_address}/#example=0")
    page.get_by_role("button", name="Show all 200").first.click()
    page.get_by_role("button", name="Show all 200").last.click()
    assert_shows(page, [retrieval, ranking])

    everything = hostile.items.ids(list(range(2000)))  # type: ignore[arg-type]
    scores = hostile.score(request, everything)["retrieval"]
    kept = set(retrieval.ids)
    assert retrieval.threshold is not None
    missed = [
        (score, one)
        for one, score in zip(everything, scores, strict=True)
        if one not in kept and score > retrieval.threshold + 2 * DIGITS
    ]
    score, item = max(missed)
    explain(page, str(item))
    state, text = step(page, "retrieval")
    assert (state, "but the index did not find it (approximate index" in text) == ("missed", True)
    assert_has_numbers(text, score, retrieval.threshold)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("main script, main img").count() == 0


def test_markup_in_values_is_shown_as_text(browser: Browser, hostile_address: str, hostile: Bundle) -> None:
    """Without the content security policy, so that injected markup would be executed."""
    request = hostile.examples()[0]["request"]
    with browser.new_context(bypass_csp=True) as context:
        context.set_default_timeout(PATIENCE)
        page = context.new_page()
        show(page, f"{hostile_address}/#example=0")
        (title,) = hostile.items.display(hostile.items.rows([funnel(hostile)[0].ids[0]]))["title"]
        assert page.get_by_text(title).count() > 0
        for item in hostile.items.ids(np.arange(len(ATTACKS))):
            explain(page, str(item))
            assert foreign_elements(page) == 0
        page.get_by_text("Whole request as JSON").click()
        for attack in ATTACKS:
            for content in (
                {**request, "candidates": [attack, f"{attack}7"]},  # an unknown item
                {**request, attack: 1},  # an unknown field
                {**request, "user": {attack: attack}},
            ):
                page.get_by_label("Request as JSON").fill(json.dumps(content))
                with page.expect_response("**/rank"):
                    page.get_by_role("button", name="Rank").click()
                page.evaluate("() => new Promise((done) => setTimeout(done, 50))")  # the response is shown
                assert foreign_elements(page) == 0
        page.goto(f"{hostile_address}/docs")
        assert "hacked" in page.locator("pre.answer").inner_text()
        assert foreign_elements(page) == 0
        page.goto(f"{hostile_address}/<img src=x onerror=hacked=1>")
        assert "unknown path" in page.content()
        assert page.evaluate("typeof hacked") == "undefined"


def test_long_lists_are_paged(page: Page, hostile_address: str, hostile: Bundle) -> None:
    everything = hostile.items.ids(list(range(2000)))  # type: ignore[arg-type]
    request = {**hostile.examples()[0]["request"], "candidates": everything}
    show(page, hostile_address)
    page.get_by_text("Whole request as JSON").click()
    page.get_by_label("Request as JSON").fill(json.dumps(request))
    rank_again(page, page.get_by_role("button", name="Rank").click)
    _, stages = funnel(hostile, 0, candidates=everything)
    shown = rows(card(page, "retrieval"))
    assert [row["rank"] for row in shown] == [
        *range(1, 51),
        *range(191, 211),
    ]  # best ones, threshold
    expect(card(page, "retrieval").locator(".gap")).to_have_text(["140 items not shown", "1,790 items not shown"])
    explain(page, str(stages[0].ids[999]))
    chosen = card(page, "retrieval").locator("[aria-selected=true]")
    expect(chosen.locator(".rank")).to_have_text("1,000")
    while (more := card(page, "retrieval").locator(".more")).is_visible():
        more.click()
    assert_shows(page, stages[:1])


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_error_is_shown_at_its_field(page: Page, address: str) -> None:
    show(page, f"{address}/#example=0")
    age = page.get_by_label("age")
    age.fill("old")
    page.keyboard.press("Control+Enter")
    expect(page.locator("[id='field-user.age-error']")).to_have_text("found 'old', expected a whole number from 0 on")
    expect(age).to_have_attribute("aria-invalid", "true")
    expect(age).to_be_focused()
    expect(page.get_by_role("alert").filter(has_text="invalid value")).to_be_visible()
    assert page.locator(".card").count() == 0  # results of other requests are removed
    age.fill("3")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".card")
    assert page.locator("[aria-invalid], .notice").count() == 0
    # errors without a field are shown at the editor, which opens
    show(page, f"{address}/#example=1")
    page.get_by_text("Whole request as JSON").click()
    page.get_by_label("Request as JSON").fill('{"sequences": {"history": [{"video_id": "x"}]}}')
    page.keyboard.press("Control+Enter")
    expect(page.locator("#json-error")).to_contain_text("found 'x'")


def open_editor(page: Page, text: str) -> None:
    page.get_by_text("Whole request as JSON").click()
    page.get_by_label("Request as JSON").fill(text)


@pytest.mark.parametrize(("width", "height"), [(1280, 800), trial(1280, 700), trial(390, 844)])
def test_invalid_json_is_reported_and_old_results_are_removed(
    page: Page, address: str, width: int, height: int
) -> None:
    page.set_viewport_size({"width": width, "height": height})
    show(page, f"{address}/#example=0")
    open_editor(page, '{"user": {"age": "old"}}')
    page.keyboard.press("Control+Enter")
    expect(page.locator(".notice")).to_contain_text("invalid value")
    page.get_by_label("Request as JSON").fill("{oops")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".notice")).to_have_count(1)
    expect(page.locator(".notice")).to_contain_text("The request cannot be read")
    expect(page.locator("#json-error")).to_contain_text("not valid JSON")
    page.wait_for_timeout(600)  # scrolling is smooth
    assert in_window(page.locator("#json-error"))
    assert in_window(page.get_by_label("Request as JSON"))
    assert width < 1000 or in_window(page.locator(".notice"))
    page.get_by_label("Request as JSON").fill("{}")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".card")
    assert page.locator("[aria-invalid], .notice").count() == 0
    # an old ranking is not shown as the answer
    page.get_by_label("Request as JSON").fill("[]")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".notice")).to_contain_text("expected an object")
    assert page.locator(".card").count() == 0
    assert page.locator("#announcement").text_content() == ""


@pytest.mark.parametrize("height", [800, trial(700), trial(560)])
def test_button_does_not_cover_the_editor(page: Page, address: str, height: int) -> None:
    page.set_viewport_size({"width": 1280, "height": height})
    show(page, address)
    page.get_by_text("Whole request as JSON").click()
    edges = "document.querySelector('.inputs').getBoundingClientRect().bottom"
    for name in ("time", "k", "Request as JSON"):
        page.get_by_label(name, exact=True).focus()
        assert page.evaluate(f"{edges} <= document.getElementById('rank').getBoundingClientRect().top")
    assert in_window(page.locator("#rank"))


def test_failed_search_leaves_no_results(page: Page, address: str) -> None:
    show(page, f"{address}/#example=0")
    explain(page, "seven")
    expect(page.get_by_label("Find an item")).to_have_attribute("aria-invalid", "true")
    page.keyboard.press("Escape")
    assert focused(page, "tagName") in {"BODY", "BUTTON"}
    page.keyboard.press("/")
    expect(page.get_by_label("Find an item")).to_be_focused()
    page.keyboard.press("Escape")
    assert focused(page, "tagName") == "BODY"
    page.get_by_role("button", name="Rank").click()
    expect(page.locator("[aria-invalid]")).to_have_count(0)
    expect(page.locator("#item-error")).to_have_text("")


def test_values_that_cannot_be_typed_have_no_field(page: Page, address: str) -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}

    def derived(route: Route) -> None:
        content = route.fetch().json()
        for about in content["bundles"].values():
            properties = about["schema"]["properties"]
            context = properties.setdefault("context", {"type": "object"}).setdefault("properties", {})
            context["moment"] = {"anyOf": [{"type": "null"}, row]}
            context["place"] = {"anyOf": [{"type": "string"}, {"type": "null"}, row]}
        route.fulfill(json=content)

    page.route("**/model", derived)
    show(page, address)
    expect(page.get_by_label("place", exact=True)).to_have_attribute("placeholder", "text")
    assert page.get_by_label("moment", exact=True).count() == 0
    assert page.get_by_label("time", exact=True).count() == 1


def test_page_retries_a_busy_service(page: Page, address: str) -> None:
    answers = [503, 503]

    def answer(route: Route) -> None:
        if answers:
            body = json.dumps({"error": "queue: 256 requests wait"})
            route.fulfill(status=answers.pop(), headers={"Retry-After": "1"}, body=body)
        else:
            route.continue_()

    show(page, address)
    page.route("**/rank", answer)
    page.get_by_role("button", name="Rank").click()
    expect(page.get_by_role("alert").filter(has_text="busy")).to_contain_text("Trying again in 1 s")
    page.wait_for_selector(".card")
    assert page.locator(".notice").count() == 0


@pytest.mark.parametrize(
    ("status", "says"), [(504, "took too long"), (500, "refused"), (0, "does not respond")], ids=str
)
def test_failure_is_shown_and_can_be_retried(page: Page, address: str, status: int, says: str) -> None:
    body = json.dumps({"error": "deadline: 1000 ms are over"})
    show(page, f"{address}/#example=0")
    expect(page.locator("#announcement")).to_contain_text("ranking kept 10 of 25")
    page.route("**/rank", lambda route: route.fulfill(status=status, body=body) if status else route.abort())
    page.get_by_role("button", name="Rank").click()
    expect(page.get_by_role("alert").filter(has_text=says)).to_be_visible()
    assert page.locator("#announcement").text_content() == ""
    page.unroute("**/rank")
    page.get_by_role("button", name="Try now").click()
    page.wait_for_selector(".card")
    assert page.locator(".notice").count() == 0


def test_page_detects_a_replaced_bundle(page: Page, bundle: Bundle, other: Path) -> None:
    with running(platform_bundle()) as service, service.client() as client:
        show(page, f"{address_of(service)}/#example=0")
        answered = bundle.examples()[0]["request"]
        narrow = Bundle.load(other)
        assert client.reload(other).code == 200
        ranking = narrow.rank(answered, explain=True)
        assert ranking.stages is not None
        # scores of the new bundle do not belong to the old funnel, so the page requests the funnel again
        explain(page, str(ranking.ids[0]))
        expect(page.locator("#models")).to_contain_text(f"{narrow.manifest['sha256'][:12]} 1,684 items → retrieval 12")
        assert_shows(page, ranking.stages)
        expect(page.locator(".path .badge")).to_have_text("in the results")


# --- two bundles --------------------------------------------------------------------------------------------------


def test_two_bundles_side_by_side(page: Page, address: str, bundle: Bundle, other: Path) -> None:
    request = bundle.examples()[3]["request"]
    ours, theirs = (one.rank(request, explain=True) for one in (bundle, Bundle.load(other)))
    show(page, f"{address}/#example=3")
    page.get_by_text("compare", exact=True).click()
    page.wait_for_selector(".comparison")
    shared = set(ours.ids) & set(theirs.ids)
    assert 0 < len(shared) < 10
    moves = [abs(ours.ids.index(one) - theirs.ids.index(one)) for one in shared]
    figures = page.locator(".comparison .figures strong").all_text_contents()
    assert figures == [
        f"{len(shared)} of 10",
        str(moves.count(0)),
        f"{sum(moves) / len(moves):.1f}",
        f"{10 - len(shared)} | {10 - len(shared)}",
    ]
    assert page.locator("path.slope").count() == len(shared)
    expect(page.locator(".comparison .legend")).to_contain_text("higher in other")
    for line, path in zip(page.locator(".bundle").all(), (bundle.path, other), strict=True):
        expect(line).to_contain_text(f"bundle {path.name}")
    assert "of the smaller" in page.locator(".comparison thead").inner_text()
    assert ours.stages is not None
    assert theirs.stages is not None
    for title, mine, yours in (("main", ours.stages, theirs.stages), ("other", theirs.stages, ours.stages)):
        for one, another in zip(mine, yours, strict=True):
            shown = rows(card(page, one.name, title))
            assert [row["id"] for row in shown] == [str(item) for item in one.ids]
            kept = set(one.ids[: one.kept]) - set(another.ids[: another.kept])
            assert {row["id"] for row in shown if row["only"]} == {str(item) for item in kept}
    for line, one, another in zip(page.locator(".comparison tbody tr").all(), ours.stages, theirs.stages, strict=True):
        both = [set(trace.ids[: trace.kept]) for trace in (one, another)]
        count = len(both[0] & both[1])
        share = 100 * count / min(map(len, both))
        assert [int(cell) for cell in line.locator("td").all_text_contents()[:3]] == [*map(len, both), count]
        assert abs(float(line.locator("td").last.inner_text().rstrip(" %")) - share) <= 0.5
    explain(page, str(ours.ids[0]))
    assert page.locator(".path h3").count() == 2
    assert "view=compare" in page.url


def test_two_bundles_over_all_examples(page: Page, address: str, bundle: Bundle, other: Path) -> None:
    """Every figure against the rankings of both bundles."""
    examples = bundle.examples()
    both = [
        one.rank([example["request"] for example in examples], explain=True) for one in (bundle, Bundle.load(other))
    ]
    show(page, f"{address}/#example=3&view=compare")
    section = page.get_by_role("region", name="All examples")
    expect(section.locator("h2")).to_have_text(f"All {len(examples)} examples")
    relevant = [set(example["relevant"]) for example in examples]
    assert all(relevant)

    def kept(rankings: list[Ranking], stage: int) -> list[set[Any]]:
        return [set(one.stages[stage].ids[: one.stages[stage].kept]) for one in rankings if one.stages is not None]

    tables = section.locator("table").all()
    for stage, line in enumerate(tables[0].locator("tbody tr").all()):
        ours, theirs = (kept(of, stage) for of in both)
        overlap = [len(one & two) / min(len(one), len(two)) for one, two in zip(ours, theirs, strict=True)]
        recalls = [
            np.mean([len(one & truth) / len(truth) for one, truth in zip(of, relevant, strict=True)])
            for of in (ours, theirs)
        ]
        expected = [f"{100 * value:.1f}\N{NO-BREAK SPACE}%" for value in (np.mean(overlap), *recalls)]
        assert line.locator("td").all_text_contents() == expected
    lines = tables[1].locator("tbody tr")
    assert lines.count() == len(examples)
    for place in (0, 5, 15):
        mine, yours = (set(of[place].ids) for of in both)
        assert lines.nth(place).locator("td").all_text_contents()[:3] == [
            f"{len(mine & yours)} of 10",
            f"{len(mine & relevant[place])} of {len(relevant[place])}",
            f"{len(yours & relevant[place])} of {len(relevant[place])}",
        ]
    rank_again(page, lines.nth(5).locator("button").click)
    expect(page.get_by_label("Example user")).to_have_value("5")
    expect(section.locator("h2")).to_be_visible()


def test_bundles_whose_requests_differ_are_not_compared(page: Page, address: str) -> None:
    page.route(
        "**/rank",
        lambda route: (
            route.fulfill(status=422, body=json.dumps({"error": "requests[0].user.age: found 'age'", "field": "x"}))
            if '"requests"' in (route.request.post_data or "")
            else route.continue_()
        ),
    )
    show(page, f"{address}/#example=3&view=compare")
    expect(page.locator("#all-examples .notice")).to_contain_text(
        "The examples cannot be compared: requests[0].user.age"
    )
    assert page.locator(".comparison").count() == 1  # of this request


# --- what is known about items and values -------------------------------------------------------------------------


def test_attributes_and_relevant_items_are_shown(page: Page, address: str, bundle: Bundle) -> None:
    show(page, f"{address}/#example=1")
    _, stages = funnel(bundle, 1)
    example = bundle.examples()[1]
    expect(page.locator(".names")).to_have_text("Below each item: author_id · category_level_two · category_level_one")
    for stage in stages:
        of_items = bundle.items.display(bundle.items.rows(stage.ids))
        expected = [" · ".join(map(str, values)) for values in zip(*of_items.values(), strict=True)]
        section = card(page, stage.name)
        assert section.locator(".about .values").all_text_contents() == expected
        marked = section.locator(".item:has(.reaction:not(.other))").evaluate_all(
            "all => all.map(one => one.dataset.key)"
        )
        assert set(marked) == {str(one) for one in stage.ids if one in example["relevant"]}
    chips = page.locator(".chip")
    assert chips.count() == len(example["relevant"])
    first = chips.first
    item = int(first.get_attribute("data-item") or "")
    kept = [set(stage.ids[: stage.kept]) for stage in stages]
    end = next(
        (f"dropped by {stage.name}" for stage, of in zip(stages, kept, strict=True) if item not in of), "in the results"
    )
    expect(first.locator(".chip-end")).to_contain_text(end)
    first.click()
    expect(page.locator(".path .id")).to_have_text(str(item))
    expect(page.locator(".path")).to_contain_text("in the log: relevant")
    expect(page.locator(".path")).to_contain_text(
        f"author_id\N{NO-BREAK SPACE}{bundle.items.display(bundle.items.rows([item]))['author_id'][0]}"
    )
    # an edited request is no longer that of the log
    page.get_by_label("age").fill("3")
    rank_again(page, page.get_by_role("button", name="Rank").click)
    assert page.locator(".chip, .reaction").count() == 0


def test_recall_as_served_is_shown(page: Page, address: str, bundle: Bundle) -> None:
    show(page, address)
    measured = bundle.manifest["measured"]
    summary = page.locator(".measured summary")
    expect(summary).to_contain_text(f"Joint recall {100 * measured['joint_recall']['value']:.1f}\N{NO-BREAK SPACE}%")
    expect(summary).to_contain_text(f"over {measured['items']:,} items, on {measured['requests']} logged requests")
    summary.click()
    cells = page.locator(".measured tbody tr").last.locator("td").all_text_contents()
    ranking = measured["stages"][-1]
    assert cells[:2] == ["25", "10"]
    assert cells[2].startswith(f"{100 * ranking['kept']['value']:.1f}\N{NO-BREAK SPACE}%")
    assert cells[3] == f"{100 * ranking['chance']:.1f}\N{NO-BREAK SPACE}%"


def test_stage_at_which_no_relevant_item_arrived(page: Page, address: str) -> None:
    def without_arrivals(route: Route) -> None:
        response = route.fetch()
        about = response.json()
        for bundle in about["bundles"].values():
            bundle["measured"]["stages"][-1]["kept"] = {"value": None, "low": None, "high": None}
        route.fulfill(response=response, json=about)

    page.route("**/model", without_arrivals)
    show(page, address)
    assert page.get_by_text("no relevant item arrived").count() == 1
    page.unroute("**/model")


def test_values_never_seen_are_flagged(page: Page, address: str) -> None:
    show(page, address)
    page.get_by_label("user_id").fill("123456789")
    rank_again(page, page.get_by_role("button", name="Rank").click)
    expect(page.locator(".notice")).to_have_text("Never seen in traininguser.user_id: 123456789")
    expect(page.locator("[id='field-user.user_id-error']")).to_have_text("never seen in training")
    assert page.locator("[aria-invalid]").count() == 0
    page.get_by_label("user_id").fill("3")
    rank_again(page, page.get_by_role("button", name="Rank").click)
    assert page.locator(".notice").count() == 0
    expect(page.locator("[id='field-user.user_id-error']")).to_have_text("")


def test_bundle_without_examples_waits_for_a_request(page: Page, other: Path) -> None:
    with running(other) as service:
        page.goto(address_of(service))
        page.wait_for_selector(".idle")
        assert page.locator(".card").count() == 0
        rank_again(page, page.get_by_role("button", name="Rank").click)


@pytest.mark.parametrize(("width", "columns"), [(1280, 3), trial(800, 3), trial(390, 1)])
def test_three_stages_are_side_by_side(page: Page, address: str, width: int, columns: int) -> None:
    def third(route: Route) -> None:
        """Add a stage to the description and to the answer of the service."""
        content = route.fetch().json()
        if "bundles" in content:
            for about in content["bundles"].values():
                about["stages"].append({**about["stages"][-1], "name": "last"})
        else:
            content["stages"].append({**content["stages"][-1], "name": "last"})
        route.fulfill(json=content)

    page.route("**/model", third)
    page.route("**/rank", third)
    page.set_viewport_size({"width": width, "height": 900})
    show(page, f"{address}/#example=0")
    assert page.locator(".cards .card").count() == 3
    lefts = page.locator(".cards .card").evaluate_all("all => all.map(one => one.getBoundingClientRect().left)")
    assert len(set(lefts)) == columns
    overflow = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.className)"
    assert page.locator(".cards .item, .cards .score, .cards .moved").evaluate_all(overflow) == []


# --- by keyboard, and on a telephone ------------------------------------------------------------------------------


def test_page_works_with_the_keyboard_alone(page: Page, address: str, bundle: Bundle) -> None:
    show(page, address)
    tab_to(page, "#rank")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    rank_again(page, lambda: page.keyboard.press("Enter"))
    _, (retrieval, ranking) = funnel(bundle)
    tab_to(page, "[role=option]")
    assert focused(page, "dataset.key") == str(retrieval.ids[0])
    page.keyboard.press("ArrowDown")
    assert focused(page, "dataset.key") == str(retrieval.ids[1])
    lit = page.locator(".lit")
    assert set(lit.evaluate_all("all => all.map(one => one.dataset.key)")) == {str(retrieval.ids[1])}
    assert lit.count() == 2  # in both stages
    page.keyboard.press("ArrowRight")
    assert focused(page, "closest('.card').dataset.stage") == "ranking"
    assert focused(page, "dataset.key") == str(retrieval.ids[1])
    page.keyboard.press("End")
    assert focused(page, "dataset.key") == str(ranking.ids[-1])
    page.keyboard.press("Enter")
    page.wait_for_selector(".path")
    expect(page.locator(".badge.bad")).to_have_text("dropped by ranking")
    assert focused(page, "dataset.key") == str(ranking.ids[-1])  # the next key continues from there
    page.keyboard.press("/")
    page.keyboard.type(str(ranking.ids[0]))
    page.keyboard.press("Enter")
    expect(page.locator(".path .badge")).to_have_text("in the results")


@pytest.mark.parametrize(
    "state", [trial(""), trial("#example=1"), trial("#example=1&item=5"), "#example=1&view=compare&item=5", "error"]
)
def test_small_screen_needs_no_horizontal_scrolling(page: Page, address: str, state: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, f"{address}/{'' if state == 'error' else state}")  # until then the first example replaces what is typed
    if state == "error":
        page.get_by_text("Features").click()
        page.get_by_label("age").fill("old")
        page.get_by_role("button", name="Rank").click()
    page.wait_for_selector({"error": ".notice"}.get(state, ".path" if "item" in state else ".card"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "all => all.filter(one => one.getBoundingClientRect().right > 391).map(one => one.className)"
    assert page.locator("main *:not(option)").evaluate_all(wide) == []


def test_small_screen_scrolls_lists_to_the_item_or_the_threshold(page: Page, address: str, bundle: Bundle) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    _, (retrieval, ranking) = funnel(bundle)
    show(page, f"{address}/#example=0")
    lists = [card(page, stage.name) for stage in (retrieval, ranking)]
    assert not in_its_list(lists[1].locator("[role=option]").last)
    for item in (ranking.ids[-1], retrieval.ids[-1], ranking.ids[0]):
        explain(page, str(item))
        for one in lists:
            assert in_its_list(one.locator("[aria-selected=true]"))
    absent = next(one for one in bundle.items.ids(range(100)) if one not in retrieval.ids)  # type: ignore[arg-type]
    explain(page, str(absent))
    for one in lists:
        assert in_its_list(one.locator(".threshold"))
    page.wait_for_timeout(600)  # scrolling is smooth
    assert in_window(page.locator(".path h3"))


def test_small_screen_shows_the_whole_table_of_stages(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, f"{address}/#example=1&view=compare")
    assert page.locator(".comparison .scroll").evaluate("box => box.scrollWidth <= box.clientWidth")


def test_small_screen_shows_ids_of_any_length(page: Page, hostile_address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    show(page, f"{hostile_address}/#example=0")
    page.locator(".item").first.click()
    page.wait_for_selector(".path")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
