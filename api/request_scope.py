"""What the scope of a request says of it."""

from __future__ import annotations

from starlette.types import Scope

_REQUEST_ID = "llamalane.request_id"


def route_path(scope: Scope) -> str:
    """Return the path below the place where the app is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def set_request_id(scope: Scope, request_id: str) -> None:
    """Let the request with this scope have an id."""
    scope[_REQUEST_ID] = request_id


def request_id_of(scope: Scope) -> str | None:
    """Return the id of the request with this scope, None if it was given none."""
    request_id: str | None = scope.get(_REQUEST_ID)
    return request_id
