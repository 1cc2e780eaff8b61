import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from recorded_run import EARLY, RIGHT, a_comparison, write_run

from turntree.agents.demo import report
from turntree.agents.demo.compared import Comparison
from turntree.agents.demo.headline import effect, figures, story
from turntree.agents.demo.report import write_report
from turntree.agents.demo.run_record import read_run
from turntree.spec_tree.budget.choices import Choice

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
    for text in (
        "success rate",
        "12 of 12 episodes equal",
        "Made with",
        "2+3*4",
        ": Evaluate",
    ):
        assert text in page.text
    assert f"turntree view {run_folder}" in page.text, "the episodes themselves"
    assert f"turntree tree {run_folder}" in page.text
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object"}
    assert not {a for _, attributes in page.tags for a in attributes} & {"src", "href", "onclick"}
    assert "url(" not in path.read_text()


@pytest.mark.parametrize("place", ["task", "machine"])
def test_markup_in_a_run_does_not_become_markup_of_the_page(tmp_path, place, monkeypatch):
    write_run(tmp_path, scripts=[RIGHT], prompt=EVIL if place == "task" else "2+3*4")
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

    write_run(tmp_path, prompt=EVIL)
    monkeypatch.setattr(jinja2, "Environment", Careless)
    assert "<script" in write_report(tmp_path).read_text()


def test_parts_that_are_missing_are_said_to_be(tmp_path):
    write_run(tmp_path, steps=1, scripts=[EARLY])
    assert Page(write_report(tmp_path).read_text()).open == []
    for path in tmp_path.glob("episodes/*"):
        path.unlink()
    text = write_report(tmp_path).read_text()
    assert "was not compared" in text
    assert "The task, " not in text


def test_story_and_headline_tell_gains_and_losses_as_they_are(run_folder):
    run = read_run(run_folder)
    assert "rose" not in story(replace(run, points=run.points[:1]))
    assert "1.50 times as fast, with exactly the same dialogues" in story(run)
    slow = replace(run, comparison=a_comparison(equal=3, seconds=3.0))
    assert "2.00 times as slow, with dialogues that are not all the same" in story(slow)
    falling = tuple(replace(p, success=1 - n / 30) for n, p in enumerate(run.points * 10))
    assert re.search(r"fell from \d+% to \d+%", story(replace(run, points=falling)))
    points = tuple(
        replace(run.points[0], step=n + 1, success=float(n >= 20), tokens_per_step=1.0 + n) for n in range(30)
    )
    shown = {figure.name: figure for figure in figures(replace(run, points=points))}
    assert shown["success rate"].value == "100%"
    assert shown["success rate"].note == "last 10 steps; first 10: 0%"
    assert (shown["tokens per verify step"].value, shown["forward passes"].value) == ("25.50", "2.00x")
    assert shown["engine seconds"].value == "1.50x"


def uneven(*seconds):
    """A comparison whose steps took so many engine seconds with drafts, and 1.5 without."""
    step = a_comparison().steps[0]
    return Comparison(
        steps=tuple(
            replace(step, step=n, speculative=replace(step.speculative, seconds=taken))
            for n, taken in enumerate(seconds, start=1)
        )
    )


def test_the_headline_tells_passes_and_seconds_of_both_thirds_with_their_scatter(run_folder):
    run = replace(read_run(run_folder), comparison=uneven(1.5, 1.5, 1.5, 1.0, 1.0, 1.0, 0.5, 1.0, 1.5))
    shown = {figure.name: figure for figure in figures(run)}
    assert (shown["forward passes"].value, shown["engine seconds"].value) == ("2.00x", "1.50x")
    note = shown["engine seconds"].note
    assert "last third (middle half of its steps: 1.25 to 2.25)" in note
    assert "first third 1.00x (1.00 to 1.00)" in note


def test_the_plot_of_seconds_has_a_band_that_is_as_wide_as_the_steps_scatter(run_folder):
    def heights(comparison):
        page = Page(report.render(replace(read_run(run_folder), comparison=comparison)))
        bands = [dict(attributes) for tag, attributes in page.tags if tag == "polygon"]
        assert len(bands) == 4, "passes and seconds, with drafts and without"
        corners = [float(corner.split(",")[1]) for corner in bands[-1]["points"].split()]
        half = len(corners) // 2
        return [low - high for low, high in zip(corners[:half], reversed(corners[half:]), strict=True)]

    assert max(heights(uneven(1.0, 1.0, 1.0, 1.0))) == 0
    assert min(heights(uneven(0.5, 1.5, 0.5, 1.5))) > 10


def test_what_the_budget_chose_is_summed_by_the_number_of_requests(run_folder):
    few = Choice(most_rows=4, passes=10, rows=40, drafted=80, accepted=40, seconds=0.03, plain_seconds=0.02)
    many = Choice(most_rows=128, passes=5, rows=600, drafted=0, accepted=0, seconds=0.05, plain_seconds=0.05)
    steps = tuple(replace(step, choices=(few, many)) for step in a_comparison().steps * 2)
    comparison = Comparison(steps=steps)
    comparison.save(run_folder / "comparison.json")
    text = write_report(run_folder).read_text()
    table = text[text.index('aria-label="What the draft budget chose"') :]
    table = " ".join(re.sub(r"<[^>]*>", " ", table[: table.index("</table>")]).split())
    assert "3 to 4 20 2.00 2.00 3.0 2.0 1.50 1.33" in table, "two steps of the last third"
    assert "65 to 128 10 0.00 1.00 10.0 10.0 1.00 1.00" in table
    a_comparison().save(run_folder / "comparison.json")
    assert "What the draft budget chose" not in write_report(run_folder).read_text(), "an engine without a budget"


def test_the_effect_is_told_in_plain_words_whatever_it_was():
    words = effect(a_comparison())
    assert "50% of the passes" in words
    assert "67% of the 1.5 seconds" in words
    assert "same token for token" in words
    assert "200% of the 1.5 seconds" in effect(a_comparison(seconds=3.0))
    assert "Some dialogues differ" in effect(a_comparison(equal=3))
    step = a_comparison().steps[0]
    idle = Comparison(steps=(replace(step, speculative=replace(step.speculative, drafted=0, accepted=0)),))
    assert "drafted nothing" in effect(idle)
