"""Runs of tokens that are held together: what a prefix tree consists of."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from llamalane.errors import PoolError

Holder = TypeVar("Holder", bound=Hashable)


@dataclass(slots=True, eq=False)
class Run(Generic[Holder]):
    """Tokens that the same holders hold, all in one place of their paths. A root has no parent and no tokens.

    Attributes:
        parent: the run before.
        tokens: its own tokens.
        end: the length of a path that ends with it.
        holders: how many paths lead through it or end with it.
        pinned: how many of these are pinned.
        filled: how many of them are filled.
        stopped: how many of them have stopped.
        ends: the holders whose paths end with it, in the order in which they came.
        children: the runs that go on from it, by their first token; several with the same one hold it in cells of
            their own.
    """

    parent: Run[Holder] | None
    tokens: list[int]
    end: int
    holders: int = 0
    pinned: int = 0
    filled: int = 0
    stopped: int = 0
    ends: dict[Holder, None] = field(default_factory=dict)
    children: dict[int, list[Run[Holder]]] = field(default_factory=dict)

    @property
    def offered(self) -> bool:
        """Whether anybody holds it, or is about to, whom others can rely on."""
        return self.holders > self.stopped

    @property
    def start(self) -> int:
        """The length of a path that ends just before it."""
        return self.end - len(self.tokens)

    def upwards(self) -> Iterator[Run[Holder]]:
        """Yield this run and all before it, up to the root."""
        run: Run[Holder] | None = self
        while run is not None:
            yield run
            run = run.parent

    def downwards(self) -> Iterator[Run[Holder]]:
        """Yield this run and all that go on from it."""
        waiting = [self]
        while waiting:
            run = waiting.pop()
            yield run
            waiting.extend(child for siblings in run.children.values() for child in siblings)

    def split(self, length: int) -> Run[Holder]:
        """Move the first `length` tokens to a new run before it, and return that one.

        This one stays the lower part: those who end there, and its children, need not be told.
        """
        parent = self.parent
        assert parent is not None, "a root has nothing to split"
        upper = Run(parent, self.tokens[:length], self.start + length, self.holders)
        upper.pinned, upper.filled, upper.stopped = self.pinned, self.filled, self.stopped
        parent.replace(self, upper)
        del self.tokens[:length]
        self.parent = upper
        upper.add(self)
        return upper

    def merge(self) -> None:
        """Become one with its only child, unless it is a root, has other children, or somebody ends with it.

        It is the child that stays, for the same reason.
        """
        child = self.only_child()
        if self.parent is None or self.ends or child is None:
            return
        child.tokens[:0] = self.tokens
        child.parent = self.parent
        self.parent.replace(self, child)

    def add(self, child: Run[Holder]) -> None:
        """Take in a run that goes on from it."""
        self.children.setdefault(child.tokens[0], []).append(child)

    def drop(self, child: Run[Holder]) -> None:
        """Let a run go that goes on from it."""
        siblings = self.children[child.tokens[0]]
        siblings.remove(child)
        if not siblings:
            del self.children[child.tokens[0]]

    def replace(self, child: Run[Holder], new: Run[Holder]) -> None:
        """Put `new`, which begins with the same token, in the place of a run that goes on from it."""
        siblings = self.children[child.tokens[0]]
        siblings[siblings.index(child)] = new

    def only_child(self) -> Run[Holder] | None:
        """Return the one run that goes on from it, None when there are none, or several."""
        if len(self.children) != 1:
            return None
        (siblings,) = self.children.values()
        return siblings[0] if len(siblings) == 1 else None

    def check(self) -> None:
        """Raise `PoolError` unless it fits to its parent and its children, and could not be merged."""
        if self.parent is None:
            fits = not self.tokens and self.end == 0
        else:
            fits = bool(self.tokens) and self.start == self.parent.end
            fits = fits and (bool(self.ends) or self.only_child() is None)
        for token, siblings in self.children.items():
            fits = fits and len(siblings) > 0
            fits = fits and all(child.parent is self and child.tokens[:1] == [token] for child in siblings)
        if not fits:
            raise PoolError(f"the tree is out of shape at the run {self.tokens}")


def follow(run: Run[Holder], tokens: list[int], *, filled: bool = False) -> tuple[int, Run[Holder]]:
    """Follow `tokens` from the end of a run on as far as any runs lead that are offered, or any that are filled.

    Returns how many of them that are, and the run in which the last one is.
    """
    best, last = 0, run
    waiting = [(0, run)]
    while waiting and best < len(tokens):
        length, run = waiting.pop()
        if length > best:
            best, last = length, run
        for child in run.children.get(tokens[length], ()) if length < len(tokens) else ():
            if not (child.filled if filled else child.offered):
                continue
            piece = tokens[length : length + len(child.tokens)]
            if piece == child.tokens:
                waiting.append((length + len(piece), child))
            elif length + (common := common_prefix(child.tokens, piece)) > best:
                best, last = length + common, child
    return best, last


def follow_whole(run: Run[Holder], tokens: list[int]) -> Run[Holder]:
    """Return the last run with which somebody ends, of those along which `tokens` lead; else the run given."""
    last = run
    waiting = [(0, run)]
    while waiting:
        length, run = waiting.pop()
        if run.ends and run.end > last.end:
            last = run
        for child in run.children.get(tokens[length], ()) if length < len(tokens) else ():
            if tokens[length : length + len(child.tokens)] == child.tokens:
                waiting.append((length + len(child.tokens), child))
    return last


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how many first elements two sequences share. Compares slices, which is quick for lists."""
    if type(left) is not type(right):  # a list never equals a tuple
        left, right = list(left), list(right)
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
