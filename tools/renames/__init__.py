"""``python -m tools.renames``: shows that two commits differ in names and prose only.

``python_tokens`` and ``cpp_tokens`` read code as ``tokens``; ``names`` compares two versions of a
file, and finds the map between their names; ``commits`` finds the files of two commits, in pairs.
"""
