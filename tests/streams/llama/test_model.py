from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from llamalane.errors import ModelLoadError
from llamalane.streams.llama import Context, Model, ModelOptions
from tests.models.tiny_gguf import TRAIN_CONTEXT, Kind
from tests.streams.llama.conftest import OPTIONS


def refused(path: Path) -> str:
    with pytest.raises(ModelLoadError) as caught:
        Model(ModelOptions(path=path))
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_missing_file_is_told_as_such(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "nowhere.gguf")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a zip file", b"\x00" * 100])
def test_a_file_that_is_not_gguf_is_told_by_its_first_bytes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert f"is not a GGUF file: it starts with {content[:4]!r}" in refused(path)


@pytest.mark.parametrize("share", [0.0, 1e-4, 1e-3, 0.01, 0.02, 0.1, 0.5, 0.9])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, tiny_model: Path, share: float) -> None:
    # From right after the magic bytes, over the metadata and the list of tensors, to the middle of the weights.
    whole = tiny_model.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: 4 + int(share * len(whole))])
    assert len(refused(path)) > len(f"cannot load {path}: "), "no reason is given"


def test_a_file_without_its_last_bytes_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_model.read_bytes()[:-64])
    assert "file bounds" in refused(path)


def test_damaged_metadata_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    whole = bytearray(tiny_model.read_bytes())
    whole[8:16] = (2**40).to_bytes(8, "little")  # the number of tensors
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole)
    refused(path)


def test_an_unknown_architecture_is_refused_by_its_name(tmp_path: Path, tiny_model: Path) -> None:
    path = tmp_path / "unknown.gguf"
    path.write_bytes(tiny_model.read_bytes().replace(b"llama", b"lllll"))
    assert "lllll" in refused(path)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_model_tells_what_it_is(tiny_model: Path, mmap: bool) -> None:
    with Model(ModelOptions(path=tiny_model, mmap=mmap)) as model:
        assert model.train_context == TRAIN_CONTEXT
        assert model.parameters > 50_000
        assert model.bytes == pytest.approx(4 * model.parameters, rel=0.01)
        assert model.metadata("general.architecture") == "llama"
        assert model.metadata("no.such.key") is None


@pytest.mark.parametrize("kind", list(Kind))
def test_only_attention_can_drop_the_end_of_a_sequence(models: Mapping[Kind, Model], kind: Kind) -> None:
    assert models[kind].can_roll_back == (kind in (Kind.DENSE, Kind.SLIDING))


def test_a_closed_model_is_not_used(tiny_model: Path) -> None:
    model = Model(ModelOptions(path=tiny_model))
    model.close()
    model.close()
    with pytest.raises(ModelLoadError, match="is closed"):
        Context(model, OPTIONS)
    with pytest.raises(ModelLoadError, match="is closed"):
        model.chat_template()


def test_one_file_can_be_loaded_twice(tiny_model: Path) -> None:
    with Model(ModelOptions(path=tiny_model)) as first, Model(ModelOptions(path=tiny_model)) as second:
        assert first.pointer != second.pointer
        assert first.vocabulary.size == second.vocabulary.size
