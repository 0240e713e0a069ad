"""Choose bookies: for a new ensemble, and to replace a member.

``placement`` is the interface, ``search`` the pure search; ``feed`` keeps a placement up to date.
Start with ``placement``.
"""
