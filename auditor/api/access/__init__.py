"""Access code of the API servers in addition to ``bookie.runtime.access``: proxies and TLS."""
