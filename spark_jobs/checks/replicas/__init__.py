"""Ask bookies for their entries, and compare the answers with the metadata.

``expected`` and ``verdict`` are pure, ``asking`` sends the requests, ``task`` runs inside a Spark executor.
"""
