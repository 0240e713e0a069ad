"""Authentication of callers and their permissions: tokens with roles, a rate per client, a record of each change.

The auditor's APIs and the administration of a bookie use the same rules and the same file format.
"""
