"""The server's configuration: the engine's, and what the HTTP API needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from llamalane.scheduler.config import EngineConfig, Integer, Number, Section
from llamalane.scheduler.config_fields import refuse, repeated
from llamalane.scheduler.config_file import Location
from llamalane.scheduler.config_scheduler import LevelName


def _expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError("no home folder is known for ~") from error


FilePath = Annotated[Path, AfterValidator(_expand_home)]
KeyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
Origin = Annotated[str, Field(pattern=r"^(\*|https?://[^/\s]+)$")]


class KeyConfig(Section):
    """An API key: whose it is, and what it allows."""

    name: KeyName
    """What logs call it: letters, digits, and . _ @ - between them."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(default=None)
    """The key's SHA-256 in hexadecimal digits, as `llamalane hash-key` prints it. null: the environment variable
    LLAMALANE_API_KEYS has the key."""
    tenant: Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,512}$")] | None = Field(default=None)
    """The tenant that its requests belong to, whose limits and weight are under scheduler.tenants; null for one that is
    called as the key is. Keys may share a tenant."""
    level: LevelName | None = Field(default=None)
    """The most urgent level that its requests may have; null for any. A request that names no level has the default
    one, or this one if that is less urgent."""
    admin: bool = Field(default=False)
    """Whether it opens /admin, and shows every tenant's requests in /v1/queue."""
    separate_users: bool = Field(default=False)
    """Whether the field `user` of its requests parts them: only those of one user share cached prefixes, or supersede
    each other. Limits and weight stay the tenant's."""


class TracesConfig(Section):
    """Where spans go. The package's extra `otel` is needed to send them."""

    export: Literal["none", "otlp"] = Field(default="none")
    """otlp: they are sent with OpenTelemetry's protocol over HTTP. none: they go to the tracer provider that the
    process has set, if it has."""
    endpoint: Annotated[str, Field(pattern=r"^https?://[^/\s]+\S*$")] | None = Field(default=None)
    """The collector, such as http://127.0.0.1:4318; null for what the environment says (OTEL_EXPORTER_OTLP_ENDPOINT),
    which headers and the like are always taken from."""
    service_name: str | None = Field(default=None, min_length=1)
    """What the server is called in traces; null for OTEL_SERVICE_NAME, or llamalane."""
    sample: Number | None = Field(default=None, ge=0, le=1)
    """The share of the traces that are kept, of those which begin here; null for what OTEL_TRACES_SAMPLER says, or
    all."""


class KeysFile(Section):
    """A file of API keys, one at least: an empty one must not open the server to all."""

    keys: list[KeyConfig] = Field(min_length=1)


class BatchesConfig(Section):
    """Files and batches (/v1/files and /v1/batches): work that is handed in as a file and done when there is room."""

    folder: FilePath | None = Field(default=None)
    """The folder in which files and batches are kept, which outlive the server; it is made if it is not there. Each
    server needs one of its own. null: files and batches are off."""
    concurrent_items: Integer | None = Field(default=None, ge=1)
    """How many items of batches are under way at once, at each level; null for half as many again as there are
    places."""
    max_items: Integer = Field(default=50_000, ge=1)
    """The most items that a batch may have."""
    max_batches: Integer = Field(default=50, ge=1)
    """The most batches of a tenant that have not ended."""
    max_file_bytes: Integer = Field(default=200 * 1024 * 1024, ge=1024)
    """The largest file that can be uploaded, in bytes."""
    max_files: Integer = Field(default=1000, ge=1)
    """The most files of a tenant, outputs of batches among them; more cannot be uploaded until some are deleted."""
    max_bytes: Integer = Field(default=10 * 1024 * 1024 * 1024, ge=1024)
    """The most bytes that the files of a tenant have together, counted in the same way."""
    retention: Number | None = Field(default=30 * 24 * 3600.0, ge=60)
    """The longest that a file is kept after it was made, in seconds, and that a batch is remembered after its end;
    inputs of batches that have not ended stay. null: for as long as nobody deletes it, or as the file itself says."""


