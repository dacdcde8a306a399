"""Every error that llamalane raises.

::

    LlamalaneError
    ├── ConfigError                 the configuration cannot be used
    ├── RequestError                this request can never be served as it is
    │   ├── InvalidRequestError     a field is missing, of the wrong type, or out of range
    │   │   └── ThreadsUnsupportedError     the server was to keep the conversation
    │   ├── InvalidPriorityError    no such priority
    │   ├── PromptTooLongError      prompt and one token do not fit a sequence
    │   ├── InputTooLongError       an input does not fit the pass in which it is embedded
    │   ├── ChatTemplateError       the model's chat template refused the messages
    │   ├── GrammarError            its output's grammar is too large to be followed
    │   ├── PermissionDeniedError   whoever asks may not have this
    │   ├── UnknownModelError       no such model
    │   ├── WrongTaskError          the model is for another task
    │   ├── BatchesOffError         files and batches are not configured
    │   ├── UnknownFileError        no such file
    │   ├── UnknownBatchError       no such batch
    │   ├── FileTooLargeError       the file has more bytes than one may have
    │   ├── StorageLimitError       its tenant stores, or has under way, as much as it may
    │   └── BatchConflictError      the batch, or the batch that uses the file, is in a state that forbids it
    ├── UnavailableError            the request was fine; it could not be served now
    │   ├── QueueFullError          come back in `retry_after` seconds
    │   ├── TenantLimitError        its tenant has as much under way as it may
    │   ├── RequestShedError        a more urgent request took its slot in the full queue
    │   ├── DeadlineExceededError   its deadline passed first
    │   ├── EngineClosedError       the engine is not running, draining, or closed
    │   ├── EngineForkedError       the engine runs in the process that this one was forked from
    │   ├── LaneDownError           no lane is left to run it
    │   ├── RequestFailedError      its lane failed while running it, too often
    │   └── TooManyViewersError     as many follow the dashboard as may
    ├── RequestCancelledError       its own client cancelled it
    ├── SupersededError             a newer request with the same key replaced it
    ├── BlockingCallError           a call would block an event loop
    ├── DeviceUnavailableError      the wanted device cannot be used, and why
    ├── CudaError                   the CUDA driver refused a call
    ├── BatchStoreError             files and batches cannot be read or written
    ├── ModelLoadError              the model file cannot be loaded
    ├── ContextError                llama.cpp refused to create or to use a context
    │   ├── DecodeError             `llama_decode` returned an error code
    │   └── StepAbandonedError      the step was broken off, as was asked for
    └── PoolError                   the stream pool was misused
        ├── PoolExhaustedError      no place is free
        ├── PoolClosedError         the pool is closed
        ├── PoolForkedError         the pool belongs to the process that this one was forked from
        ├── LeaseReleasedError      the lease, or the stream, was released before
        ├── UnknownStreamError      no streams of that name
        ├── StreamLimitError        a stream was to be what the device cannot give
        └── StreamInUseError        a llama context still holds the stream

An error carries what a caller needs as attributes; nobody has to parse its message.
"""

from __future__ import annotations

from collections.abc import Iterable


class LlamalaneError(Exception):
    """The root of the tree."""


class ConfigError(LlamalaneError):
    """The configuration cannot be used.

    `source` names the file and `line` the line in it (counted from 1), where they are known.
    """

    def __init__(self, message: str, *, source: str | None = None, line: int | None = None) -> None:
        place = source or ""
        if line is not None:
            place += f":{line}"
        super().__init__(f"{place}: {message}" if place else message)
        self.source = source
        self.line = line


class RequestError(LlamalaneError):
    """This request can never be served as it is; `param` names the field at fault."""

    param: str | None = None


