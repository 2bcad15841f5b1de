"""The documentation site: it is built strictly, its links resolve, and browsers show it without other servers."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urldefrag, urljoin

import pytest

from docs_site import api, build, commands, config_keys, methods
from support import chromium
from support.paths import ROOT
from support.trials import trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Request

pytestmark = pytest.mark.xdist_group("site")  # it is built once

BASE = "http://site/"
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. `--strict` turns every warning into a failure, unless `--quiet` hides the warnings."""
    directory, sources = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("sources")
    build.write(sources)
    configuration = ["--config-file", str(sources / "mkdocs.yml")]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", *configuration, "--site-dir", str(directory)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


class Elements(HTMLParser):
    """The links, the anchors and the loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if "id" in given:
            self.anchors.add(given["id"] or "")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag in LOADED and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def html(site: Path) -> dict[str, Elements]:
    """All pages by their addresses."""
    return {address(site, path): Elements(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def address(site: Path, path: Path) -> str:
    return BASE + path.relative_to(site).as_posix().removesuffix("index.html")


def test_links_and_anchors_of_the_built_pages_resolve(site: Path, html: dict[str, Elements]) -> None:
    broken = []
    for page, elements in html.items():
        for link in elements.links:
            target, anchor = urldefrag(urljoin(page, link))
            if not target.startswith(BASE) or page.endswith("404.html"):
                continue
            known = target in html or (site / unquote(target.removeprefix(BASE))).is_file()
            if not known or (anchor and target in html and unquote(anchor) not in html[target].anchors):
                broken.append((page, link))
    assert not broken


def test_every_page_is_reached_from_the_landing_page(html: dict[str, Elements]) -> None:
    reached, waiting = set(), [BASE]
    while waiting:
        page = waiting.pop()
        if page in html and page not in reached:
            reached.add(page)
            waiting += [urldefrag(urljoin(page, link))[0] for link in html[page].links]
    assert {page for page in html if not page.endswith("404.html")} == reached
    assert len(reached) > 80


def test_pages_load_nothing_from_elsewhere(site: Path, html: dict[str, Elements]) -> None:
    foreign = [(page, link) for page, one in html.items() for link in one.loaded if re.match(r"(https?:)?//", link)]
    assert not foreign
    for style in site.rglob("*.css"):
        assert not re.findall(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style


@pytest.mark.parametrize("method", methods.all_methods(), ids=lambda one: f"{one.kind}.{one.name}")
def test_every_method_has_a_page(site: Path, method: methods.Method) -> None:
    page = (site / method.path.removesuffix(".md") / "index.html").read_text(encoding="utf-8")
    for part in ("Definition", "Options", "Measured", "In Python"):
        assert f">{part}<" in page, part
    for option in methods.option_names(method):
        assert f"<code>{option}</code>" in page
    assert "doc-signature" in page


@pytest.mark.parametrize("module", list(api.MODULES))
def test_every_public_name_is_documented(html: dict[str, Elements], module: str) -> None:
    pages = [f"{BASE}reference/api/{module.rpartition('.')[2]}/"]
    pages += [page for page in html if page.startswith(f"{BASE}methods/")]
    anchors = {anchor for page in pages for anchor in html[page].anchors}
    names = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("rankfall.")}
    assert set(api.public_names(module)) <= names


def test_no_markup_is_left(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code|script)\b.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        left = re.findall(r":(?:func|class|meth|math|mod):|\.\. math|\$\$|\$[a-z]\$|\\\(|<autoref", text)
        assert not left, (path, left)


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "methods/objectives/lcron/index.html").read_text(encoding="utf-8")
    formula = re.search(r'<div class="formula">(.*?)</div>', page)
    assert formula is not None
    assert formula[1].startswith("<math")
    assert re.search(r"is the soft top-\s?<span class=.formula.>.*?</span>\s+inclusion of stage", page)
    assert "<mfrac>" in formula[1]


def test_every_verb_and_option_is_in_the_reference(site: Path) -> None:
    from typer.main import get_command

    from rankfall.cli import app

    page = (site / "reference/cli/index.html").read_text(encoding="utf-8")
    for name, command in commands.verbs(get_command(app)):
        part = page.partition(f'id="{name.replace(" ", "-")}"')[2].partition("<h2")[0]
        assert part, name
        for option in (option for parameter in command.params for option in parameter.opts if option[0] == "-"):
            assert f"<code>{option}" in part, (name, option)


def test_every_key_of_configurations_is_in_the_reference(site: Path) -> None:
    page = (site / "reference/configuration-keys/index.html").read_text(encoding="utf-8")
    for model in config_keys.models().values():
        schema = model.model_json_schema()
        sections = [schema, *schema.get("$defs", {}).values()]
        for key in (key for section in sections for key in section.get("properties", {})):
            assert f"<code>{key}</code>" in page, key


def test_every_key_of_configurations_has_a_description() -> None:
    for title, model in config_keys.models().items():
        schema = model.model_json_schema()
        for section in (schema, *schema.get("$defs", {}).values()):
            for key, about in section.get("properties", {}).items():
                assert about.keys() & {"description", "$ref", "const"}, (title, section["title"], key)


def test_numbers_of_methods_are_those_of_the_results(site: Path) -> None:
    """A row that a page of a method shows is a row of the page that it names."""
    row = "| LCRON, DFTopK | | | .8628±.0040 | | .8529±.0010 |"
    assert row in (ROOT / "docs/reference/results.md").read_text(encoding="utf-8")
    for path in ("methods/objectives/lcron", "methods/operators/dftopk"):
        page = (site / path / "index.html").read_text(encoding="utf-8")
        assert ".8628±.0040" in page
        assert "results/#lcrons-table-2-on-two-platforms" in page


# --- in a browser ---------------------------------------------------------------------------------------------------

SHOWN = [
    "",
    "tutorials/own-log/",
    "methods/objectives/lcron/",
    "reference/cli/",
    "reference/api/data/",
    "reference/results/",
]
SCHEMES: dict[Literal["light", "dark"], str] = {"light": "default", "dark": "slate"}
# The contrast of body text and of links with the background, the smaller of both, as WCAG defines it.
CONTRAST = """() => {
  const light = color => {
    const channels = color.match(/[\\d.]+/g).map(Number);
    const linear = channels.slice(0, 3).map(v => v / 255 <= 0.04045 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return {value: 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2], alpha: channels[3] ?? 1};
  };
  const back = light(getComputedStyle(document.body).backgroundColor).value;
  return Math.min(...["article p", "article h1", "article p a"].map(what => {
    const text = light(getComputedStyle(document.querySelector(what) ?? document.body).color);
    const value = text.alpha * text.value + (1 - text.alpha) * back;
    return (Math.max(value, back) + 0.05) / (Math.min(value, back) + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def server(site: Path) -> Iterator[str]:
    """The address of a server of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium.launched() as launched:
        yield launched


def failure(request: Request) -> list[str]:
    """Return the address of a request that failed; one that the next page interrupts is no failure."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url}"]


def opened(browser: Browser, server: str, width: int, problems: list[str]) -> Page:
    """Return a page that adds every console message, failed answer and foreign request to `problems`."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: problems.append(f"error: {error}"))
    page.on("requestfailed", lambda request: problems.extend(failure(request)))
    page.on("response", lambda answer: problems.extend([f"{answer.status}: {answer.url}"] * (answer.status > 399)))
    page.on("request", lambda one: problems.extend([one.url] * (not one.url.startswith((server, "data:")))))
    return page


@pytest.mark.browser
@chromium.needed
@pytest.mark.parametrize("width", [390, trial(800), trial(1280)])
def test_pages_fit_and_load_without_errors(browser: Browser, server: str, width: int) -> None:
    problems: list[str] = []
    page = opened(browser, server, width, problems)
    for path in SHOWN:
        page.goto(server + path)
        for scheme, name in SCHEMES.items():
            page.emulate_media(color_scheme=scheme)
            page.wait_for_function(f"document.body.dataset.mdColorScheme === '{name}'")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.evaluate(CONTRAST) > 4.5, path  # WCAG AA
    page.context.close()
    assert not problems


@pytest.mark.browser
@chromium.needed
@pytest.mark.parametrize(("words", "found"), [("lcron", "methods/objectives/lcron/"), ("auction", "faq/")])
def test_search_finds(browser: Browser, server: str, words: str, found: str) -> None:
    problems: list[str] = []
    page = opened(browser, server, 1280, problems)
    page.goto(server)
    page.get_by_role("textbox", name="Search").click()
    page.get_by_role("textbox", name="Search").press_sequentially(words)  # the page listens to keys
    page.wait_for_selector(".md-search-result__link")
    links = page.eval_on_selector_all(".md-search-result__link", "links => links.map(link => link.href)")
    page.context.close()
    assert any(link.startswith(server + found) for link in links), links
    assert not problems


@pytest.mark.browser
@chromium.needed
def test_formulas_are_drawn(browser: Browser, server: str) -> None:
    page = opened(browser, server, 1280, [])
    page.goto(f"{server}methods/objectives/lcron/")
    box = page.locator(".formula math").first.bounding_box()
    fraction = page.locator(".formula mfrac").first
    above, below = (fraction.locator(f":scope > *:nth-child({place})").bounding_box() for place in (1, 2))
    page.context.close()
    assert box is not None
    assert box["width"] > 200
    assert above is not None
    assert below is not None
    assert above["y"] < below["y"]  # a denominator is below its numerator


@pytest.mark.browser
@chromium.needed
def test_the_other_scheme_can_be_chosen(browser: Browser, server: str) -> None:
    page = opened(browser, server, 1280, [])
    page.emulate_media(color_scheme="light")
    page.goto(server)
    page.locator("label[title='Light scheme']").click()
    page.locator("label[title='Dark scheme']").click()
    page.wait_for_function("document.body.dataset.mdColorScheme === 'slate'")
    assert page.evaluate("document.body.dataset.mdColorScheme") == "slate"  # although the system prefers light
    page.context.close()
