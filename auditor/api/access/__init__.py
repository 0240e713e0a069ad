"""Who may call the API: tokens, roles, rate limits, TLS and the trail of changes.

Start with ``access``.
"""