class InvalidRequestError(RequestError):
    """A field of the request is missing, of the wrong type, or out of range."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ThreadsUnsupportedError(InvalidRequestError):
    """The server was to keep the conversation, for later requests to go on with."""

    def __init__(self) -> None:
        super().__init__(
            "thread is not supported: this server keeps no conversations, send the whole of it", param="thread"
        )


class InvalidPriorityError(RequestError):
    """The priority is neither a level nor a configured name."""

    param = "priority"

    def __init__(self, value: object, names: Iterable[str], lowest: int = 1, highest: int = 5) -> None:
        super().__init__(
            f"priority must be an integer from {lowest} (most urgent) to {highest} (least urgent) "
            f"or one of {', '.join(names)}; got {value!r}"
        )
        self.value = value


class PromptTooLongError(RequestError):
    """The prompt and one token more do not fit a sequence.

    `prompt_tokens` is the prompt's length in tokens, or a lower bound of it when `at_least` is true
    (a text that cannot fit is refused before it is tokenized); `limit` the most tokens that a sequence
    holds, prompt and output together.
    """

    param = "prompt"

    def __init__(self, prompt_tokens: int, limit: int, *, at_least: bool = False) -> None:
        super().__init__(
            f"the prompt has {'at least ' if at_least else ''}{prompt_tokens} tokens; a sequence holds {limit}, "
            f"one of which is needed for the output: shorten the prompt to {limit - 1} tokens or fewer"
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit
        self.at_least = at_least


class InputTooLongError(RequestError):
    """An input has more tokens than a model takes, which computes each in one pass.

    `tokens` is how many it has, `limit` how many it may have, and `train_context` what the model was trained for.
    """

    def __init__(self, what: str, tokens: int, limit: int, train_context: int) -> None:
        raising = f", or raise the model's max_input, up to {train_context}" if train_context > limit else ""
        super().__init__(
            f"{what} has {tokens} tokens, and the model takes {limit} at most: shorten it, let it be cut off with "
            f"truncate_prompt_tokens{raising}"
        )
        self.param = what
        self.tokens = tokens
        self.limit = limit
        self.train_context = train_context


class ChatTemplateError(RequestError):
    """The model has no chat template, or its template refused the messages."""

    param = "messages"


class GrammarError(RequestError):
    """The output's grammar is too large, or can be read in too many ways, to be followed to its end."""

    param = "grammar"

    def __init__(self, reason: str) -> None:
        super().__init__(f"the output's grammar cannot be followed: {reason}")


class PermissionDeniedError(RequestError):
    """Whoever asks may not have what the request asks for."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModelError(RequestError):
    """No model of that name is served; `known` lists those that are."""

    param = "model"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(f"no model is called {name!r}; this server has {', '.join(self.known)}")


class WrongTaskError(RequestError):
    """The model is for another task than it was asked for, or no model is for that; `task` is what was asked for."""

    param = "model"

    def __init__(self, task: str, known: Iterable[str], *, name: str | None = None) -> None:
        self.task = task
        self.name = name
        self.known = tuple(known)
        there = f"for that there is {', '.join(self.known)}" if self.known else "no model here can do that"
        message = f"there is no model for the task {task} here"
        if name is not None:
            message = f"the model {name!r} is not for the task {task}: {there}"
        elif self.known:
            message = f"name a model for the task {task}: there are {', '.join(self.known)}"
        super().__init__(message)


class BatchesOffError(RequestError):
    """Files and batches are not configured."""

    def __init__(self) -> None:
        super().__init__(
            "files and batches are off: set api.batches.folder in the server's configuration to a folder in which they "
            "can be kept"
        )


class UnknownFileError(RequestError):
    """There is no such file, or it is another tenant's."""

    def __init__(self, file: str, *, param: str | None = None) -> None:
        super().__init__(f"there is no file {file[:100]!r}")
        self.file = file
        self.param = param


class UnknownBatchError(RequestError):
    """There is no such batch, or it is another tenant's."""

    def __init__(self, batch: str, *, param: str | None = None) -> None:
        super().__init__(f"there is no batch {batch[:100]!r}")
        self.batch = batch
        self.param = param


class FileTooLargeError(RequestError):
    """The file has more than `limit` bytes."""

    param = "file"

    def __init__(self, limit: int) -> None:
        super().__init__(f"the file is too large: at most {limit} bytes are taken")
        self.limit = limit


class StorageLimitError(RequestError):
    """The tenant stores as many files or bytes, or has as many batches under way, as it may."""


class BatchConflictError(RequestError):
    """The state of a batch forbids what was asked for."""


class UnavailableError(LlamalaneError):
    """The request was fine, but it could not be served now.

    `retry_after` is in how many seconds it is worth trying again, None where nobody can tell.
    """

    retry_after: float | None = None


class QueueFullError(UnavailableError):
    """The waiting queue is full.

    `retry_after` is the estimated time in seconds until a place in it comes free; `reason` says which bound was
    met: `"requests"` or `"tokens"`.
    """

    retry_after: float

    def __init__(self, retry_after: float, *, reason: str, limit: int) -> None:
        super().__init__(f"the queue is full ({limit} {reason} are waiting at most); try again in {retry_after:.1f} s")
        self.retry_after = retry_after
        self.reason = reason
        self.limit = limit


class TenantLimitError(UnavailableError):
    """The request's tenant has as much under way as it may.

    `retry_after` is the estimated time in seconds until it may have more; `reason` says which limit was met:
    `"concurrent"` or `"tokens_per_minute"`; `limit` is its value.
    """

    retry_after: float

    def __init__(self, retry_after: float, *, tenant: str, reason: str, limit: int) -> None:
        what = "requests waiting or running" if reason == "concurrent" else "tokens a minute"
        super().__init__(f"tenant {tenant!r} is at its limit of {limit} {what}; try again in {retry_after:.1f} s")
        self.retry_after = retry_after
        self.tenant = tenant
        self.reason = reason
        self.limit = limit


