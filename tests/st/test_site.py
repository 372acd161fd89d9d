"""The documentation as a site: built without a warning, with every page in it, and without anything from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the tools of the documentation are not installed")

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r'<(?:script|img|iframe)[^>]+src="([^"]+)"|<link[^>]+rel="(?:stylesheet|icon)"[^>]+href="([^"]+)"')


def build(source: Path, to: Path) -> subprocess.CompletedProcess[str]:
    words = ["-q", "-W", "--keep-going", "-c", str(ROOT / "docs/site"), "-b", "html", "-d", str(to / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *words, str(source), str(to / "site")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path)
    assert built.returncode == 0, built.stderr
    site = tmp_path / "site"
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert {path.stem for path in (site / "docs").glob("*.html")} == pages
    interface = (site / "docs/api.html").read_text()
    assert "superkernel.compile_dynamic" in interface
    assert "Fuse a graph into one kernel." in interface
    assert (site / "searchindex.js").stat().st_size > 10_000
    for page in site.rglob("*.html"):
        for pair in FETCHED.findall(page.read_text()):
            (address,) = filter(None, pair)
            assert not address.startswith(("http:", "https:", "//")), f"{page.name} fetches {address}"


@pytest.mark.slow
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Page\n\n[nowhere](nowhere.md), [no heading](#no-heading)\n")
    built = build(tmp_path, tmp_path)
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr
    assert "no-heading" in built.stderr
