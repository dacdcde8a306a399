"""The sections for what computes: the model, its lanes, and their KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from llamalane.ids import LEAST_URGENT, MOST_URGENT
from llamalane.scheduler.config_fields import Budget, Integer, NotABool, Section, refuse, repeated
from llamalane.scheduler.config_file import Location
from llamalane.streams import DeviceChoice

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
"""What a KV cell holds; those that begin with q are quantized."""
FlashAttention = Literal["auto", "on", "off"]
LayoutChoice = Literal["auto", "paged", "partitioned"]
Role = Literal["any", "prefill", "decode"]
ToolFormatChoice = Literal["auto", "hermes", "llama3_json", "mistral", "mistral_args", "none"]
ReasoningFormatChoice = Literal["auto", "think", "mistral", "none"]
Task = Literal["generate", "embed", "rerank"]
PoolingChoice = Literal["mean", "cls", "last"]


class ModelConfig(Section):
    """A model to serve."""

    path: Path = Field(examples=["model.gguf"])
    """The GGUF file; of a split model, the first part. In a YAML file, a relative path starts at the folder of
    that file."""
    name: str | None = Field(default=None, min_length=1)
    """What requests call the model; null takes the file's name without its ending."""
    aliases: list[str] = Field(default=[])
    """Further names for the same model."""
    gpu_layers: Integer = Field(default=-1, ge=-1, le=100_000)
    """How many layers go to the GPU, -1 for all. Without a GPU it has no effect."""
    mmap: bool = Field(default=True)
    """Map the file into memory instead of reading it."""
    tool_format: ToolFormatChoice = Field(default="auto")
    """How the model writes calls of tools, for /v1/chat/completions. auto: as its chat template does; a template that
    describes no tools, or in another way than these, has them described in hermes's. none: requests with tools are
    refused."""
    reasoning_format: ReasoningFormatChoice = Field(default="auto")
    """What stands around the model's thoughts, which /v1/chat/completions tells apart from the answer. think:
    <think> and </think>. mistral: [THINK] and [/THINK]. auto: whichever its chat template knows. none: thoughts are
    told as part of the answer."""
    task: Task = Field(default="generate")
    """What it is for. generate: text, which one model can do. embed: vectors of texts. rerank: how well documents
    answer a query, by a model with a head for that. A model that generates can embed too: name its file a second time,
    with another name and this task; its weights are loaded once. What embeds or reranks needs a lane that names it."""
    pooling: PoolingChoice | None = Field(default=None)
    """What stands for a text when the task is embed: the mean of all its tokens' vectors, that of the first (cls) or
    of the last one. null is as the model's file says."""
    max_input: Annotated[int, Field(ge=1, le=1_000_000), NotABool] | None = Field(default=None)
    """The most tokens of one input when the task is embed or rerank, up to what the model was trained for. All of them
    are computed in one pass, whose memory grows with it. null takes streams.micro_batch, or what the model was trained
    for if that is less."""

    @property
    def embeds(self) -> bool:
        """Whether it turns texts into vectors or scores."""
        return self.task != "generate"

    @property
    def names(self) -> tuple[str, ...]:
        """The model's name, then its aliases."""
        return (self.name or self.path.stem, *self.aliases)

    @field_validator("path")
    @classmethod
    def _expand_home(cls, path: Path) -> Path:
        try:
            return path.expanduser()
        except RuntimeError as error:
            raise ValueError("no home folder is known for ~") from error

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems: list[tuple[Location, str]] = []
        for name in repeated(self.names):
            problems.append((("aliases",), f"{name!r} names the model twice"))
        if self.pooling is not None and self.task != "embed":
            problems.append((("pooling",), f"is for a model whose task is embed; its task is {self.task}"))
        if self.max_input is not None and not self.embeds:
            problems.append((("max_input",), "is for a model whose task is embed or rerank; its task is generate"))
        refuse(problems)
        return self


