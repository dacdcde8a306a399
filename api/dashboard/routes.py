"""The page, what it shows, and the stream that keeps it up to date."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse, RedirectResponse

from llamalane.api.authentication import caller_of
from llamalane.api.dashboard.feed import Feed
from llamalane.api.dashboard.page import PAGE_FILES, PAGE_PATH, PageFile
from llamalane.api.dashboard.stream import EventStream, Viewers
from llamalane.api.explain import find_entry
from llamalane.api.middleware import EVENTS_PATH
from llamalane.api.service import Service
from llamalane.scheduler import Engine, EngineState


def dashboard_router(service: Service) -> APIRouter:
    """Return the routes. The page is open to all; its data asks for a key as the rest of the API does."""
    router = APIRouter(include_in_schema=False)  # made for the page alone, and free to change with it
    for path, file in PAGE_FILES.items():
        _add_file(router, path, file)

    @router.get(f"{PAGE_PATH}/")
    async def lead_to_page(request: Request) -> Response:
        return RedirectResponse(f"../{PAGE_PATH.rpartition('/')[2]}")

    _add_data_routes(router, service)
    return router


def _add_file(router: APIRouter, path: str, file: PageFile) -> None:
    @router.get(path)
    @router.head(path)
    async def send_file(request: Request) -> Response:
        return file.response(request.headers)


def _add_data_routes(router: APIRouter, service: Service) -> None:
    viewers = Viewers()

    def engine_to_see() -> Engine:
        engine = service.any_engine()
        return engine if engine.state is EngineState.DRAINING else service.ready_engine()

    def feed_for(request: Request) -> Feed:
        caller = caller_of(request.scope)
        shows_all = caller.admin or not service.keys.personal
        return Feed(engine_to_see(), lambda tenant: service.shows(tenant, caller), shows_all=shows_all)

    @router.get(f"{PAGE_PATH}/snapshot")
    async def show_snapshot(request: Request) -> JSONResponse:
        """Tell what the engine does now and did of late: lanes, requests, KV cells, latencies.

        Where clients have keys of their own, only the requests of the key's tenant are told one by one, unless it may
        administer.
        """
        return JSONResponse(feed_for(request).snapshot())

    @router.get(f"{PAGE_PATH}/explanations/{{request_id:path}}")
    async def explain_request(request: Request, request_id: str) -> JSONResponse:
        """Tell where a request is, as `/v1/queue` does, but null where there is none: browsers complain of a 404."""
        return JSONResponse(find_entry(service, caller_of(request.scope), request_id))

    @router.get(EVENTS_PATH)
    async def follow(request: Request) -> Response:
        """Tell the same as server-sent events: a snapshot, then what has changed; after a while the stream ends."""
        return EventStream(engine_to_see(), lambda: feed_for(request), viewers)
