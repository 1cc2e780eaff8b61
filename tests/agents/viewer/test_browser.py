import asyncio
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from viewed_run import HOSTILE, write_run

from turntree.agents.loop.renderer import Renderer
from turntree.agents.viewer import view
from turntree.agents.viewer.page import LivePage, live_server
from turntree.agents.viewer.source import Source

pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: make test-site")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium or Chrome on the path")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module", params=[2_000, pytest.param(10_000, marks=pytest.mark.release)])
def episodes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def url(episodes: int, renderer: Renderer, chatml: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("viewed")
    with ThreadPoolExecutor(1) as elsewhere:  # playwright keeps a loop running in this thread
        recorded = elsewhere.submit(asyncio.run, write_run(folder / "run", renderer, episodes=episodes, steps=20))
        run = recorded.result()
    return view(run, folder / "page.html", tokenizer=chatml).path.as_uri()


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 800})
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("request", lambda request: None if request.url.startswith("file:") else errors.append(request.url))
    opened.goto(url)
    opened.wait_for_selector("html[data-ready]")
    yield opened
    opened.close()
    assert errors == []


def open_row(page: Any, number: int) -> None:
    page.click(f"#row-{number}")
    page.wait_for_selector("#dialogue")


def test_thousands_of_episodes_are_listed_with_few_elements(page: Any, episodes: int) -> None:
    assert page.inner_text("#summary").startswith(f"{episodes:,} of {episodes:,} episodes")
    assert page.locator(".row").count() < 60
    page.evaluate("document.getElementById('list').scrollTop = 1e9")
    page.wait_for_selector(f"#row-{episodes - 1}")


def test_filters_leave_what_they_say(page: Any, episodes: int) -> None:
    page.select_option("#outcome", "failure")
    assert page.inner_text("#summary").startswith(f"{episodes // 4:,} of")
    page.fill("#from", "20")
    assert page.inner_text("#summary").startswith(f"{episodes // 80} of")
    page.fill("#find", "adder no-such-word")
    assert page.inner_text("#summary").startswith("0 of")


def test_it_opens_on_the_first_episode_and_a_link_leads_to_another(page: Any, browser: Any, url: str) -> None:
    page.wait_for_selector("#row-0[aria-selected=true]")
    assert page.inner_text(".bubble.user .text") == "4+1"
    other = browser.new_page()
    for link, number in (("#episode-7", 7), ("#episode=9", 9)):
        other.goto(f"{url}{link}")
        other.wait_for_selector(f"#row-{number}[aria-selected=true]")
    other.close()


