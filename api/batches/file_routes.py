"""`/v1/files`: uploads the inputs of batches, and gives back what came of them."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse, JSONResponse

from llamalane.api.authentication import caller_of
from llamalane.api.batches.answer_schemas import File, FileDeleted, FileList
from llamalane.api.batches.bodies import ListQuery, UploadFields, UploadForm, parse_query
from llamalane.api.batches.expiry import earliest
from llamalane.api.batches.pages import Page
from llamalane.api.batches.records import Purpose, StoredFile, new_file_id
from llamalane.api.batches.upload import FORM_OVERHEAD, Upload, receive_upload
from llamalane.api.config import ApiConfig
from llamalane.api.openapi import answer, content, errors, query, request_body
from llamalane.api.service import Service
from llamalane.errors import FileTooLargeError, StorageLimitError

FILES_PATH = "/v1/files"
_CONTENT_TYPE = "application/octet-stream"


def largest_form(api: ApiConfig) -> int:
    """Return how many bytes the body of an upload may have."""
    return api.max_body_bytes if api.batches.folder is None else api.batches.max_file_bytes + FORM_OVERHEAD


def add_file_routes(router: APIRouter, service: Service) -> None:
    """Add the routes to `router`."""
    batches = service.batches

    described = answer(File, "The file.")

    @router.post(
        FILES_PATH,
        responses=described | errors(400, 404, 408, 413, 503),
        openapi_extra=request_body(UploadForm, media_type="multipart/form-data"),
    )
    async def upload_file(request: Request) -> JSONResponse:
        """Keep the file of a form (multipart/form-data) whose purpose is batch."""
        store, tenant = batches.store, caller_of(request.scope).tenant
        room = await store.check_room(tenant, batches.limits)
        async with store.writing() as path:
            limit = min(batches.config.max_file_bytes, room)
            try:
                kind = request.headers.get("content-type", "")
                upload = await receive_upload(request.stream(), kind, path, limit)
            except FileTooLargeError:
                if limit == batches.config.max_file_bytes:
                    raise
                message = f"there is no room for the file: {room} bytes more can be stored; delete some files"
                raise StorageLimitError(message) from None
            file = _file_of(upload, tenant)
            await store.add_file(path, file, batches.limits)
        return JSONResponse(file.describe())

    def _file_of(upload: Upload, tenant: str) -> StoredFile:
        fields = UploadFields.of_form(upload.fields)
        asked = None if fields.expires_after is None else fields.expires_after.seconds
        created = int(batches.now())
        expires = earliest(created, asked, batches.config.retention)
        return StoredFile(new_file_id(), tenant, upload.filename, Purpose.BATCH, upload.bytes, created, expires)

    @router.get(
        FILES_PATH,
        responses=answer(FileList, "The files.") | errors(400, 404, 503),
        openapi_extra=query(ListQuery),
    )
    async def list_files(request: Request) -> JSONResponse:
        """List the files of the key's tenant; all, for a key that may administer."""
        asked = parse_query(ListQuery, request.query_params)
        page = Page(
            limit=asked.limit,
            after=asked.after,
            descending=asked.order == "desc",
            tenant=service.tenant_shown_to(caller_of(request.scope)),
            purpose=asked.purpose,
        )
        files, more = await batches.store.list_files(page)
        return list_response([file.describe() for file in files], more=more)

    @router.get("/v1/files/{file_id}", responses=described | errors(404, 503))
    async def show_file(request: Request, file_id: str) -> JSONResponse:
        """Describe a file."""
        tenant = service.tenant_shown_to(caller_of(request.scope))
        return JSONResponse((await batches.store.find_file(file_id, tenant)).describe())

    @router.get(
        "/v1/files/{file_id}/content",
        response_class=Response,
        responses=content("What is in it.", {"type": "string", "format": "binary"}, _CONTENT_TYPE) | errors(404, 503),
    )
    async def read_file(request: Request, file_id: str) -> Response:
        """Return what is in a file."""
        tenant = service.tenant_shown_to(caller_of(request.scope))
        file = await batches.store.find_file(file_id, tenant)
        return FileResponse(batches.store.path(file.id), media_type=_CONTENT_TYPE)

    @router.delete("/v1/files/{file_id}", responses=answer(FileDeleted, "It is deleted.") | errors(404, 409, 503))
    async def delete_file(request: Request, file_id: str) -> JSONResponse:
        """Delete a file, unless it is the input of a batch that has not ended."""
        await batches.store.delete_file(file_id, service.tenant_shown_to(caller_of(request.scope)))
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})


def list_response(entries: list[dict[str, object]], *, more: bool) -> JSONResponse:
    """Return a page of a list as OpenAI's API shows it."""
    first, last = (entries[0]["id"], entries[-1]["id"]) if entries else (None, None)
    return JSONResponse({"object": "list", "data": entries, "first_id": first, "last_id": last, "has_more": more})
