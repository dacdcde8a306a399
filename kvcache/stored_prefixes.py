"""Which of the saved sequences can serve a prompt, and which are not worth keeping beside each other.

Saved cells can only be restored as a whole. Most models can drop the end of a sequence afterwards, so that everything
that begins like a prompt is of use to it. For those that cannot (`whole`), only what the prompt begins with is.
"""

from __future__ import annotations

from collections.abc import Sequence

from llamalane.kvcache.prefix_tree import Match, PrefixTree
from llamalane.kvcache.runs import Holder


def best_match(tree: PrefixTree[Holder], scope: str, tokens: Sequence[int], *, whole: bool) -> Match[Holder]:
    """Return what saves most of `tokens`."""
    return tree.match_whole(scope, tokens) if whole else tree.match(scope, tokens)


def covering(tree: PrefixTree[Holder], scope: str, tokens: Sequence[int], *, whole: bool) -> Holder | None:
    """Return what serves every prompt that `tokens` would serve; None when there is no such thing."""
    match = best_match(tree, scope, tokens, whole=whole)
    return match.holder if match.length == len(tokens) else None


def covered(tree: PrefixTree[Holder], scope: str, tokens: Sequence[int], *, whole: bool) -> list[Holder]:
    """Return what serves no prompt that `tokens` would not serve."""
    if whole:
        return []
    holders = []
    match = tree.match_whole(scope, tokens)
    while match.holder is not None:
        holders.append(match.holder)
        match = tree.match_whole(scope, tokens[: match.length - 1])
    return holders
