"""The documentation site: Sphinx reads the Markdown of this folder (``make site``).

The pages are plain Markdown, which GitHub shows as well. Two steps adapt them to the site. The
navigation has the pages that index.md links, under its headings. Links to files outside of this
folder lead to the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/paddle-ngraph/paddle-ngraph"
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)

project = "paddle-ngraph"
copyright = "the paddle-ngraph maintainers"
(release,) = re.findall(r'__version__ = "(.+)"', (ROOT / "paddle_ngraph/version.py").read_text())
extensions = ["myst_parser"]
exclude_patterns = ["_static"]
myst_enable_extensions = ["alert"]
myst_heading_anchors = 4
highlight_language = "none"
html_theme = "furo"
html_title = "paddle-ngraph"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "source_repository": REPOSITORY,
    "source_branch": "main",
    "source_directory": "docs/",
}


def _toctrees(index: str) -> str:
    """Returns a hidden toctree for each heading of the index, with the pages linked under it."""
    _, *sections = HEADING.split(index)
    made = []
    for caption, text in zip(sections[::2], sections[1::2]):
        pages = [name[: -len(".md")] for name, _ in LINK.findall(text) if name.endswith(".md")]
        entries = "\n".join(dict.fromkeys(page for page in pages if not page.startswith("..")))
        if entries:
            made.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n")
    return "\n".join(made)


def _to_repository(page: Path, name: str, anchor: str) -> str:
    """Returns the target of a link: the file in the repository if it is not in this folder."""
    target = (page.parent / name).resolve()
    if target.is_relative_to(DOCS) or not target.is_relative_to(ROOT):
        return name + anchor
    if not target.exists():
        logging.getLogger(__name__).warning("no such file: %s", name, location=str(page))
    kind = "tree" if target.is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{target.relative_to(ROOT).as_posix()}{anchor}"


def _adapt(app: Sphinx, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    text = source[0] + ("\n" + _toctrees(source[0]) if docname == "index" else "")
    source[0] = LINK.sub(lambda found: f"]({_to_repository(page, found[1], found[2] or '')})", text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _adapt)
    return {"parallel_read_safe": True}
