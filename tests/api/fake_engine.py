"""An engine without a model: it says what a test has written for it."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack, cast

import anyio

from llamalane.errors import LlamalaneError, RequestCancelledError, UnknownModelError
from llamalane.ids import Level, RequestId
from llamalane.scheduler import (
    ChatPrompt,
    ChatTemplate,
    Counters,
    Engine,
    EngineConfig,
    EngineState,
    EngineStatistics,
    EventKind,
    FinishReason,
    LaneStatistics,
    ModelConfig,
    ModelInfo,
    OutputToken,
    PriorityLevels,
    Progress,
    PromptLogprobs,
    RequestState,
    Result,
    SamplingParameters,
    ServedModel,
    Standing,
    SubmitOptions,
    TextPiece,
    Timings,
    Token,
    Usage,
)
from llamalane.scheduler.explain import Explanation

CONFIG = EngineConfig(models=[ModelConfig(path=Path("scripted.gguf"), name="scripted", aliases=["other"])])


@functools.cache
def plain_template() -> ChatTemplate:
    """A template that knows nothing but messages."""
    return ChatTemplate("{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}")


@dataclass(frozen=True)
class Play:
    """What happens to one request.

    `refusal` is raised by its submission. Each of `texts` comes as it is; then the request ends with `error`, or with
    `finish`. It waits for `release`, if there is one, after `before_release` texts; its submission waits for
    `tokenized`. If log probabilities are asked for, `tokens` come with each of the texts, then `ending`, and `prompt`
    is what is told of the prompt. `stop` is the stop string that ends it.
    """

    texts: Sequence[str] = ("Hello", ", world")
    finish: FinishReason = FinishReason.STOP
    refusal: LlamalaneError | None = None
    tokenized: anyio.Event | None = None
    error: LlamalaneError | None = None
    release: anyio.Event | None = None
    before_release: int = 0
    prompt_tokens: int = 3
    cached_tokens: int = 0
    tokens: Sequence[Sequence[OutputToken]] = ()
    ending: OutputToken | None = None
    prompt: PromptLogprobs | None = None
    stop: str | None = None


class ScriptedHandle:
    """A request that follows its play; `cancelled` counts how often it was cancelled before it had ended."""

    def __init__(self, play: Play, prompt: object, options: SubmitOptions) -> None:
        self.prompt = prompt
        self.options = options
        self.play = play
        self.id = options.get("request_id") or RequestId("none")
        self.seed = cast(int, options["sampling"].seed)
        self.prompt_tokens = play.prompt_tokens
        self.state = RequestState.WAITING
        self.level = cast(Level, options.get("priority"))
        self.cancelled = 0
        self.ended = False
        self.gone = threading.Event()
        """Set when it was cancelled, for whoever waits on another thread."""
        self._cancel = anyio.Event()

    def cancel(self) -> None:
        if not self.ended:
            self.cancelled += 1
            self._cancel.set()
            self.gone.set()

    @property
    def progress(self) -> Progress:
        return Progress(
            age=1.5,
            wait=0.25,
            first_token=0.5,
            lane="main",
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.play.cached_tokens,
            completion_tokens=len(self.play.texts),
            parks=1,
            restarts=0,
            events=(
                (EventKind.ACCEPTED, 0.0),
                (EventKind.ADMITTED, 0.25),
                (EventKind.PARKED, 0.75),
                (EventKind.ADMITTED, 1.0),
                (EventKind.ENDED, 1.5),
            ),
        )

    async def __aiter__(self) -> AsyncIterator[str]:
        for count, text in enumerate(self.play.texts):
            if count == self.play.before_release:
                await self._held()
            yield text
        if self.play.before_release >= len(self.play.texts):
            await self._held()
        self._end()

    async def pieces(self) -> AsyncIterator[TextPiece]:
        tokens = iter(self.play.tokens)
        async for text in self:
            yield TextPiece(text, tuple(next(tokens)))

    async def prompt_logprobs(self) -> PromptLogprobs | None:
        await self._held()
        return self.play.prompt if self.options["sampling"].prompt_logprobs is not None else None

    async def result(self) -> Result:
        await self._held()
        self._end()
        told = self.options["sampling"].logprobs is not None
        tokens = tuple(itertools.chain.from_iterable(self.play.tokens))
        return Result(
            id=self.id,
            text="".join(self.play.texts),
            tokens=tuple(range(len(self.play.texts))),
            finish_reason=self.play.finish,
            usage=Usage(self.prompt_tokens, len(self.play.texts), self.play.cached_tokens),
            timings=Timings(
                wait=0.25, first_token=0.5, total=1.5, per_token=0.25, lane="main", restarts=0, parks=0, handovers=1
            ),
            seed=self.seed,
            level=self.level,
            logprobs=tokens if told else None,
            ending=self.play.ending if told else None,
            cumulative_logprob=sum(token.logprob for token in tokens) if told else None,
            stop=self.play.stop,
        )

    async def _held(self) -> None:
        if self.play.release is not None:
            await self.play.release.wait()

    def _end(self) -> None:
        if self._cancel.is_set():
            raise RequestCancelledError(f"{self.id} was cancelled")
        self.ended = True
        if self.play.error is not None:
            raise self.play.error


@dataclass
class ScriptedEngine:
    """Follows `plays`, one for each submission, and the default one when there are no more."""

    plays: list[Play] = field(default_factory=list)
    state: EngineState = EngineState.READY
    lanes_down: Sequence[bool] = (False,)
    step_ages: Sequence[float] = (0.0, 0.0)
    waiting_tokens: int = 40
    config: EngineConfig = CONFIG
    explanations: Sequence[Explanation] = ()
    standings: Sequence[Standing] = ()
    """Where the requests stand, in the order of their submission."""
    chat_template: ChatTemplate = field(default_factory=plain_template)
    handles: list[ScriptedHandle] = field(default_factory=list)
    submissions: int = 0
    taken: threading.Event = field(default_factory=threading.Event)
    """Set when a request was taken, for whoever waits on another thread."""
    administered: list[tuple[str, ...]] = field(default_factory=list)
    """What was asked for by administrators: the method and its arguments."""

    model_name = "scripted"
    model_names = ("scripted", "other")
    levels = PriorityLevels(CONFIG.scheduler.levels, Level(3))
    limit = 128
    model_info = ModelInfo(vocabulary_size=99, train_context=512, parameters=1000, bytes=4000, limit=limit)

    def __post_init__(self) -> None:
        self.submitted = anyio.Event()
        self._state_changed = anyio.Event()

    def check_model(self, name: str) -> None:
        if name not in self.model_names:
            raise UnknownModelError(name, self.model_names)

    @property
    def served_models(self) -> tuple[ServedModel, ...]:
        return (ServedModel(self.model_names, "generate", self.model_info),)

    def find_model(self, name: str | None) -> ServedModel:
        if name is not None:
            self.check_model(name)
        return self.served_models[0]

    most_choices = 8

    def spell(self, tokens: Sequence[int]) -> list[Token]:
        return [Token(token, f"<{token}>", f"<{token}>".encode()) for token in tokens]

    async def submit_choices(
        self, prompt: str | Sequence[int] | ChatPrompt, ids: Sequence[RequestId], **options: Unpack[SubmitOptions]
    ) -> list[ScriptedHandle]:
        return await self._submit_all(prompt, ids, options)

    def stats(self) -> EngineStatistics:
        return EngineStatistics(
            state=self.state,
            places=8,
            free_places=5,
            waiting={Level(5): 4},
            waiting_tokens=self.waiting_tokens,
            running={Level(1): 3},
            lanes=tuple(
                _lane(index, down, age)
                for index, (down, age) in enumerate(zip(self.lanes_down, self.step_ages, strict=False))
            ),
            counters=Counters(
                admitted=6,
                finished=2,
                in_time=1,
                cancelled=1,
                prompt_tokens=30,
                completion_tokens=20,
                rejected=Counter(shed=2),
                parks=Counter(swap=3),
            ),
        )

    def queue(self) -> Sequence[Explanation]:
        return self.explanations

    def explain(self, request: RequestId) -> Explanation:
        return {explanation.request: explanation for explanation in self.explanations}[request]

    def standing(self, request: RequestId) -> Standing:
        standings = zip(self.handles, self.standings, strict=False)
        return {handle.id: standing for handle, standing in standings if not handle.ended}[request]

    def enter(self, state: EngineState) -> None:
        self.state = state
        self._state_changed.set()
        self._state_changed = anyio.Event()

    async def wait_for(self, *states: EngineState) -> EngineState:
        while self.state not in states:
            await self._state_changed.wait()
        return self.state

    async def drain(self, patience: float | None = None) -> None:
        self.enter(EngineState.DRAINING)
        self.administered.append(("drain", str(patience)))

    def cancel(self, request: RequestId) -> None:
        self.administered.append(("cancel", request))

    def set_priority(self, request: RequestId, priority: int | str) -> None:
        self.administered.append(("set_priority", request, str(priority)))

    def pause_lane(self, name: str) -> None:
        self.administered.append(("pause_lane", name))

    def resume_lane(self, name: str) -> None:
        self.administered.append(("resume_lane", name))

    async def _submit_all(
        self, prompt: object, ids: Sequence[RequestId], options: SubmitOptions
    ) -> list[ScriptedHandle]:
        handles: list[ScriptedHandle] = []
        first = options.get("choice", 0)
        for number, name in enumerate(ids):
            try:
                handles.append(await self._submit(prompt, {**options, "choice": first + number, "request_id": name}))
            except LlamalaneError:
                for handle in handles:
                    handle.cancel()
                raise
        return handles

    async def _submit(self, prompt: object, options: SubmitOptions) -> ScriptedHandle:
        play = self.plays.pop(0) if self.plays else Play()
        self.submissions += 1
        if play.tokenized is not None:
            await play.tokenized.wait()
        if play.refusal is not None:
            raise play.refusal
        handle = ScriptedHandle(play, prompt, options)
        self.handles.append(handle)
        self.taken.set()
        self.submitted.set()
        return handle


def as_engine(engine: ScriptedEngine) -> Engine:
    """Return `engine` as what it stands for."""
    return cast(Engine, engine)


def sampling_of(handle: ScriptedHandle) -> SamplingParameters:
    return handle.options["sampling"]


def prompts_of(handles: Iterable[ScriptedHandle]) -> list[object]:
    return [handle.prompt for handle in handles]


def _lane(index: int, down: bool, step_age: float) -> LaneStatistics:
    return LaneStatistics(
        name=f"lane{index}",
        kind="CpuStream",
        priority_enforced=False,
        serving=not down,
        down=down,
        step_age=step_age,
        places=8,
        running=3,
        steps=11,
        abandoned_steps=1,
        failures=0,
        decode_seconds=1.5,
        sample_seconds=0.5,
        idle_seconds=0.25,
        cells=1024,
        reserved_cells=300,
        paused_cells=40,
        kept_cells=200,
        evictions=5,
    )
