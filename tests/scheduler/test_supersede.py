"""Newer requests replace older ones under the same key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llamalane.ids import RequestId
from llamalane.scheduler.request import Request
from llamalane.scheduler.supersede import LatestRequests
from tests.scheduler.building import RequestMaker


def test_the_newest_request_replaces_the_one_before() -> None:
    latest: LatestRequests[RequestId] = LatestRequests()
    first, second, third = (RequestId(name) for name in ("first", "second", "third"))
    assert latest.replace("me", "editor", first) is None
    assert latest.replace("me", "editor", second) == first
    assert latest.replace("me", "editor", third) == second


def test_tenants_do_not_replace_each_others_requests() -> None:
    latest: LatestRequests[RequestId] = LatestRequests()
    assert latest.replace("me", "editor", RequestId("mine")) is None
    assert latest.replace("you", "editor", RequestId("yours")) is None
    assert latest.replace("me", "terminal", RequestId("my other")) is None
    assert latest.replace("me", "editor", RequestId("new")) == "mine"


def test_what_has_ended_is_not_replaced() -> None:
    latest: LatestRequests[RequestId] = LatestRequests()
    latest.replace("me", "editor", RequestId("old"))
    latest.forget(RequestId("old"))
    latest.forget(RequestId("never seen"))
    assert latest.replace("me", "editor", RequestId("new")) is None


def test_the_end_of_a_replaced_request_leaves_the_newer_one() -> None:
    latest: LatestRequests[RequestId] = LatestRequests()
    latest.replace("me", "editor", RequestId("old"))
    latest.replace("me", "editor", RequestId("new"))
    latest.forget(RequestId("old"))
    assert latest.replace("me", "editor", RequestId("newest")) == "new"


def test_a_request_does_not_replace_itself() -> None:
    latest: LatestRequests[RequestId] = LatestRequests()
    latest.replace("me", "editor", RequestId("only"))
    assert latest.replace("me", "editor", RequestId("only")) is None
    assert latest.replace("me", "terminal", RequestId("only")) is None
    assert latest.replace("me", "editor", RequestId("new")) is None, "it is known under its new key alone"
    assert len(latest) == 2


def test_requests_themselves_may_be_kept() -> None:
    latest: LatestRequests[Request] = LatestRequests()
    maker = RequestMaker()
    old, new = maker.make(), maker.make()
    latest.replace("", "key", old)
    assert latest.replace("", "key", new) is old


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["replace", "forget"]), st.sampled_from("ab"), st.sampled_from("kl"), st.integers(0, 5)
        )
    )
)
def test_it_agrees_with_a_list_of_all_that_happened(operations: list[tuple[str, str, str, int]]) -> None:
    latest: LatestRequests[int] = LatestRequests()
    known: list[tuple[str, str, int]] = []
    for operation, tenant, key, request in operations:
        known = [entry for entry in known if entry[2] != request]
        if operation == "replace":
            older = next((entry[2] for entry in known if entry[:2] == (tenant, key)), None)
            assert latest.replace(tenant, key, request) == older
            known = [entry for entry in known if entry[:2] != (tenant, key)]
            known.append((tenant, key, request))
        else:
            latest.forget(request)
        assert len(latest) == len(known)
