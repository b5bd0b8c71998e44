from __future__ import annotations

from pathlib import Path

from tools.reference.pages import PAGES

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"

for name, page in PAGES.items():
    (FOLDER / f"{name}.md").write_text(page())
