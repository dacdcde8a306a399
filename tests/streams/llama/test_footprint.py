"""What contexts are said to take is what they take."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from llamalane.errors import ContextError
from llamalane.streams.llama import Context, ContextOptions, Model, ModelOptions
from llamalane.streams.llama.footprint import ROUNDING, CellNumbers, measure_cells, measure_context
from tests.models.tiny_gguf import Kind

NUMBERS = {
    Kind.DENSE: CellNumbers(keys=2 * 2 * 16, values=2 * 2 * 16, state=0),
    Kind.SLIDING: CellNumbers(keys=6 * 2 * 16, values=6 * 2 * 16, state=0),
    # The convolution's last 3 columns and the state itself, in two layers, as floats of 32 bits.
    Kind.RECURRENT: CellNumbers(keys=0, values=0, state=2 * (3 * 128 + 128 * 16) * 4),
}


def options(*, partitioned: bool = False, **others: str) -> ContextOptions:
    return ContextOptions(
        cells=16_384,
        sequences=8,
        max_step_tokens=64,
        micro_batch=64,
        threads=1,
        partitioned=partitioned,
        key_type=others.get("key_type", "f16"),
        value_type=others.get("value_type", "f16"),
    )


def really_taken(model: Model, options: ContextOptions, log: pytest.LogCaptureFixture) -> Mapping[str, int]:
    """Create a context with memory, and return what llama.cpp says of its buffers."""
    log.clear()
    with log.at_level(logging.DEBUG, logger="llamalane.llama"):
        Context(model, options).close()
    sizes: dict[str, float] = {}
    for kind, size in re.findall(r"(KV|RS|compute|output) buffer size = +([\d.]+) MiB", log.text):
        sizes[kind] = sizes.get(kind, 0) + float(size)
    return {kind: round(size * (1 << 20)) for kind, size in sizes.items()}


@pytest.fixture(scope="module")
def hollow(tiny_models: Mapping[Kind, Path]) -> Iterator[Mapping[Kind, Model]]:
    """The models without their weights."""
    models = {kind: Model(ModelOptions(path=path, weights=False)) for kind, path in tiny_models.items()}
    yield models
    for model in models.values():
        model.close()


@pytest.mark.parametrize("kind", NUMBERS)
def test_what_a_model_keeps_is_found_exactly(hollow: Mapping[Kind, Model], kind: Kind) -> None:
    assert measure_cells(hollow[kind]) == NUMBERS[kind]


def test_a_hybrid_keeps_both(hollow: Mapping[Kind, Model]) -> None:
    numbers = measure_cells(hollow[Kind.HYBRID])
    assert (numbers.keys, numbers.values) == (2 * 16, 2 * 16)
    assert numbers.state == pytest.approx(NUMBERS[Kind.RECURRENT].state / 2, abs=ROUNDING / 256)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("output_rows", [0, 64])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_context_takes_what_was_measured_without_weights(
    models: Mapping[Kind, Model],
    hollow: Mapping[Kind, Model],
    kind: Kind,
    output_rows: int,
    partitioned: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = replace(options(partitioned=partitioned), output_rows=output_rows)
    real = really_taken(models[kind], chosen, caplog)
    measured = measure_context(hollow[kind], chosen)
    assert measured.cells == real.get("KV", 0)
    assert measured.states == pytest.approx(real.get("RS", 0), abs=ROUNDING)
    assert measured.host == pytest.approx(real["compute"] + real["output"], abs=1)
    assert measured.device == 0


def test_a_context_that_cannot_be_is_refused_in_llama_cpps_words(hollow: Mapping[Kind, Model]) -> None:
    with pytest.raises(ContextError, match="K cache type q8_0 with block size 32 does not divide n_embd_head_k=16"):
        measure_context(hollow[Kind.DENSE], options(key_type="q8_0"))


def test_measuring_says_nothing_in_the_log(hollow: Mapping[Kind, Model], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="llamalane.llama"):
        measure_cells(hollow[Kind.DENSE])
        measure_context(hollow[Kind.DENSE], options())
    assert caplog.text == ""


def test_a_model_without_weights_says_what_it_is(hollow: Mapping[Kind, Model], models: Mapping[Kind, Model]) -> None:
    for kind in Kind:
        assert hollow[kind].bytes == models[kind].bytes
        assert hollow[kind].layers == models[kind].layers
        assert hollow[kind].train_context == models[kind].train_context
    assert (hollow[Kind.SLIDING].key_head, hollow[Kind.SLIDING].value_head) == (16, 16)
    assert (hollow[Kind.DENSE].key_head, hollow[Kind.DENSE].value_head) == (16, 16)
    assert (hollow[Kind.RECURRENT].key_head, hollow[Kind.RECURRENT].value_head) == (0, 0)
