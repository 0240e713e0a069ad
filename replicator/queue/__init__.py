"""Choose the next task, by severity, grace periods and parked tasks; and choose the workers that watch the tasks.

Not here: locking a task (``bookie.metadata.tasks.locks``); the repair itself (``replicator.repair``).
Start with ``task_queue``, then ``renewal`` for the time of the next listing, ``places`` for the turns in flight, and
``standby`` for many workers.
"""
