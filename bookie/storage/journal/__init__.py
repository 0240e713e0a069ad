"""The journal: durable appends with group commit, and the replay after a restart.

``format`` is the byte layout, and ``mark`` the second record of the durable end. Start with ``journal``.
"""
