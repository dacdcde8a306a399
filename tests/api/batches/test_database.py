"""The database file: made, recognised, and used in transactions."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import anyio
import pytest

from llamalane.api.batches.database import APPLICATION, VERSION, Database
from llamalane.errors import BatchStoreError, ConfigError

pytestmark = pytest.mark.anyio


def tables(connection: sqlite3.Connection) -> set[str]:
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    return {name for [name] in connection.execute(query)}


def setting(name: str, connection: sqlite3.Connection) -> object:
    [value] = connection.execute(f"PRAGMA {name}").fetchone()
    return value


async def test_a_new_file_gets_the_schema_and_an_old_one_keeps_what_it_has(tmp_path: Path) -> None:
    database = Database(tmp_path / "new.sqlite3")
    await database.open()
    assert await database.run(tables) == {"files", "batches", "results"}
    settings = ("application_id", "user_version", "journal_mode", "synchronous", "auto_vacuum", "foreign_keys")
    values = [await database.run(lambda rows, name=name: setting(name, rows)) for name in settings]  # type: ignore[misc]
    assert values == [APPLICATION, VERSION, "wal", 2, 2, 1]
    await database.run(lambda rows: rows.execute("INSERT INTO files VALUES (7, 'f', '', '', '', 1, 1, NULL)"))
    await database.close()
    await database.close()
    await database.open()
    assert await database.run(lambda rows: rows.execute("SELECT number FROM files").fetchall()) == [(7,)]
    await database.close()


async def test_what_fails_is_undone(tmp_path: Path) -> None:
    database = Database(tmp_path / "new.sqlite3")
    await database.open()

    def insert_and_fail(rows: sqlite3.Connection) -> None:
        rows.execute("INSERT INTO files VALUES (7, 'f', '', '', '', 1, 1, NULL)")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.run(insert_and_fail)
    with pytest.raises(BatchStoreError, match="no such table"):
        await database.run(lambda rows: rows.execute("SELECT * FROM nowhere"))
    assert await database.run(lambda rows: rows.execute("SELECT * FROM files").fetchall()) == []
    await database.close()
    with pytest.raises(BatchStoreError, match="is closed"):
        await database.run(tables)


async def test_a_transaction_that_has_begun_is_finished_though_nobody_waits_for_it(tmp_path: Path) -> None:
    database = Database(tmp_path / "new.sqlite3")
    await database.open()

    def insert(rows: sqlite3.Connection) -> None:
        rows.execute("INSERT INTO files VALUES (7, 'f', '', '', '', 1, 1, NULL)")
        anyio.from_thread.run_sync(tasks.cancel_scope.cancel)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.run, insert)
    assert await database.run(lambda rows: rows.execute("SELECT number FROM files").fetchall()) == [(7,)]
    await database.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TABLE precious (x)", "another application's"),
        ("PRAGMA user_version = 3", "another application's"),
        ("PRAGMA application_id = 5", "another application's"),
        (f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION + 1}", "a newer llamalane"),
    ],
)
async def test_a_database_of_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, statement: str, message: str
) -> None:
    path = tmp_path / "precious.sqlite3"
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=rf"precious\.sqlite3: .*{message}"):
        await Database(path).open()
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "precious.sqlite3"
    path.write_bytes(b"something else entirely " * 100)
    with pytest.raises(ConfigError, match=r"precious\.sqlite3: cannot use the database: file is not a database"):
        await Database(path).open()