class LaneConfig(Section):
    """A lane: one stream, with its share of the KV memory and its own llama.cpp context."""

    name: str = Field(default="main", min_length=1)
    """The lane's name in statistics and logs; no other lane has it."""
    model: str | None = Field(default=None, min_length=1)
    """The name of the model that the lane computes; null for the one that generates, or the only one there is. A lane
    of a model that embeds or reranks keeps nothing between steps: it has no part in the KV budget, and no role."""
    count: Integer = Field(default=1, ge=1, le=64)
    """How many such lanes there are; of more than one, name-1, name-2 and so on are the names."""
    places: Integer = Field(default=8, ge=1, le=256)
    """How many sequences run on the lane at once."""
    threads: Annotated[int, Field(ge=1, le=1024), NotABool] | None = Field(default=None)
    """How many CPU threads compute, at most; null takes an equal part of the cores that other lanes leave."""
    device: Annotated[int, Field(ge=0, le=63), NotABool] | None = Field(default=None)
    """The GPU that the lane computes on, counted from 0. Each GPU that lanes name gets a copy of the model. null takes
    the first if another lane names one; if none does, llama.cpp spreads one copy over all GPUs. Without a GPU, this and
    the two that follow have no effect."""
    priority: Annotated[int, Field(ge=MOST_URGENT, le=LEAST_URGENT), NotABool] | None = Field(default=None)
    """The urgency of the lane's CUDA stream, from 1 to 5, which the GPU follows among lanes; null is the least urgent.
    Requests have priorities of their own."""
    multiprocessors: Annotated[int, Field(ge=1, le=1024), NotABool] | None = Field(default=None)
    """How many of the GPU's multiprocessors the lane has for itself, rounded up to what the GPU can be divided into;
    null shares all of them."""
    speed: Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False), NotABool] = Field(default=1.0)
    """How quick the lane is beside the others: one of 2 takes half the time of one of 1. It chooses among lanes only
    until their speed was measured."""
    kv_weight: Annotated[float, Field(gt=0, allow_inf_nan=False), NotABool] | None = Field(default=None)
    """Its part of the KV budget, in proportion to those of other lanes; null takes its places."""
    layout: LayoutChoice | None = Field(default=None)
    """How its sequences share its cells; null is as `kv.layout` says."""
    role: Role = Field(default="any")
    """What the lane is for. prefill: prompts only; once it has computed one, the request goes on on a lane of another
    role. decode: outputs; prompts only if they are short, or it does not pay to compute them on a prefill lane, and no
    lane of role any is free. any: both. `scheduler.handover` tells when prefill lanes are used."""

    @property
    def weight(self) -> float:
        """The lane's part when the KV budget is divided."""
        return self.places if self.kv_weight is None else self.kv_weight

    def each(self) -> list[LaneConfig]:
        """Return `count` lanes, each with a name of its own."""
        if self.count == 1:
            return [self]
        names = [f"{self.name}-{number}" for number in range(1, self.count + 1)]
        return [self.model_copy(update={"name": name, "count": 1}) for name in names]


class LookupConfig(Section):
    """Drafts of outputs that repeat their prompts, or themselves: what came after the last few tokens before is
    computed together with the next token, in one step, and kept as far as it turns out right. Outputs stay the same.
    Sequences whose drafts turn out wrong draft less, or nothing."""

    draft_tokens: Integer = Field(default=0, ge=0, le=16)
    """The most tokens of a draft; 0 drafts nothing, 8 is a good choice. Recurrent and hybrid models cannot draft."""
    most_rows: Integer = Field(default=2, ge=1, le=256)
    """Nobody drafts in a step that gives more sequences than so many a token, or computes a prompt."""
    levels: Annotated[list[str], Field(min_length=1)] | None = Field(default=None, examples=[["agent"]])
    """The names of the levels whose requests may draft; null for all."""

    def logit_rows(self, places: int) -> int:
        """Return for how many tokens drafts want logits in a step of a lane with so many places."""
        return min(self.most_rows, places) * (1 + self.draft_tokens) if self.draft_tokens else 0


