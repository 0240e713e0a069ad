"""Ask bookies which entries they have, and compare that with what the metadata says they should have.

``expected`` and ``verdict`` are pure, ``asking`` sends the requests, ``task`` runs inside a Spark executor.
"""
