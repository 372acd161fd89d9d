"""The documentation as a site: built without a warning, with every page in it, and without anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
from accessibility import violations
from browser import Browser, needs_browser

pytest.importorskip("sphinx", reason="the tools of the documentation are not installed")

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]+src="([^"]+)"|<link[^>]+rel="(?:stylesheet|icon)"[^>]+href="([^"]+)"')

LOOKED_AT = (
    ("README", 1280, False),
    ("docs/tutorial", 1920, False),
    ("docs/command-line", 1280, True),
    ("docs/index", 1920, True),
)


def build(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    words = ["-q", "-W", "--keep-going", "-c", str(ROOT / "docs/site"), "-b", "html", "-d", str(to / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *words, str(source), str(to / "site")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, by whichever process of the run comes first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documentation"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / "built").exists():
            built = build(ROOT, folder)
            assert built.returncode == 0, built.stderr
            (folder / "built").touch()
    return folder / "site"


@pytest.mark.slow
def test_the_site_is_whole_and_fetches_nothing(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (site / "docs").glob("*.html")} == pages
    interface = (site / "docs/api.html").read_text()
    assert "superkernel.compile_dynamic" in interface
    assert "Fuse a graph into one kernel." in interface
    assert (site / "searchindex.js").stat().st_size > 10_000
    (begin,) = re.findall(r'url=([^"]+)"', (site / "index.html").read_text())
    assert (site / begin).exists()
    for page in site.rglob("*.html"):
        for pair in FETCHED.findall(page.read_text()):
            (address,) = filter(None, pair)
            assert not address.startswith(("http:", "https:", "//")), f"{page.name} fetches {address}"


@needs_browser
@pytest.mark.slow
def test_the_site_in_a_browser(site: Path, browser: Browser) -> None:
    """In both themes and widths: nothing fails, nothing is fetched, pictures are there, everybody can use it."""
    for page, width, dark in LOOKED_AT:
        with browser.tab(width=width, dark=dark) as tab:
            tab.open((site / f"{page}.html").as_uri())
            assert (tab.errors, tab.fetched) == ([], []), page
            assert violations(tab) == [], (page, width, dark)
            assert tab.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)"), page


@needs_browser
@pytest.mark.slow
def test_the_gallery_s_pages_in_a_browser(site: Path, browser: Browser) -> None:
    """Every page that docs/gallery.md links to is there, and as good as any of the site."""
    with browser.tab(dark=True) as tab:
        tab.open((site / "docs/gallery.html").as_uri())
        linked = tab.run("[...document.querySelectorAll('a[href*=\"gallery/\"]')].map(link => link.href)")
        pages = sorted((site / "docs/gallery").glob("*.html"))
        assert {Path(url).name for url in linked} == {page.name for page in pages}
        assert len(pages) >= 4
        for page in pages:
            tab.open(page.as_uri())
            assert (tab.errors, tab.fetched) == ([], []), page
            assert violations(tab) == [], page
            assert tab.run("document.querySelectorAll('svg, canvas').length") > 0


@needs_browser
@pytest.mark.slow
def test_the_site_is_searched_offline(site: Path, browser: Browser) -> None:
    with browser.tab() as tab:
        tab.open((site / "search.html").as_uri() + "?q=imbalance")
        assert tab.until("document.querySelectorAll('#search-results li a').length >= 3")
        assert (tab.errors, tab.fetched) == ([], [])


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Page\n\n[nowhere](nowhere.md), [no heading](#no-heading)\n")
    built = build(tmp_path, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
    assert "no-heading" in built.stderr
