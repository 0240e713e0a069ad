"""Run the rings of tests concurrently, and print the time of each.

``rings.toml`` holds the budget of each ring, ``suites.toml`` the long suites. ``plan`` decides which files run in which
pytest process, ``lanes`` runs those processes, ``results`` reads their reports and writes the summary.
Start reading at ``command``.
"""
