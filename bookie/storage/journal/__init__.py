"""The journal: durable appends with group commit, and reading it back after a restart.

``format`` is the byte layout, ``mark`` the second record of how far the journal was durable.
Start with ``journal``.
"""
