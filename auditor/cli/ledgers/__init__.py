"""Commands that read and write ledgers and logs: ``bkheal ledger``, ``log``, ``simpletest``."""
