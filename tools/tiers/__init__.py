"""``make tiers``: measures whether the quick tiers of the test suite still find bugs.

``measuring``: coverage by test, and the time of each test; ``mutants``: mutation testing of the
sources; ``reverts``: reverted bug fixes; ``tables``: the results in docs/development/tiers.md.
All work happens in checkouts of the measured commit (``checkouts``), and each result is written to
a file at once (``state``), from which an interrupted run continues.
"""
