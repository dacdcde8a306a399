"""`/v1/batches`: creates batches from files, and tells how far they are."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse

from llamalane.api.authentication import caller_of
from llamalane.api.batches.answer_schemas import Batch, BatchList
from llamalane.api.batches.bodies import BatchBody, BatchListQuery, parse_query
from llamalane.api.batches.file_routes import list_response
from llamalane.api.batches.pages import Page
from llamalane.api.batches.records import BatchOrder, BatchStatus, new_batch_id
from llamalane.api.openapi import answer, errors, prioritized_request, query
from llamalane.api.priority import PRIORITY_HEADER, choose_level
from llamalane.api.service import Service
from llamalane.ids import Level


def add_batch_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""
    batches = service.batches
    described = answer(Batch, "The batch.")

    @router.post(
        "/v1/batches",
        responses=described | errors(400, 403, 404, 408, 413, 503),
        openapi_extra=prioritized_request(BatchBody),
    )
    async def create_batch(request: Request) -> JSONResponse:
        """Create a batch from a file; it runs at the least urgent level unless `priority` says otherwise."""
        store = batches.store
        order = _order(BatchBody.parse(await request.body()), request)
        batch = await store.add_batch(order, batches.config.max_batches)
        batches.runner.wake()
        return JSONResponse(batch.describe())

    def _order(body: BatchBody, request: Request) -> BatchOrder:
        caller, created = caller_of(request.scope), int(batches.now())
        return BatchOrder(
            id=new_batch_id(),
            tenant=caller.tenant,
            key=caller.name,
            most_urgent=caller.most_urgent,
            separate_users=caller.separate_users,
            level=_level(body, request),
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            metadata=body.metadata,
            output_seconds=None if body.output_expires_after is None else body.output_expires_after.seconds,
            created_at=created,
            expires_at=created + body.window,
        )

    def _level(body: BatchBody, request: Request) -> Level:
        levels, header = service.any_engine().levels, request.headers.get(PRIORITY_HEADER)
        if body.priority is None and header is None:
            return levels.least_urgent
        most_urgent, cap = caller_of(request.scope).most_urgent, service.api.above_level == "cap"
        return choose_level(levels, body.priority, header, None, most_urgent=most_urgent, cap=cap)

    @router.get(
        "/v1/batches",
        responses=answer(BatchList, "The batches.") | errors(400, 404, 503),
        openapi_extra=query(BatchListQuery),
    )
    async def list_batches(request: Request) -> JSONResponse:
        """List the batches of the key's tenant, the newest first; all, for a key that may administer."""
        asked = parse_query(BatchListQuery, request.query_params)
        page = Page(asked.limit, asked.after, tenant=service.tenant_shown_to(caller_of(request.scope)))
        found, more = await batches.store.list_batches(page)
        return list_response([batch.describe() for batch in found], more=more)

    @router.get("/v1/batches/{batch_id}", responses=described | errors(404, 503))
    async def show_batch(request: Request, batch_id: str) -> JSONResponse:
        """Tell how far a batch is."""
        tenant = service.tenant_shown_to(caller_of(request.scope))
        return JSONResponse((await batches.store.find_batch(batch_id, tenant)).describe())

    @router.post("/v1/batches/{batch_id}/cancel", responses=described | errors(404, 409, 503))
    async def cancel_batch(request: Request, batch_id: str) -> JSONResponse:
        """Cancel a batch; what is done of it is kept."""
        tenant = service.tenant_shown_to(caller_of(request.scope))
        batch = await batches.store.cancel_batch(batch_id, tenant, int(batches.now()))
        if batch.status is BatchStatus.CANCELLING:
            batches.runner.break_off(batch.id)
        return JSONResponse(batch.describe())
