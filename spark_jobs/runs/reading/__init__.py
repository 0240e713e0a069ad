"""Read the metadata of all ledgers for a run: from ZooKeeper, from a snapshot of it, or partly from the image.

``ledger_scan`` starts the Spark tasks that read. ``live_reading``, ``snapshot_reading`` and ``incremental_reading`` are
the sources, and ``completeness`` decides whether a reading saw every ledger.
"""
