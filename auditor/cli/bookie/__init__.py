"""The commands below ``bkheal bookie``: they inspect a running bookie, or work on the directories of a stopped one."""
