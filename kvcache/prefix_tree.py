"""Which tokens are held by whom, where sequences that begin alike hold their beginning together.

A radix tree over token ids, one for each scope. A holder's path goes from the root to the run with which it ends, and
always fills that run. Whoever holds a run holds all before it, so the tokens that nobody else holds are the last ones
of a path. No run has a single child unless somebody ends there: else the two would be one.

Unlike in other radix trees, two runs beside each other may begin alike: their holders hold the same tokens, but each in
cells of its own, which count twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, KeysView, Sequence
from dataclasses import dataclass
from typing import Generic

from llamalane.errors import PoolError
from llamalane.kvcache.paths import Path, Spans
from llamalane.kvcache.runs import Holder, Run, follow, follow_whole


@dataclass(frozen=True, slots=True)
class Match(Generic[Holder]):
    """How many first tokens are held, and one holder that holds them all; nobody holds no tokens.

    At least one pinned holder holds the first `pinned` of them as well, in the same cells.
    """

    length: int
    holder: Holder | None
    pinned: int = 0


class PrefixTree(Generic[Holder]):
    """The paths of all holders, each within its scope; paths of different scopes have nothing in common.

    A holder is anything hashable, such as a sequence id. Tokens that are given are copied. What an operation costs
    depends on the length of the paths that it touches, and not on how many others there are that do not begin alike.
    Pinned are holders whose tokens must stay. Filled are those whose tokens are all there; others may wait for some.
    Of those, stopped ones will never have them, and nothing that these alone hold is found by a match. A holder that is
    unknown, or known where a new one is wanted, raises `PoolError`, and nothing changes.
    """

    def __init__(self) -> None:
        self._paths: dict[Holder, Path[Holder]] = {}
        self._roots: dict[str, Run[Holder]] = {}
        self._spans = Spans()

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, holder: object) -> bool:
        return holder in self._paths

    @property
    def holders(self) -> KeysView[Holder]:
        """All holders, in the order in which they got their names."""
        return self._paths.keys()

    @property
    def span(self) -> int:
        """How many tokens are held; what several hold together counts once."""
        return self._spans.held

    @property
    def pinned_span(self) -> int:
        """How many of them at least one pinned holder holds."""
        return self._spans.pinned

    def pinned_by(self, holders: Iterable[Holder]) -> int:
        """Return how many tokens are held by any of `holders`, which are pinned, and by no other pinned one."""
        pins = Counter(run for holder in holders for run in self._path(holder).last.upwards())
        return sum(len(run.tokens) for run, count in pins.items() if count == run.pinned)

    def length(self, holder: Holder) -> int:
        """Return how many tokens a holder holds."""
        return self._path(holder).last.end

    def scope(self, holder: Holder) -> str:
        """Return the scope of a holder's path."""
        return self._path(holder).scope

    def pinned(self, holder: Holder) -> bool:
        """Return whether a holder is pinned."""
        return self._path(holder).pinned

    def filled(self, holder: Holder) -> bool:
        """Return whether all tokens of a holder are there."""
        return self._path(holder).filled

    def exclusive(self, holder: Holder) -> int:
        """Return how many of its tokens nobody else holds: always the last ones."""
        run = self._path(holder).last
        length = run.end
        while run.parent is not None and run.holders == 1:
            run = run.parent
        return length - run.end

    def tokens(self, holder: Holder) -> list[int]:
        """Return all tokens of a holder."""
        tokens: list[int] = []
        for run in reversed(list(self._path(holder).last.upwards())):
            tokens += run.tokens
        return tokens

    def match(self, scope: str, tokens: Sequence[int], *, filled: bool = False) -> Match[Holder]:
        """Return how many of the first `tokens` any one of the scope holds, and one who does; perhaps a filled one.

        Those who have stopped are passed over.
        """
        root = self._roots.get(scope)
        if root is None:
            return Match(0, None)
        length, run = follow(root, _as_list(tokens), filled=filled)
        if length == 0:
            return Match(0, None)
        pinned = next((above.end for above in run.upwards() if above.pinned), 0)
        return Match(length, self._holder_of(run, filled), min(length, pinned))

    def match_whole(self, scope: str, tokens: Sequence[int]) -> Match[Holder]:
        """Return the longest path that `tokens` begin with, and a holder of it. Tells nothing of pinned ones."""
        root = self._roots.get(scope)
        run = None if root is None else follow_whole(root, _as_list(tokens))
        return Match(0, None) if run is None or run.end == 0 else Match(run.end, next(iter(run.ends)))

    def insert(
        self,
        holder: Holder,
        scope: str,
        tokens: Sequence[int],
        *,
        beside: tuple[Holder, int] | None = None,
        apart: bool = False,
        pinned: bool = False,
        filled: bool = True,
    ) -> int:
        """Give a new holder its path, which may be empty; returns how many of the tokens others held already.

        `beside` names a holder, and how many first tokens it shares with that one. With `apart`, all that comes after
        is in cells of its own; else it shares what it can. Raises `PoolError` when that holder does not hold these
        tokens.
        """
        self._check_new(holder)
        tokens = _as_list(tokens)
        if beside is not None:
            self._check_beside(scope, tokens, *beside)
        root = self._roots.get(scope)
        if root is None:
            root = self._roots[scope] = Run(None, [], 0)
        path = self._paths[holder] = Path(scope, root, self._spans, pinned, filled)
        path.enter(root)
        if beside is not None:
            path.lead_beside(self._path(beside[0]), beside[1])
        shared = path.last.end
        return shared + self._lead_on(holder, path, tokens[shared:], apart)

    def extend(self, holder: Holder, tokens: Sequence[int], *, apart: bool = False) -> int:
        """Add tokens to the end of a path; returns how many of them, from the first on, others held already.

        With `apart`, it holds them in cells of its own.
        """
        path = self._path(holder)
        del path.last.ends[holder]
        return self._lead_on(holder, path, _as_list(tokens), apart)

    def common(self, holder: Holder, other: Holder) -> int:
        """Return how many first tokens two holders hold together."""
        runs = set(self._path(holder).last.upwards())
        return next((run.end for run in self._path(other).last.upwards() if run in runs), 0)

    def shorten(self, holder: Holder, length: int) -> int:
        """Cut a path to its first `length` tokens; returns how many of the dropped ones nobody else holds."""
        path = self._path(holder)
        if not 0 <= length <= path.last.end:
            raise PoolError(f"{holder!r} holds {path.last.end} tokens and cannot be cut to {length}")
        before = self._spans.held
        del path.last.ends[holder]
        left = path.withdraw(length)
        path.last.ends[holder] = None
        left.merge()
        return before - self._spans.held

    def remove(self, holder: Holder) -> int:
        """Forget a holder that is not pinned; returns how many of its tokens nobody else holds."""
        path = self._path(holder)
        if path.pinned:
            raise PoolError(f"{holder!r} is pinned and cannot be removed")
        before = self._spans.held
        del self._paths[holder]
        del path.last.ends[holder]
        left = path.withdraw(0)
        path.leave(path.last)
        if path.last.holders == 0:
            del self._roots[path.scope]
        left.merge()
        return before - self._spans.held

    def rename(self, holder: Holder, new: Holder) -> None:
        """Hand the path of a holder over to a new one; it stays pinned if it was."""
        path = self._path(holder)
        self._check_new(new)
        del self._paths[holder], path.last.ends[holder]
        self._paths[new] = path
        path.last.ends[new] = None

    def pin(self, holder: Holder) -> None:
        """Note that a holder is in use, once."""
        path = self._path(holder)
        if path.pinned:
            raise PoolError(f"{holder!r} is pinned already")
        path.note_pinned(True)

    def unpin(self, holder: Holder) -> None:
        """Note that a pinned holder is not in use any more."""
        path = self._path(holder)
        if not path.pinned:
            raise PoolError(f"{holder!r} is not pinned")
        path.note_pinned(False)

    def note_filled(self, holder: Holder, filled: bool) -> None:
        """Note whether all tokens of a holder are there by now."""
        self._path(holder).note_filled(filled)

    def note_stopped(self, holder: Holder, stopped: bool) -> None:
        """Note whether the tokens of a holder that are not there will never come."""
        self._path(holder).note_stopped(stopped)

    def runs(self) -> int:
        """Count the runs of tokens. Takes as long as the tree is large."""
        return sum(1 for root in self._roots.values() for run in root.downwards() if run is not root)

    def check(self) -> None:
        """Raise `PoolError` unless everything adds up. Takes as long as the tree is large."""
        holders: dict[Run[Holder], int] = {}
        pinned: dict[Run[Holder], int] = {}
        filled: dict[Run[Holder], int] = {}
        stopped: dict[Run[Holder], int] = {}
        for holder, path in self._paths.items():
            passed = list(path.last.upwards())
            if holder not in path.last.ends or passed[-1] is not self._roots.get(path.scope):
                raise PoolError(f"the path of {holder!r} does not lead to the root of its scope")
            for run in passed:
                holders[run] = holders.get(run, 0) + 1
                pinned[run] = pinned.get(run, 0) + path.pinned
                filled[run] = filled.get(run, 0) + path.filled
                stopped[run] = stopped.get(run, 0) + path.stopped
        runs = [run for root in self._roots.values() for run in root.downwards()]
        for run in runs:
            counted = run.holders, run.pinned, run.filled, run.stopped
            if counted != (holders.get(run), pinned.get(run), filled.get(run), stopped.get(run)):
                raise PoolError(f"the holders are counted wrongly at {run}")
            run.check()
        if sum(len(run.ends) for run in runs) != len(self._paths):
            raise PoolError("somebody ends in the tree who holds nothing")
        spans = Spans(sum(len(run.tokens) for run in runs), sum(len(run.tokens) for run in runs if run.pinned))
        if spans != self._spans:
            raise PoolError(f"{spans.held} tokens are held, {spans.pinned} pinned; counted were {self._spans}")

    def _path(self, holder: Holder) -> Path[Holder]:
        path = self._paths.get(holder)
        if path is None:
            raise PoolError(f"{holder!r} holds nothing")
        return path

    def _check_new(self, holder: Holder) -> None:
        if holder in self._paths:
            raise PoolError(f"{holder!r} has a path already")

    def _check_beside(self, scope: str, tokens: list[int], other: Holder, length: int) -> None:
        path = self._path(other)
        fits = path.scope == scope and 0 <= length <= min(path.last.end, len(tokens))
        if not fits or self.tokens(other)[:length] != tokens[:length]:
            raise PoolError(f"{other!r} does not hold the first {length} of these tokens in that scope")

    def _holder_of(self, run: Run[Holder], filled: bool) -> Holder:
        """Return somebody whose path leads through a run, or somebody filled."""
        while True:
            for holder in run.ends:
                path = self._paths[holder]
                if path.filled if filled else not path.stopped:
                    return holder
            children = (child for siblings in run.children.values() for child in siblings)
            run = next(child for child in children if (child.filled if filled else child.offered))

    def _lead_on(self, holder: Holder, path: Path[Holder], tokens: list[int], apart: bool) -> int:
        """Lead a path, which ends nowhere just now, on along `tokens`; returns how many of them others held."""
        left = path.last
        shared = 0 if apart else path.join(tokens)
        path.grow(tokens[shared:])
        path.last.ends[holder] = None
        left.merge()
        return shared


def _as_list(tokens: Sequence[int]) -> list[int]:
    return tokens if type(tokens) is list else list(tokens)
