"""How fast the tasks of an audit read from ZooKeeper: limits, and feedback from the latency measured by each task."""
