from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from interpreter import python

pytestmark = pytest.mark.site

ROOT = Path(__file__).resolve().parents[2]


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values[name] or "" for name in ("id", "name") if name in values}
        if tag == "a" and values.get("href"):
            self.hrefs.append(values["href"] or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    pytest.importorskip("sphinx", reason="needs Sphinx: make test-site")
    options = ("-W", "--keep-going", "-q", "-d", str(out / "doctrees"))
    done = python("-m", "sphinx", *options, str(ROOT / "docs"), str(out / "html"))
    assert done.returncode == 0, done.stderr[-3000:]
    return out / "html"


def broken(site: Path) -> list[str]:
    """Return links to a page or anchor that the site does not have."""
    pages = {path.resolve(): Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        for href in page.hrefs:
            parts = urlsplit(href)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            wanted = unquote(parts.fragment)
            if not target.exists() or (wanted and target in pages and wanted not in pages[target].ids):
                found.append(f"{path.name}: {href}")
    return found


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    assert len(list(site.rglob("*.html"))) > 20
    assert broken(site) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html">x</a><a href="#there">y</a><a href="#gone">z</a><i id="there"></i>'
    )
    assert broken(tmp_path) == ["a.html: b.html", "a.html: #gone"]


def test_the_public_names_are_documented(site: Path) -> None:
    import turntree.agents
    import turntree.envs
    import turntree.rewards
    import turntree.spec_tree

    for package in (turntree.agents, turntree.envs, turntree.rewards, turntree.spec_tree):
        name = package.__name__.rpartition(".")[2]
        text = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        for public in package.__all__:
            if isinstance(getattr(package, public), type) or callable(getattr(package, public)):
                assert f"{package.__name__}.{public}" in text, public
