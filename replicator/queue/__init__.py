"""Choose the next task: order by severity, grace periods, parked tasks; and choose the workers that watch them.

Not here: locking a task (``bookie.metadata.tasks.locks``); the repair itself (``replicator.repair``).
Start with ``task_queue``, and with ``standby`` for many workers.
"""
