"""Authentication of callers and their permissions: tokens with roles, a rate limit per client, a log of changes.

The auditor's APIs and the administration of a bookie use the same rules and the same file format.
"""
