"""The files of the page: fixed, the same for everybody, and all that a browser may load for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.responses import Response

PAGE_PATH = "/dashboard"

_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asks whether it has changed, so that a newer server never runs an older page
}


class PageFile:
    """One file, in memory."""

    def __init__(self, name: str, content: bytes) -> None:
        self._content = content
        self._type = _TYPES[name.rpartition(".")[2]]
        self._tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'

    def response(self, headers: Headers) -> Response:
        """Return the answer to a request with these headers: nothing if the browser has the file already."""
        sent = {**_HEADERS, "ETag": self._tag}
        if self._tag in headers.get("if-none-match", ""):
            return Response(status_code=304, headers=sent)
        return Response(self._content, media_type=self._type, headers=sent)


def _load() -> dict[str, PageFile]:
    """Return the page and what it loads, by their paths."""
    loaded = {}
    for file in (files("llamalane.api.dashboard") / "static").iterdir():
        path = PAGE_PATH if file.name == "index.html" else f"{PAGE_PATH}/{file.name}"
        loaded[path] = PageFile(file.name, file.read_bytes())
    return loaded


PAGE_FILES: Mapping[str, PageFile] = _load()
PAGE_PATHS = frozenset({*PAGE_FILES, f"{PAGE_PATH}/"})
"""Open to all; the last one leads to the page."""
