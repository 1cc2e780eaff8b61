from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from recorded_run import EARLY, RIGHT, a_comparison, write_run

from turntree.agents.demo import report
from turntree.agents.demo.report import figures, story, write_report
from turntree.agents.demo.run_record import read_run

EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Tags with their attributes, and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag != "meta":  # the only element here that is never closed
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def run_folder(tmp_path):
    write_run(tmp_path)
    a_comparison().save(tmp_path / "comparison.json")
    return tmp_path


def test_the_report_shows_every_part_of_a_run_and_needs_nothing_else(run_folder):
    path = write_report(run_folder)
    assert path == run_folder / "report.html"
    page = Page(path.read_text())
    assert page.open == [], "every element is closed"
    assert [tag for tag, _ in page.tags].count("svg") == 4
    for text in ("success rate", "12 of 12 episodes equal", "calculator", "Made with", "arithmetic/train/0"):
        assert text in page.text
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not {a for _, attributes in page.tags for a in attributes} & {"src", "href", "onclick"}
    assert "url(" not in path.read_text()


@pytest.mark.parametrize("place", ["task", "said", "machine"])
def test_markup_in_a_run_does_not_become_markup_of_the_page(tmp_path, place, monkeypatch):
    said = (EVIL,) if place == "said" else RIGHT
    write_run(tmp_path, scripts=[said], task=EVIL if place == "task" else "t")
    if place == "said":  # the demo's tokenizer has no word for it, a real one does
        read = report.read_run
        monkeypatch.setattr(report, "read_run", lambda out: replace(read(out), decode=lambda token: EVIL))
    if place == "machine":
        monkeypatch.setattr("sys.argv", ["turntree", "demo", EVIL])
    text = write_report(tmp_path).read_text()
    assert "<script" not in text
    assert EVIL in Page(text).text, "it is shown all the same"


def test_without_escaping_the_same_run_would_become_markup(tmp_path, monkeypatch):
    import jinja2

    class Careless(jinja2.Environment):
        def __init__(self, **options):
            super().__init__(**{**options, "autoescape": False})

    write_run(tmp_path, task=EVIL)
    monkeypatch.setattr(jinja2, "Environment", Careless)
    assert "<script" in write_report(tmp_path).read_text()


def test_accepted_tokens_are_marked_and_others_are_not(run_folder, monkeypatch):
    run = read_run(run_folder)
    first = run.episode.turns[0]
    flags = (True, *(False,) * (len(first.completion.token_ids) - 1))
    turn = replace(first, completion=replace(first.completion, accepted=flags))
    marked = replace(run, episode=replace(run.episode, turns=(turn, *run.episode.turns[1:])))
    assert '<mark class="token" title="probability 1.000">calculator</mark>' in report.render(marked)
    assert '<mark class="token"' not in report.render(run)


def test_the_tree_folds_without_a_script_and_counts(run_folder):
    text = write_report(run_folder).read_text()
    tree = text[text.index('aria-label="Prefix tree"') :]
    assert "<details open><summary>" in tree
    assert re.search(r"9\u00d7</span>", tree), "three episodes in each of three steps"
    assert re.search(r"6\u00d7</span>\s*<code>calculator\(2\+12\)", tree)


def test_parts_that_are_missing_are_said_to_be(tmp_path):
    write_run(tmp_path, steps=1, scripts=[EARLY])
    assert Page(write_report(tmp_path).read_text()).open == []
    for path in tmp_path.glob("episodes/*"):
        path.unlink()
    text = write_report(tmp_path).read_text()
    for sentence in ("was not compared", "recorded no episodes", "recorded no turns"):
        assert sentence in text


def test_the_story_tells_gains_and_losses_as_they_are(run_folder):
    run = read_run(run_folder)
    assert "rose" not in story(replace(run, points=run.points[:1]))
    assert "1.50 times as fast, with exactly the same dialogues" in story(run)
    slow = replace(run, comparison=a_comparison(equal=3, seconds=3.0))
    assert "2.00 times as slow, with dialogues that are not all the same" in story(slow)
    falling = tuple(replace(p, success=1 - n / 30) for n, p in enumerate(run.points * 10))
    assert re.search(r"fell from \d+% to \d+%", story(replace(run, points=falling)))


def test_the_headline_compares_the_last_steps_with_the_first(run_folder):
    run = read_run(run_folder)
    points = tuple(
        replace(run.points[0], step=n + 1, success=float(n >= 20), tokens_per_step=1.0 + n) for n in range(30)
    )
    shown = {figure.name: figure for figure in figures(replace(run, points=points))}
    assert shown["success rate"].value == "100%"
    assert shown["success rate"].note == "last 10 steps; first 10: 0%"
    assert (shown["tokens per verify step"].value, shown["forward passes"].value) == ("25.50", "50%")
    assert shown["engine speed"].value == "1.50x"