class StreamsConfig(Section):
    """What computes."""

    device: DeviceChoice = Field(default=DeviceChoice.AUTO)
    """auto takes a GPU if llama.cpp can use one; cuda is an error where there is none; cpu leaves it alone."""
    lanes: list[LaneConfig] = Field(default=[LaneConfig()], min_length=1)
    """A lane batches all its sequences, so one is fastest; more of them keep kinds of work apart."""
    adaptive_threads: bool = Field(default=True)
    """Compute with fewer CPU threads while other processes want the cores, as long as that is no slower; off: always
    with all of them."""
    max_step_tokens: Integer = Field(default=512, ge=1, le=65_536)
    """The most tokens that a lane computes in one step; at least its places."""
    micro_batch: Integer = Field(default=512, ge=1, le=65_536)
    """The most tokens that llama.cpp computes in one pass."""
    output_rows: Integer = Field(default=0, ge=0, le=65_536)
    """How many tokens of prompts a lane measures in one step, where their log probabilities are asked for; at least as
    many as it has sequences, and at most max_step_tokens. More of them are quicker and take memory: each that is used
    needs 4 bytes for every token of the vocabulary."""
    lookup: LookupConfig = Field(default_factory=LookupConfig)
    """Drafts of outputs that repeat their prompts."""

    @property
    def gpus(self) -> list[int | None]:
        """The GPU of each lane; None for all if no lane names one."""
        named = any(lane.device is not None for lane in self.lanes)
        return [(lane.device or 0) if named else None for lane in self.lanes]

    @field_validator("lanes")
    @classmethod
    def _name_each(cls, lanes: list[LaneConfig]) -> list[LaneConfig]:
        return [each for lane in lanes for each in lane.each()]

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems: list[tuple[Location, str]] = []
        for name in repeated([lane.name for lane in self.lanes]):
            problems.append((("lanes",), f"{name!r} names several lanes"))
        roles = {lane.role for lane in self.lanes}
        if roles == {"prefill"}:
            problems.append((("lanes",), "every lane's role is prefill: one must be decode or any, to compute outputs"))
        if "decode" in roles and "prefill" not in roles:
            message = "a lane's role is decode, and no lane's is prefill: one must be, to compute its prompts"
            problems.append((("lanes",), message))
        largest = max(self.lanes, key=lambda lane: lane.places)
        if largest.places > self.max_step_tokens:
            message = f"must be at least {largest.places}, the places of lane {largest.name!r}"
            problems.append((("max_step_tokens",), message))
        if self.output_rows > self.max_step_tokens:
            problems.append((("output_rows",), f"must be at most {self.max_step_tokens}, which is max_step_tokens"))
        drafted = self.lookup.logit_rows(largest.places)
        if drafted > self.max_step_tokens:
            message = (
                f"drafts of {self.lookup.draft_tokens} tokens for {min(self.lookup.most_rows, largest.places)} "
                f"sequences make steps of {drafted} tokens; max_step_tokens is {self.max_step_tokens}"
            )
            problems.append((("lookup",), message))
        refuse(problems)
        return self


class KVConfig(Section):
    """The KV cache: one cell holds the keys and values of one token."""

    budget: Budget | None = Field(default=None)
    """How large it is, for all lanes together: a number of tokens; bytes, such as 4GiB or 512MB; or a share, such as
    50%, of the memory that the device has free once the weights are in it. null takes 2048 tokens for each place."""
    key_type: CacheType = Field(default="f16")
    """How keys are stored; the q types take less memory."""
    value_type: CacheType = Field(default="f16")
    """How values are stored; the q types take less memory and need flash attention."""
    layout: LayoutChoice = Field(default="auto")
    """How sequences share a lane's cells. paged: each takes what it needs, so that a long one can stand beside many
    short ones. partitioned: each has an equal part, and attention passes over its own cells only, which is faster on
    CPUs. auto is partitioned on a CPU if each part has 512 cells at least, else paged."""
    spare_sequences: Annotated[int, Field(ge=0, le=255), NotABool] | None = Field(default=None)
    """How many sequences of a lane can hold cells beyond those that run: paused ones, and finished ones for requests
    that continue them. null takes as many as places when paged, where they cost nothing, and none when partitioned,
    where each costs a part."""
    cached_share: Annotated[float, Field(ge=0, le=1), NotABool] = Field(default=0.5)
    """Which part of a paged lane's cells may at most be kept for requests to come, rather than used. Attention passes
    over them, which takes time. Partitioned lanes keep what is left in their parts."""
    swap: Integer = Field(default=1 << 30, ge=0)
    """How many bytes of host memory may hold the cells of parked requests, and of prompts that may come again."""
    disk: Path | None = Field(default=None)
    """A directory for cells of long prompts that may come again after a restart. Prompts can be read from it by whoever
    may read it: it should belong to the engine alone. null keeps none."""
    disk_bytes: Integer = Field(default=10 << 30, ge=1)
    """How many bytes there may be in it."""
    flash_attention: FlashAttention = Field(default="auto")
    """Whether attention is computed block by block, without ever holding all its scores. On a CPU, `off` is faster
    for long contexts, and lets outputs depend more on what else runs; a quantized value_type needs it."""

    context_shift: bool = Field(default=False)
    """Whether a request that asks for more tokens than a sequence holds goes on when it is full: half of what follows
    the first `context_keep` tokens is dropped, and the rest moved down. Its output may lose the thread. Otherwise, and
    for a request without max_tokens, the output ends there. Recurrent and hybrid models cannot do it."""
    context_keep: Integer = Field(default=0, ge=0, le=1_000_000)
    """How many tokens at the beginning are never dropped, beside the model's own first token; at most half of what a
    sequence holds. 0 drops the oldest first."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.disk is not None and self.swap == 0:
            refuse([(("disk",), "needs host memory to go through: swap is 0")])
        if self.value_type.startswith("q") and self.flash_attention == "off":
            message = f"{self.value_type} is quantized and needs flash_attention, which is off"
            refuse([(("value_type",), message)])
        return self
