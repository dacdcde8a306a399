"""Which part of a list a client wants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list.

    Attributes:
        limit: the most entries.
        after: the id of the last entry before it, None for the begin of the list.
        descending: whether the newest come first.
        tenant: whose entries, None for everybody's.
        purpose: of files, only those for this; None for all.
    """

    limit: int
    after: str | None = None
    descending: bool = True
    tenant: str | None = None
    purpose: str | None = None


def page_query(table: str, page: Page) -> tuple[str, dict[str, object]]:
    """Return the query of one entry more than the page holds, from which it shows whether there are more."""
    direction, compare = ("DESC", "<") if page.descending else ("ASC", ">")
    conditions = ["TRUE"]
    if page.tenant is not None:
        conditions.append("tenant = :tenant")
    if page.purpose is not None:
        conditions.append("purpose = :purpose")
    if page.after is not None:
        conditions.append(f"number {compare} (SELECT number FROM {table} WHERE id = :after)")
    query = f"SELECT * FROM {table} WHERE {' AND '.join(conditions)} ORDER BY number {direction} LIMIT :limit"
    values: dict[str, object] = {"tenant": page.tenant, "purpose": page.purpose, "after": page.after}
    return query, {**values, "limit": page.limit + 1}
