"""Prompts that are kept on disk over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llamalane.errors import ConfigError
from llamalane.scheduler import KVConfig, Result
from tests.engine.conftest import MakeEngine
from tests.engine.running import EXACT, WatchedEngine, greedy
from tests.engine.teacher_forced import Judge, Solo, Written

pytestmark = pytest.mark.anyio

DOCUMENT = "The llama is a domesticated South American camelid. " * 8
LAYOUTS = ["paged", "partitioned"]


def kept_in(directory: Path, layout: str = "paged", **options: Any) -> KVConfig:
    return EXACT.model_copy(update={"disk": directory, "layout": layout, **options})


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)


async def ask(engine: WatchedEngine, question: str, **options: Any) -> Result:
    return await engine.generate(DOCUMENT + question, sampling=greedy(6), **options)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_document_is_not_computed_again_after_a_restart(
    make_engine: MakeEngine, tiny_model: Path, tmp_path: Path, layout: str
) -> None:
    kv = kept_in(tmp_path, layout)
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        assert (await ask(engine, "What is it?")).usage.cached_tokens == 0
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        handle = await engine.submit(DOCUMENT + "Where does it live?", sampling=greedy(6))
        second = await handle
        assert second.usage.cached_tokens >= len(DOCUMENT)
        assert engine.stats().restored_tokens >= len(DOCUMENT)
        written = Written(tuple(handle._request.tokens), second.tokens)
    with Solo(tiny_model, cells=1024) as solo:
        judge = Judge(solo, greedy(6))
        assert judge.judge([written], [0], judge.tolerance([written] * 8)).wrong == []


async def test_a_damaged_file_costs_only_the_computing(make_engine: MakeEngine, tmp_path: Path) -> None:
    kv = kept_in(tmp_path)
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        first = await ask(engine, "What is it?")
    (file,) = files_in(tmp_path)
    damage(file)
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        again = await ask(engine, "What is it?")
        assert again.text == first.text
        assert again.usage.cached_tokens == 0
        assert engine.stats().counters.cached_tokens == 0


async def test_no_other_tenant_gets_what_was_kept(make_engine: MakeEngine, tmp_path: Path) -> None:
    kv = kept_in(tmp_path)
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        await ask(engine, "What is it?", tenant="alice")
    async with make_engine(places=2, part=1024, kv=kv) as engine:
        assert (await ask(engine, "What is it?", tenant="bob")).usage.cached_tokens == 0
        assert (await ask(engine, "What is it?", tenant="alice")).usage.cached_tokens > 0


async def test_other_kinds_of_cells_are_not_used(make_engine: MakeEngine, tmp_path: Path) -> None:
    async with make_engine(places=2, part=1024, kv=kept_in(tmp_path)) as engine:
        await ask(engine, "What is it?")
    async with make_engine(places=2, part=1024, kv=kept_in(tmp_path, key_type="f16")) as engine:
        assert (await ask(engine, "What is it?")).usage.cached_tokens == 0


async def test_short_prompts_are_not_kept(make_engine: MakeEngine, tmp_path: Path) -> None:
    async with make_engine(places=2, part=1024, kv=kept_in(tmp_path)) as engine:
        await engine.generate("short", sampling=greedy(6))
    assert files_in(tmp_path) == []


async def test_a_directory_that_cannot_be_used_is_refused_at_the_start(make_engine: MakeEngine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError, match="file"):
        async with make_engine(places=2, part=1024, kv=kept_in(file)):
            pass
