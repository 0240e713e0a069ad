"""Who calls a process, and what this caller may do: tokens with roles, a rate for each client, a record of each change.

The auditor's faces and the administration of a bookie use the same rules and the same kind of file.
"""
