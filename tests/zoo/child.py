"""Runs forms of one family in a process of its own, and prints a line of JSON for each.

python -m tests.zoo.child paddleclas/MixNet_S "old predictor" "old Executor"
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from dataclasses import asdict
from functools import partial
from pathlib import Path

MARK = "zoo: "


def main(identity: str, *wanted: str) -> None:
    """Prints the name of each form before it runs, and its record afterwards."""
    from tests.zoo import packages

    packages.allow_absent()
    warnings.simplefilter("ignore")
    from tests.zoo import forms, timing
    from tests.zoo.families import FAMILIES

    family = next(family for family in FAMILIES if family.id == identity)
    with tempfile.TemporaryDirectory() as folder:
        subject = forms.Subject(family, Path(folder))
        for form in wanted:
            print(f"{MARK}{json.dumps(form)}", flush=True)
            function = forms.FORMS.get(form) or partial(timing.timed, form)
            record = forms.run(subject, form, function)
            print(f"{MARK}{json.dumps(asdict(record))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
