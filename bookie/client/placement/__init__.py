"""Choose bookies: for a new ensemble, and to replace a member.

``placement`` holds the policies, ``search`` the pure search, ``feed`` follows the registered bookies.
Start with ``placement``.
"""
