"""``python -m tools.site_links FOLDER``: checks the links between the HTML pages of a folder.

Sphinx checks the links of Markdown; this checks the links of the pages that a browser gets, with
those of the navigation, pictures and styles. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Names that Sphinx writes into each page, whether or not there is such a page.
IGNORED = frozenset({"genindex.html"})


class _Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(folder: Path) -> list[str]:
    """Returns the links of all pages in a folder that lead to no file or no anchor in it."""
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in sorted(page.links):
            address = urlsplit(link)
            if address.scheme or address.netloc or address.path in IGNORED:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            anchors = pages[target].anchors if target in pages else None
            is_known = anchors is None or unquote(address.fragment) in (anchors | {""})
            if not target.exists() or not is_known:
                broken.append(f"{path.relative_to(folder)}: {link}")
    return broken


def main(arguments: list[str]) -> int:
    """Prints the broken links of the folder, and returns the exit status."""
    (folder,) = arguments
    found = broken_links(Path(folder).resolve())
    print("\n".join(found) if found else f"all links in {folder} are valid")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
