"""A model's vocabulary: text to tokens, and tokens to bytes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator

from llamalane.errors import InvalidRequestError, ModelLoadError
from llamalane.streams.gate import Gate
from llamalane.streams.llama.library import library


class Vocabulary:
    """The vocabulary of a loaded model.

    Tokenizing is safe from any thread (llama.h); all else is read once and then only looked up. Closing waits for
    those that are tokenizing; after that, tokenizing raises `ModelLoadError`.
    """

    def __init__(self, pointer: int) -> None:
        api = library().api
        self._pointer = pointer
        self._api = api
        self._gate = Gate()
        self._closed = False
        self.size: int = api.llama_vocab_n_tokens(pointer)
        self.bos: int = api.llama_vocab_bos(pointer)
        self.eos: int = api.llama_vocab_eos(pointer)
        self.adds_bos: bool = api.llama_vocab_get_add_bos(pointer)
        self.end_of_generation = frozenset(
            token for token in range(self.size) if api.llama_vocab_is_eog(pointer, token)
        )

    @functools.cached_property
    def pieces(self) -> list[bytes]:
        """What each token stands for, in bytes; control tokens stand for nothing."""
        return [self._piece(token, special=False) for token in range(self.size)]

    @functools.cached_property
    def longest_piece(self) -> int:
        """The most bytes that one token can stand for, control tokens included."""
        return max(len(self._piece(token, special=True)) for token in range(self.size))

    def marked_pieces(self, mark: bytes) -> list[bytes]:
        """Return what each token stands for; `mark` and its name for a token that is not a piece of text."""
        return [self._marked_piece(token, mark) for token in range(self.size)]

    def marked(self, name: str) -> int | None:
        """Return the token whose name is `name` if that is no piece of text, but a mark; None if there is none."""
        tokens = self.tokenize(name, add_special=False, parse_special=True)
        with self.in_use():
            if len(tokens) != 1 or self._piece(tokens[0], special=True) != name.encode():
                return None
            return tokens[0] if self._marked_piece(tokens[0], b"\xff").startswith(b"\xff") else None

    def text_of(self, token: int) -> str:
        """Return a token as a chat template names it, `""` for no token (−1)."""
        return "" if token < 0 else self._piece(token, special=True).decode(errors="replace")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens of `text`.

        `add_special` adds what the model wants around a text (such as a BOS token); `parse_special` reads the names
        of control tokens in the text as those tokens. Raises `InvalidRequestError` for text that is not Unicode
        (lone surrogates).
        """
        data = encode(text)
        with self.in_use() as pointer:
            room = len(data) + 8
            while True:
                buffer = (ctypes.c_int32 * room)()
                count = self._api.llama_tokenize(pointer, data, len(data), buffer, room, add_special, parse_special)
                if count >= 0:
                    return buffer[:count]
                room = -count  # llama.h: too little room; −count is what it takes

    def with_one_bos(self, tokens: list[int]) -> list[int]:
        """Return `tokens` with exactly one BOS token at the start, if the model wants one.

        A chat template may have written one already, or several parties each may have added theirs.
        """
        if self.bos < 0:
            return tokens
        start = 0
        while start < len(tokens) and tokens[start] == self.bos:
            start += 1
        if self.adds_bos:
            return [self.bos, *tokens[start:]]
        # A template may use the token as a mark of its own: SmolLM2 opens every message with it.
        return tokens[max(start - 1, 0) :]

    @contextlib.contextmanager
    def in_use(self) -> Iterator[int]:
        """Give the `llama_vocab *`, which stays there during the block; raises `ModelLoadError` after closing."""
        with self._gate.shared():
            if self._closed:
                raise ModelLoadError("the model is closed")
            yield self._pointer

    def close(self) -> None:
        """Let nobody use the model's memory any more."""
        with self._gate.exclusive():
            self._closed = True

    def _marked_piece(self, token: int, mark: bytes) -> bytes:
        piece = self.pieces[token]
        if not piece:
            return mark + self._piece(token, special=True)
        # A model's own markup, such as <think>; it has no business within a text either.
        user_defined = self._api.llama_vocab_get_attr(self._pointer, token) & self._api.LLAMA_TOKEN_ATTR_USER_DEFINED
        return mark + piece if user_defined and piece.startswith(b"<") and piece.endswith(b">") else piece

    def _piece(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = self._api.llama_token_to_piece(self._pointer, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def __repr__(self) -> str:
        return f"<Vocabulary of {self.size} tokens>"


def encode(text: str) -> bytes:
    """Return `text` in UTF-8; raises `InvalidRequestError` for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"the text is not valid Unicode: {error.reason}", param="prompt") from None
