"""The HTTP API: server, routes, JSON documents, OpenAPI and the status page.

Does not belong here: what an operation does (``auditor.api.control``), access rules (``auditor.api.access``).
Start with ``server``.
"""
