"""Vectors and scores from the engine, against llama.cpp asked directly; and every input that cannot be served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from llamalane.errors import (
    ConfigError,
    EngineClosedError,
    InputTooLongError,
    InvalidPriorityError,
    InvalidRequestError,
    ModelLoadError,
    RequestError,
    UnknownModelError,
    WrongTaskError,
)
from llamalane.scheduler import Engine
from llamalane.streams.llama import Pooling
from tests.engine.embedding_rig import PLACES, embedding_config, embedding_engine, said_by_llama_cpp
from tests.engine.running import WatchedEngine, greedy
from tests.engine.running import tokens_of as bytes_of
from tests.engine.test_lanes import as_if_each_lane_had_its_cores
from tests.models.tiny_embedders import CLS, SEP, TRAIN_CONTEXT, UNKNOWN, WIDTH, letters_of, tokens_of, write_encoder
from tests.models.tiny_gguf import Kind, write_model

pytestmark = pytest.mark.anyio

TEXTS = [
    "a text of some words.",
    "x",
    "quite another one, and a longer one at that",
    "the fourth!",
    "five is more than there are places",
    "hello world",
]
CLOSE = 1e-4
"""So much may a number of a vector of length 1 differ between steps of different shapes."""

MakeEmbedder = Callable[..., WatchedEngine]


@pytest.fixture
def make(engines: list[WatchedEngine], tiny_encoder: Path) -> MakeEmbedder:
    """Makes engines that embed with the tiny encoder; takes what `embedding_config` takes."""

    def make_engine(model: dict[str, Any] | None = None, **options: Any) -> WatchedEngine:
        entry = {"name": "enc", "path": tiny_encoder, "task": "embed"} | (model or {})
        return embedding_engine(embedding_config([entry], **options), engines)

    return make_engine


def unit(vector: Any) -> Any:
    return np.asarray(vector) / np.linalg.norm(np.asarray(vector, np.float64))


@pytest.mark.parametrize("pooling", [Pooling.CLS, Pooling.MEAN, Pooling.LAST])
async def test_an_encoders_vectors_are_what_llama_cpp_says(
    make: MakeEmbedder, tiny_encoder: Path, pooling: Pooling
) -> None:
    expected = said_by_llama_cpp(tiny_encoder, [tokens_of(text) for text in TEXTS], pooling)
    async with make({"pooling": pooling.value}) as engine:
        results = await engine.embed(TEXTS)
        raw = await engine.embed(TEXTS, normalize=False)
    for one, whole, vector, text in zip(results, raw, expected, TEXTS, strict=True):
        assert one.vector.dtype == np.float32
        assert np.abs(one.vector - unit(vector)).max() < CLOSE
        assert np.abs(whole.vector - vector).max() < CLOSE * 10
        assert one.prompt_tokens == len(tokens_of(text))
        assert (one.lane, one.level) == ("enc-lane", 3)
        assert 0 <= one.wait <= one.total


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
async def test_a_model_that_generates_embeds_too_and_its_weights_are_loaded_once(
    engines: list[WatchedEngine], tiny_model: Path, pooling: Pooling
) -> None:
    entry = {"name": "vectors", "path": tiny_model, "task": "embed", "pooling": pooling.value}
    expected = said_by_llama_cpp(tiny_model, [bytes_of(text) for text in TEXTS], pooling)
    async with embedding_engine(embedding_config([entry], generating=tiny_model), engines) as engine:
        assert engine._running is not None
        assert len(engine._running.machinery.models) == 1
        results = await engine.embed(TEXTS)
        answer = await engine.generate("hello", sampling=greedy(5))
        assert [model.names for model in engine.served_models] == [("tiny",), ("vectors",)]
    for one, vector in zip(results, expected, strict=True):
        assert np.abs(one.vector - unit(vector)).max() < CLOSE
    assert answer.usage.completion_tokens == 5


async def test_the_file_says_what_stands_for_a_text(engines: list[WatchedEngine], tmp_path: Path) -> None:
    write_model(tmp_path / "last.gguf", Kind.DENSE, pooling=gguf.PoolingType.LAST)
    entry = {"name": "last", "path": tmp_path / "last.gguf", "task": "embed"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        assert engine.served_models[0].pooling == "last"


async def test_what_counts_as_one_input(make: MakeEmbedder) -> None:
    async with make() as engine:
        (text,) = await engine.embed("abc")
        (tokens,) = await engine.embed(tokens_of("abc"))
        first, second = await engine.embed([tokens_of("abc"), tokens_of("de")])
        both: list[Any] = ["abc", tokens_of("abc")]
        mixed = await engine.embed(both)
        (bare,) = await engine.embed("abc", add_special_tokens=False)
        (same,) = await engine.embed(letters_of("abc"))
        (twice,) = await engine.embed("[CLS]abc")
    for one in (tokens, first, *mixed, twice):
        assert np.abs(one.vector - text.vector).max() < CLOSE
    assert second.prompt_tokens == 4
    assert np.abs(bare.vector - same.vector).max() < CLOSE
    assert bare.prompt_tokens == 3


async def test_dimensions_cut_a_vector_and_it_is_normalized_again(make: MakeEmbedder) -> None:
    async with make() as engine:
        (whole,) = await engine.embed("abc", normalize=False)
        for dimensions in (1, 7, WIDTH):
            (cut,) = await engine.embed("abc", dimensions=dimensions)
            assert np.abs(cut.vector - unit(whole.vector[:dimensions])).max() < CLOSE
        bad: list[Any] = [0, -1, WIDTH + 1, True, 3.5, "7"]
        for dimensions in bad:
            with pytest.raises(InvalidRequestError, match=f"from 1 to {WIDTH}") as caught:
                await engine.embed("abc", dimensions=dimensions)
            assert caught.value.param == "dimensions"


async def test_scores_are_what_llama_cpp_says(engines: list[WatchedEngine], tiny_ranker: Path) -> None:
    entry = {"name": "rank", "path": tiny_ranker, "task": "rerank"}
    query = "which one"
    pairs = [[CLS, *letters_of(query), SEP, *letters_of(text), SEP] for text in TEXTS]
    raw = [float(vector[0]) for vector in said_by_llama_cpp(tiny_ranker, pairs, Pooling.RANK)]
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        scores = await engine.rerank(query, TEXTS, use_activation=False)
        mapped = await engine.rerank(query, TEXTS)
        assert (engine.served_models[0].pooling, engine.served_models[0].dimensions) == ("rank", None)
    assert [one.index for one in scores] == list(range(len(TEXTS)))
    assert [one.score for one in scores] == pytest.approx(raw, abs=1e-4)
    assert [one.score for one in mapped] == pytest.approx([1 / (1 + np.exp(-score)) for score in raw], abs=1e-4)
    assert np.argmax(raw) == max(mapped, key=lambda one: one.score).index
    assert [one.result.prompt_tokens for one in scores] == [len(pair) for pair in pairs]


async def test_a_head_with_several_scores_gives_its_first(engines: list[WatchedEngine], tmp_path: Path) -> None:
    path = tmp_path / "many.gguf"
    write_encoder(path, gguf.PoolingType.RANK, head=True, labels=3)
    pair = [CLS, *letters_of("q"), SEP, *letters_of("d"), SEP]
    (numbers,) = said_by_llama_cpp(path, [pair], Pooling.RANK)
    entry = {"name": "many", "path": path, "task": "rerank"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        (one,) = await engine.rerank("q", ["d"])
    assert one.score == pytest.approx(float(numbers[0]), abs=1e-4)


async def test_an_input_that_is_too_long_is_told_with_the_numbers_or_cut(make: MakeEmbedder) -> None:
    long = "a " * 100
    async with make() as engine:
        with pytest.raises(InputTooLongError, match=r"input\[1\] has 102 tokens, and the model takes 96") as caught:
            await engine.embed(["fine", long])
        assert (caught.value.tokens, caught.value.limit, caught.value.param) == (102, TRAIN_CONTEXT, "input[1]")
        assert "max_input" not in str(caught.value), "there is nothing to raise it to"
        with pytest.raises(InputTooLongError, match="input has 97 tokens"):
            await engine.embed([CLS] * 97)
        assert (await engine.embed([CLS] * 96))[0].prompt_tokens == 96
        for truncate, length in ((-1, 96), (96, 96), (10, 10), (3, 3)):
            (cut,) = await engine.embed(long, truncate=truncate)
            (same,) = await engine.embed([CLS, *letters_of(long)[: length - 2], SEP])
            assert cut.prompt_tokens == length
            assert np.abs(cut.vector - same.vector).max() < CLOSE
        (short,) = await engine.embed("abc", truncate=50)
        assert short.prompt_tokens == len(tokens_of("abc"))
        assert (await engine.embed([CLS] * 500, truncate=5))[0].prompt_tokens == 5
        bad: list[Any] = [0, -2, 97, True, 1.5, "3"]
        for truncate in bad:
            with pytest.raises(InvalidRequestError, match="from 1 to 96, or -1") as refused:
                await engine.embed(long, truncate=truncate)
            assert refused.value.param == "truncate_prompt_tokens"
        with pytest.raises(InvalidRequestError, match="2 of them are not its own"):
            await engine.embed(long, truncate=2)


async def test_the_limit_follows_the_settings_and_the_model(make: MakeEmbedder) -> None:
    async with make({"max_input": 20}, micro_batch=64) as engine:
        assert engine.served_models[0].info.limit == engine.limit == 20
        with pytest.raises(InputTooLongError, match="or raise the model's max_input, up to 96"):
            await engine.embed("a " * 30)
    async with make(micro_batch=64) as engine:
        assert engine.limit == 64
        assert len(await engine.embed(["a " * 60] * 9)) == 9
    async with make({"max_input": 96}, micro_batch=8) as engine:
        (one,) = await engine.embed("a " * 94)
        assert one.prompt_tokens == 96


async def test_a_document_is_cut_and_the_query_is_not(engines: list[WatchedEngine], tiny_ranker: Path) -> None:
    entry = {"name": "rank", "path": tiny_ranker, "task": "rerank"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        with pytest.raises(InputTooLongError, match=r"documents\[1\] has 107 tokens"):
            await engine.rerank("abcd", ["short", "a " * 100])
        (cut,) = await engine.rerank("abcd", ["a " * 100], truncate=20)
        (same,) = await engine.rerank("abcd", ["a " * 13])
        assert cut.result.prompt_tokens == 20
        assert cut.score == pytest.approx(same.score, abs=1e-4)
        with pytest.raises(InvalidRequestError, match="cannot be cut to 6 tokens"):
            await engine.rerank("abcd", ["ab"], truncate=6)
        (empty,) = await engine.rerank("abcd", [""])
        assert empty.result.prompt_tokens == 7


async def test_a_reranker_may_bring_a_template(engines: list[WatchedEngine], tmp_path: Path) -> None:
    path = tmp_path / "template.gguf"
    write_encoder(path, gguf.PoolingType.RANK, head=True, rerank_template="[CLS]q {query} d {document} end[SEP]")
    entry = {"name": "rank", "path": path, "task": "rerank"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        (one,) = await engine.rerank("ab", ["cd {query}"])
        whole = [CLS, *letters_of("q ab d cd"), UNKNOWN, *letters_of("query"), UNKNOWN, *letters_of("end"), SEP]
        (same,) = said_by_llama_cpp(path, [whole], Pooling.RANK)
        assert one.result.vector == pytest.approx(same, abs=1e-4), "a hole within the document was filled"
        (cut,) = await engine.rerank("ab", ["c " * 200], truncate=20)
        assert cut.result.prompt_tokens == 20
        with pytest.raises(InputTooLongError):
            await engine.rerank("ab", ["c " * 200])


@pytest.mark.parametrize(
    ("inputs", "error", "param"),
    [
        ([], InvalidRequestError, "input"),
        ("", InvalidRequestError, "input"),
        (["a", ""], InvalidRequestError, "input[1]"),
        (["a", []], InvalidRequestError, "input[1]"),
        ([10**6], InvalidRequestError, "input"),
        ([-1], InvalidRequestError, "input"),
        ([[5], [1.5]], InvalidRequestError, "input[1]"),
        ([[5], ["x"]], InvalidRequestError, "input[1]"),
        ([5, "x"], InvalidRequestError, "input"),
        ("\ud800", InvalidRequestError, "prompt"),
    ],
)
async def test_inputs_that_cannot_be_served(
    make: MakeEmbedder, inputs: Any, error: type[RequestError], param: str
) -> None:
    async with make() as engine:
        with pytest.raises(error) as caught:
            await engine.embed(inputs)
        assert caught.value.param == param
        assert len(await engine.embed(TEXTS)) == len(TEXTS)


async def test_options_that_cannot_be_used(make: MakeEmbedder, tiny_model: Path) -> None:
    async with make(generating=tiny_model) as engine:
        with pytest.raises(InvalidPriorityError):
            await engine.embed("a", priority="sometime")
        bad: list[dict[str, Any]] = [{"deadline": 0}, {"deadline": "soon"}, {"tenant": 5}, {"request_id": 7}]
        for options in bad:
            with pytest.raises(InvalidRequestError) as caught:
                await engine.embed("a", **options)
            assert caught.value.param == next(iter(options))
        with pytest.raises(TypeError, match="unknown options: temperature"):
            await engine.embed("a", temperature=1)  # type: ignore[call-arg]
        with pytest.raises(UnknownModelError, match="this server has tiny, enc"):
            await engine.embed("a", model="huge")
        with pytest.raises(WrongTaskError, match="'tiny' is not for the task embed: for that there is enc"):
            await engine.embed("a", model="tiny")
        for model in (None, "enc"):
            with pytest.raises(WrongTaskError, match="rerank"):
                await engine.rerank("a", ["b"], model=model)
        with pytest.raises(WrongTaskError, match="'enc' is not for the task generate: for that there is tiny"):
            engine.check_model("enc")
        engine.check_model("tiny")


async def test_bad_queries_and_documents(engines: list[WatchedEngine], tiny_ranker: Path) -> None:
    entry = {"name": "rank", "path": tiny_ranker, "task": "rerank"}
    async with embedding_engine(embedding_config([entry]), engines) as engine:
        bad: list[Any] = [
            ("", ["a"], "query"),
            (5, ["a"], "query"),
            ("q", [], "documents"),
            ("q", ["a", 5], "documents[1]"),
            ("q", "abc", "documents"),
        ]
        for query, documents, param in bad:
            with pytest.raises(InvalidRequestError) as caught:
                await engine.rerank(query, documents)
            assert caught.value.param == param
        with pytest.raises(WrongTaskError):
            await engine.embed("a")


async def test_an_engine_that_only_embeds(make: MakeEmbedder) -> None:
    async with make({"aliases": ["text-embedding-3-small"]}) as engine:
        assert engine.model_names == ("enc", "text-embedding-3-small")
        assert (engine.limit, engine.most_choices, engine.down) == (96, 1, False)
        assert (await engine.embed("a", model="text-embedding-3-small"))[0].prompt_tokens == 3
        with pytest.raises(WrongTaskError, match="no model for the task generate"):
            await engine.generate("a")
        with pytest.raises(WrongTaskError):
            engine.check_model("enc")
        statistics = engine.stats()
        assert (statistics.places, statistics.counters.embedded, statistics.counters.admitted) == (PLACES, 1, 1)


async def test_of_several_models_one_has_to_be_named(
    engines: list[WatchedEngine], tiny_encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_each_lane_had_its_cores(monkeypatch)
    names = ("mean", "cls", "last")
    models = [{"name": name, "path": tiny_encoder, "task": "embed", "pooling": name} for name in names]
    async with embedding_engine(embedding_config(models), engines) as engine:
        with pytest.raises(WrongTaskError, match="name a model for the task embed: there are mean, cls, last"):
            await engine.embed("abc")
        vectors = [(await engine.embed("abc", model=name))[0].vector for name in names]
        assert np.abs(vectors[0] - vectors[1]).max() > 0.01
        assert engine._running is not None
        assert len(engine._running.machinery.models) == 1, "the same file was loaded twice"


async def test_models_that_do_not_suit_their_task(
    engines: list[WatchedEngine], tiny_model: Path, tiny_encoder: Path, tiny_ranker: Path
) -> None:
    for entry, error, message in (
        ({"path": tiny_model, "task": "embed"}, ConfigError, "set the model's pooling to mean, cls or last"),
        ({"path": tiny_ranker, "task": "embed"}, ConfigError, "set its task to rerank"),
        ({"path": tiny_encoder, "task": "rerank"}, ModelLoadError, "no head that scores"),
        ({"path": tiny_encoder, "task": "embed", "max_input": 97}, ConfigError, "trained for 96 tokens"),
        ({"path": tiny_encoder, "task": "generate"}, ModelLoadError, "task: embed"),
    ):
        engine = Engine(embedding_config([{"name": "m"} | entry]))
        with pytest.raises(error, match=message):
            await engine.__aenter__()


async def test_tokens_and_texts_of_each_model(make: MakeEmbedder, tiny_model: Path) -> None:
    async with make(generating=tiny_model) as engine:
        assert await engine.tokenize("a bc") == await engine.tokenize("a bc", model="tiny") == bytes_of("a bc")
        assert await engine.tokenize("a bc", add_special_tokens=False) == bytes_of("a bc")[1:]
        assert await engine.tokenize("abc de", model="enc") == tokens_of("abc de")
        assert await engine.detokenize(bytes_of("a bc")) == "<s>a bc"
        assert await engine.detokenize(tokens_of("abc de"), model="enc") == "[CLS] abc de[SEP]"
        assert await engine.detokenize([]) == ""
        long = "word " * 2000
        assert await engine.detokenize((await engine.tokenize(long))[1:]) == long
        assert await engine.tokenize_chat([{"role": "user", "content": "hi"}]) == await engine.tokenize(
            "[user]hi</s>[assistant]"
        )
        bad: list[Any] = [[10**6], [-1], [True], ["a"]]
        for tokens in bad:
            with pytest.raises(InvalidRequestError):
                await engine.detokenize(tokens)
        with pytest.raises(UnknownModelError):
            await engine.tokenize("a", model="huge")
    with pytest.raises(EngineClosedError):
        await engine.tokenize("a")
    with pytest.raises(EngineClosedError):
        await engine.embed("a")
