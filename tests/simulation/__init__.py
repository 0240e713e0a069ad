"""A whole cluster on virtual time: real modules on a simulated network, disks, metadata store and processes."""
