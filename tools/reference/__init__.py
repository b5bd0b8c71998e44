"""``python -m tools.reference``: writes the pages of docs/reference that come from Python.

``docstrings``: docstrings as Markdown; ``pages``: the pages. ``make docs`` writes all tables, also
those of tools/caches.py, tools/patches.py, tools/warning_table.py and the operators.
"""
