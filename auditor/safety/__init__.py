"""Decisions before a bookie is stopped, drained, or removed permanently, and the scans that they are based on."""