class RequestShedError(UnavailableError):
    """The queue was full, and a more urgent request took this one's slot; come back in `retry_after` seconds."""

    retry_after: float

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"a more urgent request took its slot in the full queue; try again in {retry_after:.1f} s")
        self.retry_after = retry_after


class DeadlineExceededError(UnavailableError):
    """The request's deadline passed before it was finished."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the request was not finished within its deadline of {seconds:g} s")
        self.seconds = seconds


class EngineClosedError(UnavailableError):
    """The engine was not started, is draining, or is closed."""


class EngineForkedError(UnavailableError):
    """The engine runs in process `owner`, from which this one was forked: threads do not come along."""

    def __init__(self, owner: int) -> None:
        super().__init__(
            f"this engine runs in process {owner}, from which this one was forked: start an engine in each process, "
            "after the fork"
        )
        self.owner = owner


class LaneDownError(UnavailableError):
    """Every lane failed too often in a row; nothing is left to run the request."""


class RequestFailedError(UnavailableError):
    """The lane failed each time while it ran this request, or the request's own sampling failed."""


class TooManyViewersError(UnavailableError):
    """As many follow the dashboard as may, which is `limit`; try again in `retry_after` seconds."""

    retry_after: float

    def __init__(self, limit: int, retry_after: float) -> None:
        super().__init__(f"{limit} dashboards are open, which is all that may be; close one of them")
        self.limit = limit
        self.retry_after = retry_after


class RequestCancelledError(LlamalaneError):
    """The request was cancelled by its own client."""


class SupersededError(LlamalaneError):
    """A newer request of the same tenant with the same key replaced this one; `newer` is its id."""

    def __init__(self, request: str, newer: str) -> None:
        super().__init__(f"request {request} was replaced by the newer request {newer} with the same key")
        self.newer = newer


class BlockingCallError(LlamalaneError):
    """A call would block an event loop: the caller's, or the engine's own, which the call waits for."""


class DeviceUnavailableError(LlamalaneError):
    """The wanted device cannot be used; `reason` says why."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"device {device!r} cannot be used: {reason}")
        self.device = device
        self.reason = reason


class CudaError(LlamalaneError):
    """The CUDA driver refused `call`; `reason` is what it said."""

    def __init__(self, call: str, reason: str) -> None:
        super().__init__(f"CUDA refused {call}: {reason}")
        self.call = call
        self.reason = reason


class BatchStoreError(LlamalaneError):
    """What is kept of files and batches cannot be read or written."""


class ModelLoadError(LlamalaneError):
    """The model file is missing, is not a GGUF file, is cut short, or is of a kind that cannot generate."""


class ContextError(LlamalaneError):
    """llama.cpp refused to create a context, or a call would have broken one of its preconditions."""


class DecodeError(ContextError):
    """`llama_decode` returned `code`.

    1: no room in the KV cache; -1: invalid batch; -2: out of memory; -3: the computation failed
    (llama.h).
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode returned {code}")
        self.code = code


class StepAbandonedError(ContextError):
    """The step was broken off, as was asked for; what it had computed must be removed."""


class PoolError(LlamalaneError):
    """The stream pool was misused."""


class PoolExhaustedError(PoolError):
    """No place is free."""


class PoolClosedError(PoolError):
    """The pool is closed."""


class PoolForkedError(PoolError):
    """The pool belongs to the process that this one was forked from: CUDA cannot be used across a fork."""

    def __init__(self, owner: int) -> None:
        super().__init__(
            f"these CUDA streams belong to process {owner}, from which this one was forked: make the pool after "
            "forking, or start processes with the method spawn"
        )
        self.owner = owner


class LeaseReleasedError(PoolError):
    """The lease, or the stream, was released before: that happens exactly once."""


class UnknownStreamError(PoolError):
    """The pool has no streams of that name; `known` lists the names that it has."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(f"the pool has no streams called {name!r}; it has {', '.join(self.known)}")


class StreamLimitError(PoolError):
    """A stream was to be what the device cannot give: `what` was `value`, and goes from `lowest` to `highest`."""

    def __init__(self, stream: str, what: str, value: int, lowest: int, highest: int, *, note: str = "") -> None:
        super().__init__(
            f"streams {stream!r}: {what} must be from {lowest} to {highest}{f', {note}' if note else ''}; got {value}"
        )
        self.stream = stream
        self.what = what
        self.value = value
        self.lowest = lowest
        self.highest = highest


class StreamInUseError(PoolError):
    """A llama context still holds the stream: free the context first."""
