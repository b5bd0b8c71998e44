"""Results of a measurement so far: one JSON object per line, written immediately."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any


class State:
    """Results by step and name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = Lock()
        self.results: dict[tuple[str, str], dict[str, Any]] = {}
        for line in file.read_text().splitlines() if file.is_file() else ():
            try:
                result = json.loads(line)
            except json.JSONDecodeError:  # the last line of a run that was killed
                continue
            self.results[result["step"], result["name"]] = result

    def get(self, step: str, name: str) -> dict[str, Any] | None:
        return self.results.get((step, name))

    def of(self, step: str) -> list[dict[str, Any]]:
        return [result for (s, _), result in self.results.items() if s == step]

    def add(self, step: str, name: str, **values: Any) -> dict[str, Any]:
        result = {"step": step, "name": name, **values}
        with self._lock, self.file.open("a") as file:
            file.write("\n" * (not _ends_a_line(self.file)) + json.dumps(result) + "\n")
            self.results[step, name] = result
        return result


def _ends_a_line(file: Path) -> bool:
    text = file.read_bytes()
    return not text or text.endswith(b"\n")
