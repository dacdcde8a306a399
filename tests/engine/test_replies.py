"""What reading a reply asks of the engine: marks in its text, an end that its text decides, and ready-made prompts."""

from __future__ import annotations

from pathlib import Path

import pytest

from llamalane.errors import ChatTemplateError, EngineClosedError, InvalidRequestError
from llamalane.ids import RequestId
from llamalane.scheduler import ChatPrompt, FinishReason, SamplingParameters, StopWhen
from tests.engine.conftest import MakeEngine
from tests.engine.running import greedy, seeded
from tests.models.tiny_gguf import CHAT_TEMPLATE, Kind, write_model

pytestmark = pytest.mark.anyio

MARK, OTHER = "[TOOL_CALLS]", "[ARGS]"
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def marked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two control tokens, its last ones."""
    path = tmp_path_factory.mktemp("marked") / "model.gguf"
    write_model(path, Kind.DENSE, chat_template=CHAT_TEMPLATE, marks=[MARK, OTHER])
    return path


async def test_marks_are_text_where_they_are_asked_for(make_engine: MakeEngine, marked_model: Path) -> None:
    async with make_engine(marked_model) as engine:
        mark = engine.model_info.vocabulary_size - 2
        sampling = greedy(3, logit_bias={mark: 100.0})
        hidden = await engine.generate("x", sampling=sampling)
        shown = await engine.generate("x", sampling=sampling, shown=(MARK, "<no such token>", "x", ""))
        other = await engine.generate("x", sampling=sampling, shown=(OTHER,))
    assert hidden.tokens == shown.tokens == other.tokens == (mark,) * 3
    assert (hidden.text, shown.text, other.text) == ("", MARK * 3, "")


async def test_a_mark_can_be_a_stop_string(make_engine: MakeEngine, marked_model: Path) -> None:
    async with make_engine(marked_model) as engine:
        mark = engine.model_info.vocabulary_size - 2
        sampling = SamplingParameters(temperature=0, max_tokens=3, logit_bias={mark: 100.0}, stop=(MARK,))
        result = await engine.generate("x", sampling=sampling, shown=(MARK,))
    assert (result.text, result.finish_reason) == ("", FinishReason.STOP)


async def test_the_text_decides_where_an_output_ends_each_choice_for_itself(make_engine: MakeEngine) -> None:
    seen: list[list[str]] = []

    def after_five() -> StopWhen:
        texts: list[str] = []
        seen.append(texts)

        def ends(text: str) -> bool:
            texts.append(text)
            return len("".join(texts)) >= 5

        return ends

    async with make_engine() as engine:
        ids = [RequestId("a"), RequestId("b")]
        sampling = seeded(1, 40)
        whole = await engine.generate("Once", sampling=sampling)
        handles = await engine.submit_choices("Once", ids, sampling=sampling, stop_when=after_five)
        results = [await handle for handle in handles]
        streamed = await engine.submit("Once", sampling=sampling, stop_when=after_five)
        pieces = [text async for text in streamed]
    assert [result.finish_reason for result in results] == [FinishReason.STOP] * 2
    assert all(5 <= len(result.text) < len(whole.text) for result in results)
    assert whole.text.startswith(results[0].text)
    assert "".join(pieces) == results[0].text
    assert ["".join(texts) for texts in seen] == [*(result.text for result in results), results[0].text]


async def test_a_prompt_that_a_template_wrote_is_taken_as_it_is(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        by_hand = await engine.generate(ChatPrompt(engine.chat_template.render(MESSAGES)), sampling=greedy(5))
        chat = await engine.chat(MESSAGES, sampling=greedy(5))
        text = await engine.generate(engine.chat_template.render(MESSAGES), sampling=greedy(5))
        with pytest.raises(InvalidRequestError, match="prompt is empty"):
            await engine.submit(ChatPrompt(""))
    assert by_hand.tokens == chat.tokens
    assert by_hand.usage.prompt_tokens == chat.usage.prompt_tokens == text.usage.prompt_tokens


async def test_a_model_without_a_template_has_none_to_offer(
    make_engine: MakeEngine, tiny_models: dict[Kind, Path]
) -> None:
    engine = make_engine(tiny_models[Kind.DENSE])
    with pytest.raises(EngineClosedError):
        _ = engine.chat_template
    async with engine:
        with pytest.raises(ChatTemplateError, match="no chat template"):
            _ = engine.chat_template


async def test_what_is_shown_must_be_names(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        with pytest.raises(InvalidRequestError, match="shown must be tuple"):
            await engine.submit("x", shown=MARK)  # type: ignore[arg-type]
