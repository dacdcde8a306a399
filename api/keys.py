"""API keys: who may ask, as which tenant, how urgently, and who may administer.

Only the SHA-256 of a key is kept. A key has to be long and random for that: such a hash is quick to compute, so
whoever gets hold of it could try out short ones.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from llamalane.api.config import ApiConfig, KeyConfig, KeysFile
from llamalane.errors import ConfigError
from llamalane.ids import MOST_URGENT, Level
from llamalane.scheduler import EngineConfig, PriorityLevels
from llamalane.scheduler.config_file import read_document

PLAIN_KEYS = "LLAMALANE_API_KEYS"
"""The environment variable with keys as they are: `name=key`, separated by commas or white space."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a key belongs to.

    Attributes:
        name: what logs call it; empty for whoever has no key of its own.
        tenant: whose requests it makes.
        most_urgent: the most urgent level that its requests may have.
        admin: whether it may administer, and see every tenant's requests.
        separate_users: whether the requests of each of its users share cached prefixes among themselves only.
    """

    name: str = ""
    tenant: str = ""
    most_urgent: Level = MOST_URGENT
    admin: bool = False
    separate_users: bool = False

    def owner(self, user: str | None, *, tenant_from_user: bool) -> tuple[str, str]:
        """Return the tenant of a request whose body names `user`, and what its cached prefixes are kept apart by."""
        user = user or ""
        return user if tenant_from_user else self.tenant, user if self.separate_users else ""


ANYONE = Caller()
"""Who asks where no key is asked for, or with the one key that all clients have."""


class KeyRing:
    """The keys that open a server, each as its digest with the caller that it belongs to; none: it is open to all."""

    def __init__(self, keys: Iterable[tuple[bytes, Caller]]) -> None:
        self._keys = tuple(keys)

    @property
    def open(self) -> bool:
        """Whether no key is needed."""
        return not self._keys

    @property
    def personal(self) -> bool:
        """Whether clients have keys of their own."""
        return any(caller.name for _, caller in self._keys)

    @property
    def has_admin(self) -> bool:
        """Whether any key may administer."""
        return any(caller.admin for _, caller in self._keys)

    def find(self, shown: Sequence[bytes]) -> Caller | None:
        """Return whose key is among those `shown`, None when none of them is known."""
        found = None
        for candidate in map(digest_of, shown):
            for digest, caller in self._keys:
                # All are compared, and in full: the time taken must not tell how much of a key was right.
                if hmac.compare_digest(candidate, digest) and found is None:
                    found = caller
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyRing) and self._keys == other._keys

    __hash__ = None  # type: ignore[assignment]


def digest_of(key: bytes) -> bytes:
    """Return what is kept of a key."""
    return hashlib.sha256(key).digest()


def levels_of(config: EngineConfig) -> PriorityLevels:
    """Return the levels that a configuration names."""
    settings = config.scheduler
    return PriorityLevels(settings.levels, Level(settings.levels[settings.default_level]))


def load_keys(api: ApiConfig, levels: PriorityLevels, environment: Mapping[str, str] = os.environ) -> KeyRing:
    """Return the keys of a configuration, of its keys file and of the environment; raises `ConfigError`."""
    entries = [*api.keys, *(_read_file(api.keys_file) if api.keys_file is not None else ())]
    plain = _plain_keys(environment[PLAIN_KEYS]) if PLAIN_KEYS in environment else {}
    named = {entry.name for entry in entries}
    entries += [KeyConfig(name=name) for name in plain if name not in named]
    if entries and api.tenant_from_user:
        raise ConfigError(
            "api.tenant_from_user is for servers without keys of their own for each client: with keys, the tenant is "
            "the key's; separate_users keeps the prompts of a key's users apart"
        )
    keys = [(_digest(entry, plain), _caller(entry, levels)) for entry in entries]
    if api.api_key is not None:
        keys.append((digest_of(api.api_key.get_secret_value().encode()), ANYONE))
    _check_unique([entry.name for entry in entries], [digest for digest, _ in keys])
    return KeyRing(keys)


def _digest(entry: KeyConfig, plain: Mapping[str, bytes]) -> bytes:
    if entry.sha256 is not None:
        if entry.name in plain:
            raise ConfigError(
                f"the key {entry.name!r} has a sha256, and stands in {PLAIN_KEYS} too: remove one of them"
            )
        return bytes.fromhex(entry.sha256)
    if entry.name not in plain:
        raise ConfigError(
            f"the key {entry.name!r} has no sha256 (llamalane hash-key prints it), and {PLAIN_KEYS} does not name it"
        )
    return digest_of(plain[entry.name])


def _caller(entry: KeyConfig, levels: PriorityLevels) -> Caller:
    if entry.level is not None and entry.level not in levels.names:
        raise ConfigError(f"the level {entry.level!r} of key {entry.name!r} is none of {', '.join(levels.names)}")
    return Caller(
        name=entry.name,
        tenant=entry.name if entry.tenant is None else entry.tenant,
        most_urgent=levels.most_urgent if entry.level is None else levels.parse(entry.level),
        admin=entry.admin,
        separate_users=entry.separate_users,
    )


def _check_unique(names: Sequence[str], digests: Sequence[bytes]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two API keys are called {name!r}")
    if len(set(digests)) < len(digests):
        raise ConfigError("two API keys are the same: each needs a key of its own")


def _plain_keys(text: str) -> dict[str, bytes]:
    """Return the keys in the environment variable by their names. No error shows any of it."""
    keys: dict[str, bytes] = {}
    entries = re.findall(r"[^,\s]+", text)
    if not entries:  # a secret that was not found must not open the server to all
        raise ConfigError(f"{PLAIN_KEYS} is empty: write name=key, or unset it")
    for number, entry in enumerate(entries, start=1):
        name, _, key = entry.partition("=")
        try:
            KeyConfig(name=name)
        except ValidationError:
            key = ""
        if not key:
            raise ConfigError(f"{PLAIN_KEYS}, entry {number}: write name=key; names are as in api.keys")
        if name in keys:
            raise ConfigError(f"{PLAIN_KEYS} names {name!r} twice")
        keys[name] = key.encode()
    return keys


def _read_file(path: Path) -> list[KeyConfig]:
    document = read_document(path)
    for problem in document.problems:
        raise ConfigError(problem.message, source=document.source, line=problem.line)
    try:
        return KeysFile.model_validate(document.values).keys
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).removeprefix(".")
        line = document.line(first["loc"])
        raise ConfigError(f"{where}: {first['msg']}", source=document.source, line=line) from None
