"""Runs the rings of tests side by side and says what each took.

``rings.toml`` says what a ring may take, ``suites.toml`` what belongs to the long run. ``plan`` decides which files run
in which pytest process, ``lanes`` runs those processes, ``results`` reads what they reported and writes the summary.
Start reading at ``command``.
"""
