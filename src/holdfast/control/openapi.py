"""The description of all routes, in the form of OpenAPI 3.1."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast._version import VERSION
from holdfast.control.messages import Errors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.control.routes import Endpoint

REFERENCE: Final = "#/components/schemas/{name}"
ALWAYS: Final = (401, 403, 405, 500)
"""Failures of every route."""
MEANINGS: Final = {
    200: "Success",
    202: "Accepted; the work goes on",
    400: "The request is wrong; the error names the field",
    401: "The token is missing or wrong",
    403: "The request names a foreign host or comes from a foreign page",
    404: "There is no such thing",
    405: "The route has no such method",
    408: "The body did not come in time",
    409: "The job does not run",
    413: "The body is too large",
    429: "Too many operations run",
    500: "The driver has failed to answer",
}
PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "job_id": {"description": "Id of the job.", "schema": {"type": "string", "minLength": 1}},
    "trigger_id": {
        "description": "Id of the operation.",
        "schema": {"type": "string", "minLength": 1},
    },
    "checkpoint_id": {
        "description": "Id of the checkpoint.",
        "schema": {"type": "integer", "minimum": 0},
    },
}


def description(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """The description of these routes, and of the one that serves it."""
    endpoints = list(endpoints)
    types = [Errors]
    types += [kind for one in endpoints for kind in (one.answer, one.body) if _is_named(kind)]
    # One type may serve several routes.
    _, components = msgspec.json.schema_components(dict.fromkeys(types), ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    paths["/openapi.json"] = {
        "get": {
            "summary": "This description",
            "operationId": "get_openapi",
            "responses": _responses(200, {"type": "object"}, ()),
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Control of Holdfast's jobs",
            "version": VERSION,
            "description": "The jobs of one driver, with Flink's routes and fields where it has "
            "them. Times are in milliseconds; timestamps count from 1970.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _is_named(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _schema(kind: Any) -> dict[str, Any]:
    if _is_named(kind):
        return {"$ref": REFERENCE.format(name=kind.__name__)}
    return {"type": "object"}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    parameters = [
        {"name": name, "in": "path", "required": True, **PARAMETERS[name]} for name in names
    ]
    for name, values in (endpoint.query or {}).items():
        schema = {"type": "string", "enum": list(values)}
        parameters.append({"name": name, "in": "query", "required": False, "schema": schema})
    words = re.findall(r"\w+", endpoint.path)
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "parameters": parameters,
        "responses": _responses(endpoint.status, _schema(endpoint.answer), endpoint.errors),
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": _schema(endpoint.body)}}
        required = any(field.required for field in msgspec.structs.fields(endpoint.body))
        described["requestBody"] = {"required": required, "content": content}
    return described


def _responses(
    success: int, schema: dict[str, Any], errors: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    found = {str(success): _response(success, schema)}
    for code in sorted({*errors, *ALWAYS, *((408,) if 413 in errors else ())}):
        found[str(code)] = _response(code, _schema(Errors))
    return found


def _response(code: int, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": MEANINGS[code], "content": {"application/json": {"schema": schema}}}