class ApiConfig(Section):
    """The HTTP API."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """The address to listen on; 0.0.0.0 stands for every IPv4 address of the machine."""
    port: Integer = Field(default=8000, ge=0, le=65_535)
    """The port to listen on; 0 takes a free one."""
    api_key: SecretStr | None = Field(default=None, min_length=1)
    """One key for all clients, best taken from the environment: "${env:LLAMALANE_API_KEY}". It allows every level, and
    not /admin. With null, and no other keys, whoever reaches the port is served."""
    keys: list[KeyConfig] = Field(default=[])
    """Keys of single clients, such as [{name: alice, sha256: …, level: agent}]."""
    keys_file: FilePath | None = Field(default=None)
    """A YAML file with more of them, under `keys:`."""
    above_level: Literal["refuse", "cap"] = Field(default="refuse")
    """What becomes of a request that asks for a level more urgent than its key allows. refuse: it is answered with 403.
    cap: it gets the most urgent level that the key allows."""
    metrics_key: SecretStr | None = Field(default=None, min_length=1)
    """The key that /metrics asks for, for a scraper that may do nothing else; keys that may administer open it too.
    With null, /metrics is as open as the rest."""
    cors_origins: list[Origin] = Field(default=[])
    """The origins whose pages may use the API from a browser, such as ["https://chat.example.org"]; "*" for all."""
    dashboard: bool = Field(default=True)
    """Whether there is a live page at /dashboard. Its data asks for a key as the API does."""
    ssl_certfile: FilePath | None = Field(default=None)
    """The certificate (PEM) with which the server speaks HTTPS, with its chain; null for plain HTTP."""
    ssl_keyfile: FilePath | None = Field(default=None)
    """Its private key (PEM); null if that is in the certificate's file."""
    ping_after: Number = Field(default=15.0, gt=0)
    """After so many seconds without output, a comment keeps a stream's connection open, and says where the request
    stands. A request that fails while it waits for its first output is answered with an HTTP error only until then."""
    stalled_after: Number = Field(default=60.0, gt=0)
    """A lane that has computed one step for so many seconds is told as stalled by `/health`, which says 503 when all
    lanes are. A step takes fractions of a second, or a few seconds on a slow machine."""
    max_body_bytes: Integer = Field(default=16 * 1024 * 1024, ge=1024)
    """The largest body of a request in bytes; a larger one is refused."""
    body_timeout: Number = Field(default=60.0, gt=0)
    """For so many seconds a request's body may be on its way, and for as many more for each MiB of it that has come; a
    slower one is refused."""
    docs: bool = Field(default=True)
    """Whether /docs and /openapi.json describe the API, to whoever asks: they tell nothing of models or clients."""
    traces: TracesConfig = Field(default_factory=TracesConfig)
    """Spans of requests, for OpenTelemetry."""
    tenant_from_user: bool = Field(default=False)
    """Whether the field `user` of a request says which tenant it belongs to. Clients can say there what they like, so
    it serves those that can be trusted, such as an application that asks for its own users. Not with keys of single
    clients, whose tenants are their own."""
    batches: BatchesConfig = Field(default_factory=BatchesConfig)
    """Files and batches."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems: list[tuple[Location, str]] = []
        for name in repeated([key.name for key in self.keys]):
            problems.append((("keys",), f"two keys are called {name!r}"))
        if self.tenant_from_user and (self.keys or self.keys_file is not None):
            message = "is not possible with keys of single clients, whose tenants are their own; see separate_users"
            problems.append((("tenant_from_user",), message))
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            problems.append((("ssl_keyfile",), "needs ssl_certfile beside it"))
        refuse(problems)
        return self


class ServerConfig(EngineConfig):
    """All that a server needs to know; read and checked as `EngineConfig` is."""

    foreign_keys: ClassVar[frozenset[str]] = frozenset()

    api: ApiConfig = Field(default_factory=ApiConfig)
    """The HTTP API."""

    @classmethod
    def resolve_paths(cls, values: Mapping[str, Any], folder: Path) -> None:
        """Let the relative paths among a file's `values` start at its folder."""
        super().resolve_paths(values, folder)
        api = values.get("api")
        if isinstance(api, dict):
            for name in ("keys_file", "ssl_certfile", "ssl_keyfile"):
                _resolve(api, name, folder)
            if isinstance(api.get("batches"), dict):
                _resolve(api["batches"], "folder", folder)

    @model_validator(mode="after")
    def _check_key_levels(self) -> Self:
        levels = self.scheduler.levels
        refuse(
            [
                (("api", "keys", index, "level"), f"{key.level!r} is none of the levels, which are {', '.join(levels)}")
                for index, key in enumerate(self.api.keys)
                if key.level is not None and key.level not in levels
            ]
        )
        return self


def _resolve(values: dict[str, Any], name: str, folder: Path) -> None:
    if isinstance(values.get(name), str) and not values[name].startswith("~"):
        values[name] = str(folder / values[name])
