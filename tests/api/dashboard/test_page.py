"""The files of the page: open to all, from this server alone, and found wherever the app is mounted."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from llamalane.api import ApiConfig, create_app
from llamalane.api.config import KeyConfig
from llamalane.api.dashboard.page import PAGE_FILES
from tests.api.asgi import client_of
from tests.api.fake_engine import ScriptedEngine, as_engine
from tests.api.test_keys import ALICE, sha256

pytestmark = pytest.mark.anyio

STATIC = Path(__file__).parents[3] / "api" / "dashboard" / "static"
TEXTS = {file.name: file.read_text(encoding="utf-8") for file in STATIC.iterdir()}
LOCKED = ApiConfig(keys=[KeyConfig(name="alice", sha256=sha256(ALICE))])


def app_of(api: ApiConfig | None = None) -> FastAPI:
    return create_app(as_engine(ScriptedEngine()), api=api)


@pytest.mark.parametrize("path", sorted(PAGE_FILES))
async def test_the_page_is_open_even_where_keys_are_set(path: str) -> None:
    async with client_of(app_of(LOCKED)) as client:
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.content == (STATIC / (path.partition("/dashboard/")[2] or "index.html")).read_bytes()
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].split(";")[0] in {
            "html": "text/html",
            "css": "text/css",
            "js": "text/javascript",
            "svg": "image/svg+xml",
        }.get(path.rpartition(".")[2], "text/html")
        head = await client.head(path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/dashboard/snapshot", "/dashboard/events", "/dashboard/other.js", "/dashboard/.."])
async def test_all_else_asks_for_a_key(path: str) -> None:
    async with client_of(app_of(LOCKED)) as client:
        assert (await client.get(path)).status_code == 401


async def test_what_the_browser_has_is_not_sent_again() -> None:
    async with client_of(app_of()) as client:
        first = await client.get("/dashboard")
        again = await client.get("/dashboard", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        other = await client.get("/dashboard", headers={"If-None-Match": '"another"'})
        assert other.status_code == 200


async def test_a_slash_at_the_end_leads_to_the_page() -> None:
    host = FastAPI()
    host.mount("/llm", app_of(LOCKED))
    for app, prefix in ((app_of(LOCKED), ""), (host, "/llm")):
        async with client_of(app) as client:
            answer = await client.get(f"{prefix}/dashboard/", follow_redirects=True)
            assert (answer.status_code, answer.url.path) == (200, f"{prefix}/dashboard")


async def test_everything_that_the_page_loads_is_found_where_the_app_is_mounted() -> None:
    host = FastAPI()
    host.mount("/llm", app_of(LOCKED))
    async with client_of(host) as client:
        page = await client.get("/llm/dashboard")
        wanted = [page.url.join(name) for name in re.findall(r'(?:src|href)="([^"#]+)"', page.text)]
        seen = set[httpx.URL]()
        while wanted:
            url = wanted.pop()
            answer = await client.get(url)
            assert answer.status_code == 200, url
            seen.add(url)
            imports = re.findall(r'^import .* from "(.+)";$', answer.text, re.MULTILINE)
            wanted += [found for name in imports if (found := url.join(name)) not in seen]
    assert {url.path.rpartition("/")[2] for url in seen} == TEXTS.keys() - {"index.html"}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    text = TEXTS[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text, re.IGNORECASE)
    assert not re.search(r"@import|url\(|\beval\b|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text)


@pytest.mark.parametrize("name", [name for name in sorted(TEXTS) if name.endswith(".html")])
def test_the_policy_forbids_nothing_that_the_page_does(name: str) -> None:
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", TEXTS[name])


@pytest.mark.parametrize("name", [name for name in sorted(TEXTS) if name.endswith(".js")])
def test_scripts_are_plain_modules_of_2020(name: str) -> None:
    newer = {
        "logical assignment": r"(\?\?|\|\||&&)=",
        "private fields": r"[\s.]#[a-z_]+\s*[(=;]",
        "at": r"\.at\(",
        "replaceAll": r"\.replaceAll\(",
        "findLast": r"\.findLast",
    }
    assert [what for what, pattern in newer.items() if re.search(pattern, TEXTS[name])] == []


async def test_where_the_dashboard_is_turned_off_there_is_none() -> None:
    async with client_of(app_of(ApiConfig(dashboard=False))) as client:
        for path in ("/dashboard", "/dashboard/", "/dashboard/main.js", "/dashboard/snapshot", "/dashboard/events"):
            assert (await client.get(path)).status_code == 404
