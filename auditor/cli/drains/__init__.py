"""Commands that take bookies out of service: drains, and the removal of their records."""
