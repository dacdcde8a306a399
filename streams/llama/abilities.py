"""What a context can do, found out by trying: it depends on how the model remembers, on the cache, and on llama.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llamalane.errors import ContextError, StepAbandonedError
from llamalane.ids import SequenceId
from llamalane.streams.llama.batch import Batch

if TYPE_CHECKING:
    from llamalane.streams.llama.context import Context

_FIRST, _SECOND = SequenceId(0), SequenceId(1)
_LENGTH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a context of a model can do.

    Attributes:
        share: the first tokens of a sequence can also be held by sequence ids beyond those that decode, up to 255, in
            the same cells.
        copy: a sequence that decodes can take the first tokens of another one.
        roll_back: the end of a sequence can be dropped, so that it goes on from an earlier token. With a sliding
            window, only as far back as its cells are there.
        swap: a sequence can be saved to host memory and put back.
        shift: a part within a sequence can be dropped, and what follows it moved down.
        abandon: a step can be broken off and its sequences rolled back. Only what is computed on the CPU can be broken
            off in its midst; elsewhere this tells only that a step can be stopped at its beginning.
    """

    share: bool
    copy: bool
    roll_back: bool
    swap: bool
    shift: bool
    abandon: bool


def probe(context: Context) -> Abilities:
    """Find out what an empty context can do, and leave it empty. Takes two small steps, which warm it up.

    Moved keys are not turned to their new positions, which would take time for every cell of the cache.
    """
    try:
        return _try_all(context)
    finally:
        context.clear()


def _try_all(context: Context) -> Abilities:
    _compute(context, _LENGTH)
    swap = _try_swap(context)
    if not swap:
        context.remove(_FIRST)
        _compute(context, _LENGTH)
    roll_back = context.remove(_FIRST, _LENGTH - 1) and context.length(_FIRST) == _LENGTH - 1
    abandon = roll_back and _try_abandon(context)
    _compute(context, 1)  # whatever was done to the sequence, it can go on
    share = context.try_spare(_FIRST, 2)
    copy = roll_back and context.options.sequences > 1 and _try_copy(context)
    return Abilities(
        share=share,
        copy=copy,
        roll_back=roll_back,
        swap=swap,
        shift=roll_back and context.can_shift and context.shift(_FIRST, 1, 1),
        abandon=abandon,
    )


def _try_swap(context: Context) -> bool:
    try:
        saved = context.save(_FIRST)
    except ContextError:
        return False
    return context.restore(_FIRST, saved) and context.length(_FIRST) == _LENGTH


def _try_copy(context: Context) -> bool:
    copied = context.copy(_FIRST, _SECOND, 2) and context.length(_SECOND) == 2
    context.remove(_SECOND)
    return copied


def _try_abandon(context: Context) -> bool:
    length = context.length(_FIRST)
    context.interrupt(True)
    try:
        _compute(context, 1)
    except StepAbandonedError:
        abandoned = True
    else:
        abandoned = False
    finally:
        context.interrupt(False)
    return context.remove(_FIRST, length) and abandoned


def _compute(context: Context, count: int) -> None:
    """Compute `count` tokens more of the first sequence."""
    batch = Batch(context.options.max_step_tokens)
    while count:
        part = min(count, batch.capacity)
        batch.clear()
        batch.add(_FIRST, [0] * part, context.length(_FIRST), output=True)
        context.decode(batch)
        context.logits(batch)
        count -= part