@pytest.fixture(scope="module")
def small(renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "run"
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(asyncio.run, write_run(folder, renderer, episodes=8, steps=2)).result()


@pytest.mark.parametrize("width", [390, 1280])
def test_two_runs_are_shown_side_by_side_or_stacked_on_a_phone(browser: Any, small: Path, width: int) -> None:
    source = Source.open(small)
    page = browser.new_page(viewport={"width": width, "height": 844})
    page.goto(view(source, small / "both.html", other_run=source).path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.inner_text("#summary").startswith("8 of 16 episodes")
    assert page.evaluate("document.documentElement.scrollWidth") == width, "nothing runs over"
    left, right = (section.bounding_box() for section in page.locator(".episode").all())
    assert (left["x"] == right["x"]) is (width == 390)
    assert min(left["width"], right["width"]) > 300
    page.close()


def test_a_served_page_shows_new_episodes_and_keeps_what_is_open(browser: Any, small: Path) -> None:
    with live_server(LivePage([small]), 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(f"http://127.0.0.1:{server.server_port}/#episode=3")
        page.wait_for_selector("#row-3[aria-selected=true]")
        file = sorted(small.glob("episodes/*.jsonl"))[-1]
        with file.open("ab") as written:
            written.write(file.read_bytes().splitlines(keepends=True)[0])
        page.wait_for_function("document.getElementById('summary').textContent.startsWith('9 of 9')")
        assert page.locator("#row-3[aria-selected=true]").count() == 1
        page.close()
        server.shutdown()


def test_message_text_is_searched_only_if_asked_for(page: Any) -> None:
    page.fill("#find", "heard")
    assert page.inner_text("#summary").startswith("0 of")
    page.check("#texts")
    page.wait_for_function("!/^(0 of|loading)/.test(document.getElementById('summary').textContent)")


def test_on_a_phone_the_episode_has_the_screen_and_the_list_is_a_drawer(browser: Any, url: str) -> None:
    phone = browser.new_page(viewport={"width": 390, "height": 844})
    phone.goto(url)
    phone.wait_for_selector("html[data-ready]")
    assert phone.evaluate("document.documentElement.scrollWidth") == 390, "nothing runs over"
    assert phone.locator(".bubble.assistant").first.bounding_box()["width"] > 300
    assert not phone.locator("#list").is_visible()
    phone.click("#drawer")
    assert phone.locator("#list").bounding_box()["height"] > 300
    phone.click("#row-3")
    phone.wait_for_selector("#dialogue")
    assert not phone.locator("#list").is_visible()
    phone.close()


def test_a_click_shows_the_dialogue_its_rewards_and_its_accepted_tokens(page: Any) -> None:
    open_row(page, 0)
    assert page.inner_text(".bubble.user .text") == "4+1"
    assert "heard 4" in page.inner_text(".bubble.tool")
    assert page.inner_text(".rewards") == "right\t1"
    policy = page.locator(".bubble.assistant").first
    assert policy.locator(".tok.a").count() == policy.locator(".tok").count() // 2
    green = policy.locator(".tok.a").first.evaluate("node => getComputedStyle(node).backgroundColor")
    other = policy.locator(".tok:not(.a)").first.evaluate("node => getComputedStyle(node).backgroundColor")
    assert green != other


@pytest.mark.parametrize(("paint", "marked"), [("mask", ".tok.m"), ("level", ".tok.lB"), ("logprob", ".tok[style]")])
def test_tokens_are_coloured_by_what_was_asked_for(page: Any, paint: str, marked: str) -> None:
    open_row(page, 0)
    page.click("#as-tokens")
    page.click(f"[data-paint={paint}]")
    background = "node => getComputedStyle(node).backgroundColor"
    asked = page.locator(f"#dialogue {marked}").nth(1).evaluate(background)
    prompt = page.locator("#dialogue .tok:not(.m)").first.evaluate(background)
    assert asked != prompt


def test_policy_output_is_text_and_not_markup(page: Any) -> None:
    open_row(page, 2)
    assert HOSTILE in page.locator(".bubble.assistant .text").first.inner_text()
    assert page.locator("#detail img").count() == 0
    assert page.title().endswith("turntree")


def test_the_tree_of_a_state_unfolds_and_folds(page: Any, episodes: int) -> None:
    open_row(page, 0)
    page.locator(".open-tree").first.click()
    page.wait_for_selector("details.tree")
    assert page.inner_text("details.tree > summary").startswith(f"400 turns from this state, {episodes - 400} more")
    shares = page.locator("details.tree .count").all_inner_texts()
    assert any("50 %" in share for share in shares)
    page.keyboard.press("c")  # other colours leave it open
    assert page.locator("details.tree").count() == 1
    page.locator(".open-tree").first.click()
    assert page.locator("details.tree").count() == 0


def test_the_keyboard_is_enough(page: Any, episodes: int) -> None:
    page.keyboard.press("/")
    page.keyboard.type("adder/4")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#row-1[aria-selected=true]")
    page.keyboard.press("End")
    page.wait_for_selector(f"#row-{episodes - 1}[aria-selected=true]")
    page.focus("#tab-episodes")
    page.keyboard.press("ArrowRight")
    assert page.locator("#curves figure").count() == 3
    assert page.locator("#curves").is_visible()
    assert not page.locator("#episodes").is_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Home")
    page.wait_for_selector("#row-0[aria-selected=true]")
    page.click("#tab-curves")
    page.click("#tab-episodes")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#row-1[aria-selected=true]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser: Any, url: str, scheme: str) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(f"{url}#episode-0")
    page.wait_for_selector("#dialogue")
    contrast = Path(__file__).with_name("contrast.js").read_text()
    for selector in (".facts", ".bubble.user .text", ".bubble.tool .who", ".tok.a", ".row small", ".score"):
        assert page.evaluate(contrast, selector) >= 4.5, selector
    page.close()
