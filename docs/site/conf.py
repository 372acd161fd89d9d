"""The documentation as a site: `make docs` writes it to build/site. The source folder is the repository's root, so that
every relative link of a page leads where it leads on its own."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from sphinx.application import Sphinx

from superkernel.core.version import __version__

project = "SuperKernel"
author = "the SuperKernel authors"
copyright = author  # the name that Sphinx reads
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "signature"
autodoc_member_order = "groupwise"
html_theme = "furo"
html_title = f"SuperKernel {release}"
html_copy_source = False
html_show_search_summary = False  # they are fetched, which browsers refuse to pages from files
html_static_path = ["static"]
html_extra_path = ["root"]  # where a browser begins that is shown the folder
html_css_files = ["site.css"]
html_js_files = ["site.js"]
highlight_language = "none"  # blocks without a language are commands and what they print
# Pictures that the repository's host draws.
suppress_warnings = ["misc.highlighting_failure"]
_ARGUMENT = re.compile(r"([a-z_]+(?:, [a-z_]+)*): (\S.*)$")


def _as_list(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """What docstrings say of arguments, `name: text` with further lines indented, as items of a list."""
    for index, line in enumerate(lines):
        found = _ARGUMENT.match(line)
        if found:
            following = index + 1
            while following < len(lines) and lines[following].startswith("    "):
                lines[following] = "  " + lines[following].strip()
                following += 1
            lines[index] = f"- **{found[1]}**: {found[2]}"
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].startswith("- **") != lines[index - 1].startswith(("- **", "  ")):
            lines.insert(index, "")


def _gallery(app: Sphinx, error: Exception | None) -> None:
    """The pages that docs/gallery.md links to."""
    if error is None and (Path(app.srcdir) / "docs/gallery.md").exists():
        runpy.run_path(str(Path(app.confdir) / "gallery.py"))["make"](Path(app.outdir) / "docs/gallery")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _as_list)
    app.connect("build-finished", _gallery)
