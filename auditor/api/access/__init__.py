"""What the listening sides of the API need beside ``bookie.runtime.access``: proxies and TLS."""
