"""``make tiers``: measures whether the quick tiers of the test suite still find faults.

``measuring``: which tests run which lines, and how long each takes; ``mutants``: faults that are
put into the sources on purpose; ``reverts``: mended faults that are put back; ``tables``: the
results in docs/testing.md. All work happens in checkouts of the measured commit (``checkouts``),
and each result is kept in a file at once (``state``), from which an interrupted run continues.
"""
