"""Models with random weights: llama.cpp loads them, and they compute numbers of a sound size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llamalane.bench.gpu.streams import decode_rows, opened, prefill
from llamalane.bench.gpu.synthetic import SHAPES, WeightType, write_synthetic
from llamalane.streams.llama import Batch, Context


@pytest.mark.parametrize(("kind", "bits"), [(WeightType.Q4_K, 4.5), (WeightType.F16, 16.0)])
def test_a_synthetic_model_can_be_run(tmp_path: Path, kind: WeightType, bits: float) -> None:
    path = tmp_path / "tiny.gguf"
    write_synthetic(path, SHAPES["tiny"], kind)
    assert [file.name for file in tmp_path.iterdir()] == ["tiny.gguf"]
    with opened(path, on_gpu=False) as bench:
        matrices = [shape for _, shape in SHAPES["tiny"].tensors() if len(shape) == 2]
        expected = sum(rows * columns for rows, columns in matrices) * bits / 8
        assert bench.model.bytes == pytest.approx(expected, rel=0.01)
        context = Context(bench.model, bench.options(2, 512, 64))
        batch = Batch(64)
        for row in range(2):
            prefill(context, batch, row, bench.tokens(100, seed=row))
        decode_rows(context, batch, [100, 100], 300)
        logits = context.logits(batch).copy()
        context.close()
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 10
    assert abs(logits.mean()) < logits.std()
    assert not np.allclose(logits[0], logits[1]), "what came before matters"


def test_the_sizes_are_those_that_they_are_named_after() -> None:
    parameters = {name: sum(int(np.prod(shape)) for _, shape in design.tensors()) for name, design in SHAPES.items()}
    assert parameters["1b"] == pytest.approx(1.1e9, rel=0.01)
    assert parameters["7b"] == pytest.approx(7.24e9, rel=0.01)


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_synthetic(tmp_path / name, SHAPES["tiny"], WeightType.Q4_K, seed=3)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
