from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from llamalane.errors import ChatTemplateError
from llamalane.ids import SequenceId
from llamalane.streams.llama.batch import Batch
from llamalane.streams.llama.chat import ChatTemplate
from llamalane.streams.llama.context import Context, ContextOptions
from llamalane.streams.llama.model import Model, ModelOptions
from tests.models.tiny_gguf import BOS, TRAIN_CONTEXT, WINDOW, Kind, write_model

CONTEXT = ContextOptions(cells=256, sequences=2, max_step_tokens=64, micro_batch=64, threads=1)
SEQUENCE = SequenceId(0)


@pytest.fixture(params=list(Kind))
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


@pytest.fixture
def model(kind: Kind, tiny_models: Mapping[Kind, Path]) -> Iterator[Model]:
    with Model(ModelOptions(path=tiny_models[kind])) as model:
        yield model


def test_decodes_a_prompt_and_what_follows(model: Model) -> None:
    tokens = model.vocabulary.tokenize("Grüße an alle", add_special=True, parse_special=False)
    context = Context(model, CONTEXT)
    batch = Batch(CONTEXT.max_step_tokens)
    for step in range(4):
        start = context.length(SEQUENCE)
        batch.clear()
        batch.add(SEQUENCE, tokens[start:], start, output=True)
        context.decode(batch)
        logits = context.logits(batch)[0]
        assert context.length(SEQUENCE) == len(tokens), f"step {step}"
        assert np.isfinite(logits).all()
        assert logits.std() > 0.1, "the model has no opinion"
        tokens.append(int(logits.argmax()))
    context.close()


def test_the_past_changes_the_output(model: Model) -> None:
    def logits_after(text: str) -> list[float]:
        context = Context(model, CONTEXT)
        batch = Batch(CONTEXT.max_step_tokens)
        tokens = model.vocabulary.tokenize(text, add_special=True, parse_special=False)
        batch.add(SEQUENCE, tokens, 0, output=True)
        context.decode(batch)
        values: list[float] = context.logits(batch)[0].tolist()
        context.close()
        return values

    assert logits_after("abc") == logits_after("abc")
    difference = np.subtract(logits_after("abc"), logits_after("xbc"))
    assert abs(difference).max() > 0.01


def test_every_byte_is_a_token(model: Model) -> None:
    vocabulary = model.vocabulary
    text = "a b\n  ü€\t🙂"
    tokens = vocabulary.tokenize(text, add_special=True, parse_special=False)
    assert tokens[0] == BOS
    assert len(tokens) == 1 + len(text.encode())
    assert b"".join(vocabulary.pieces[token] for token in tokens) == text.encode()


def test_llama_cpp_knows_the_kind(model: Model, kind: Kind) -> None:
    assert model.train_context == TRAIN_CONTEXT
    assert model.recurrent == (kind is Kind.RECURRENT)
    assert model.hybrid == (kind is Kind.HYBRID)
    window = model.metadata("gemma3.attention.sliding_window")
    assert window == (str(WINDOW) if kind is Kind.SLIDING else None)


def test_the_seed_decides_the_weights(kind: Kind, tiny_models: Mapping[Kind, Path], tmp_path: Path) -> None:
    same, other = tmp_path / "same.gguf", tmp_path / "other.gguf"
    write_model(same, kind)
    write_model(other, kind, seed=1)
    assert same.read_bytes() == tiny_models[kind].read_bytes()
    assert other.read_bytes() != same.read_bytes()


def test_chat_template_writes_one_turn_after_the_other(tiny_model: Path) -> None:
    with Model(ModelOptions(path=tiny_model)) as model:
        template = ChatTemplate.of(model)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        assert template.render(messages) == "<s>[system]Be brief.</s>[user]Hello</s>[assistant]"
        with pytest.raises(ChatTemplateError, match="no such role: pirate"):
            template.render([{"role": "pirate", "content": "Arr"}])


def test_models_come_without_a_chat_template_unless_asked(model: Model) -> None:
    assert model.chat_template() is None


def test_the_demonstration_model_is_whole(smollm2: Path) -> None:
    with Model(ModelOptions(path=smollm2)) as model:
        assert model.metadata("general.architecture") == "llama"
        assert model.chat_template() is not None
        assert not model.recurrent
        assert not model.hybrid
