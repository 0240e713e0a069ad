"""The metadata store itself: ``zookeeper`` is the adapter, ``memory`` its in-memory twin.

Both implement the port in ``bookie.metadata.port`` and pass the same contract tests. kazoo is imported in
``kazoo_connection`` only. Not here: the layout and content of nodes.
Start with ``zookeeper``.
"""
