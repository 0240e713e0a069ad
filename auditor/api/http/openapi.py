"""The OpenAPI 3.1 description, made of the routes themselves so that neither can lack what the other has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from auditor.api.access.tokens import Role
from auditor.api.http.routes import JSON, Answer, Parameter, Route
from auditor.api.http.schemas import SCHEMAS
from auditor.api.problems import PROBLEM_TYPE

OPENAPI_VERSION: Final = "3.1.0"

_ABOUT: Final = (
    "Status and control of the auditor of one BookKeeper cluster. Every process answers; only the leader starts and "
    "changes runs, and the others answer 503 with the type `urn:bkheal:problem:not-leader` and its name. Whether "
    "reads need a token is a setting. Errors are problem documents."
)


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The description of ``routes``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.described_path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "bkheal auditor", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(answer.status): _response(answer) for answer in route.answers},
    }
    parameters = [_segment(name, text) for name, text in route.segments.items()]
    parameters += [_parameter(parameter) for parameter in route.parameters]
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(route.body)}}}
    if route.role is None:
        operation["security"] = []
        return operation
    operation["responses"]["default"] = _problem()
    operation["security"] = [{"token": []}] if route.role is Role.OPERATE else [{}, {"token": []}]
    operation["x-bkheal-role"] = route.role.value
    return operation


def _response(answer: Answer) -> dict[str, Any]:
    response: dict[str, Any] = {"description": answer.description}
    if answer.content_type:
        schema = _ref(answer.schema) if answer.schema else {}
        response["content"] = {answer.content_type: {"schema": schema} if schema else {}}
    if answer.headers:
        response["headers"] = {
            name: {"description": text, "schema": {"type": "string"}} for name, text in answer.headers.items()
        }
    return response


def _problem() -> dict[str, Any]:
    return {
        "description": "The request was refused or failed.",
        "content": {PROBLEM_TYPE: {"schema": _ref("Problem")}},
    }


def _segment(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.is_required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
