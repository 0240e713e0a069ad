"""The OpenAPI 3.1 description, made from the routes, so that the description and the routes agree. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from auditor.api.http.routes import JSON, Parameter, Route, RouteAnswer
from auditor.api.http.schemas import SCHEMAS
from auditor.api.problems import PROBLEM_TYPE
from bookie.runtime.access.tokens import Role

OPENAPI_VERSION: Final = "3.1.0"

_ABOUT: Final = (
    "Status and control of the auditor of one BookKeeper cluster. Every process answers; only the leader starts and "
    "changes runs, and the others answer 503 with the type `urn:bkheal:problem:not-leader` and its name. What needs a "
    "token is a setting, and described as this process has it. Errors are problem documents."
)


def describe(routes: Sequence[Route], version: str, open_to_all: Collection[Role]) -> dict[str, Any]:
    """Return the description of ``routes``.

    Args:
        routes: all of them.
        version: of the product.
        open_to_all: roles of a caller without a token.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.described_path, {})[route.method.lower()] = _operation(route, open_to_all)
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "bkheal auditor", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route, open_to_all: Collection[Role]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": {str(answer.status): _response(answer) for answer in route.answers},
    }
    parameters = [_parameter(parameter) for parameter in (*route.segments, *route.parameters)]
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": _ref(route.body)}}}
    if route.role is None:
        operation["security"] = []
        return operation
    operation["responses"]["default"] = _problem()
    operation["security"] = [{}, {"token": []}] if route.role in open_to_all else [{"token": []}]
    operation["x-bkheal-role"] = route.role.value
    return operation


def _response(answer: RouteAnswer) -> dict[str, Any]:
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
