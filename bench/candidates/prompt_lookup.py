"""Whether drafts by prompt lookup, verified in one step, bring more tokens than they cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from llamalane.bench.candidates.comparison import CandidatesPlan, Comparison, Experiment, take_turns
from llamalane.bench.candidates.decoding import CountingContext
from llamalane.bench.candidates.lookup import LONGEST_DRAFT, PromptLookup
from llamalane.bench.repeating import QUESTIONS, WORDS, repeating_text
from llamalane.ids import SequenceId
from llamalane.streams.llama import Batch, ChatTemplate, ContextOptions, Model, ModelOptions

COUNTS = (1, 2, 4, 8)
SEQUENCES = max(COUNTS)
CELLS = 512
"""For each sequence."""
TOKENS = 32
"""An output has so many; then the same prompt is answered again."""


@dataclass(slots=True, eq=False)
class Output:
    """A sequence that goes on from its prompt, and its prompt's cells."""

    sequence: SequenceId
    prompt: Sequence[int]
    cells: bytearray
    lookup: PromptLookup

    @property
    def length(self) -> int:
        """How many tokens the output has."""
        return len(self.lookup.tokens) - len(self.prompt)


class Speculation:
    """Computes outputs greedily, with drafts or without, in a context of `SEQUENCES` sequences that share its cells."""

    def __init__(self, model: Model, threads: int, prompts: Sequence[Sequence[int]]) -> None:
        rows = SEQUENCES * (1 + LONGEST_DRAFT)
        self._context = CountingContext(
            model,
            ContextOptions(
                cells=CELLS * SEQUENCES,
                sequences=SEQUENCES,
                max_step_tokens=CELLS,
                micro_batch=CELLS,
                threads=threads,
                output_rows=rows,
            ),
        )
        self._batch = Batch(CELLS)
        self._outputs = [self._compute(SequenceId(number), prompt) for number, prompt in enumerate(prompts)]
        self.drafted = self.accepted = 0

    def close(self) -> None:
        """Free the context."""
        self._context.close()

    def begin(self, count: int) -> list[Output]:
        """Let the context hold the prompts of `count` outputs, which begin, and nothing else."""
        self._context.clear()
        outputs = self._outputs[:count]
        for output in outputs:
            self._context.restore(output.sequence, output.cells)
            output.lookup = PromptLookup(output.prompt)
        return outputs

    def run(self, count: int, tokens: int, *, drafts: bool) -> float:
        """Return the tokens a second of `count` sequences, until they have `tokens` in the mean."""
        outputs = self.begin(count)
        done = 0
        begin = time.perf_counter()
        while done < count * tokens:
            done += sum(len(found) for found in self.step(outputs, drafts=drafts))
        return done / (time.perf_counter() - begin)

    def step(self, outputs: Sequence[Output], *, drafts: bool) -> list[list[int]]:
        """Compute one step, and return what each output got; one that is whole begins again."""
        drafted = [output.lookup.draft() if drafts else [] for output in outputs]
        self._batch.clear()
        for output, draft in zip(outputs, drafted, strict=True):
            tokens = output.lookup.tokens
            self._batch.add(output.sequence, [tokens[-1], *draft], len(tokens) - 1, output=1 + len(draft))
        self._context.decode(self._batch)
        likeliest = self._context.logits(self._batch).argmax(axis=1).tolist()
        found = []
        for output, draft in zip(outputs, drafted, strict=True):
            chosen, likeliest = likeliest[: 1 + len(draft)], likeliest[1 + len(draft) :]
            found.append(self._take(output, draft, chosen))
        return found

    def _take(self, output: Output, draft: list[int], chosen: list[int]) -> list[int]:
        right = next((place for place, token in enumerate(draft) if token != chosen[place]), len(draft))
        output.lookup.extend(chosen[: right + 1])
        self.drafted += len(draft)
        self.accepted += right
        if output.length >= TOKENS:
            output.lookup = PromptLookup(output.prompt)
            self._context.remove(output.sequence, len(output.prompt) - 1)
        elif right < len(draft):
            self._context.remove(output.sequence, len(output.lookup.tokens) - 1)
        return chosen[: right + 1]

    def _compute(self, sequence: SequenceId, prompt: Sequence[int]) -> Output:
        """Compute all of a prompt but its last token, and take the cells out again."""
        self._batch.clear()
        self._batch.add(sequence, prompt[:-1], 0, output=False)
        self._context.decode(self._batch)
        cells = self._context.save(sequence)
        self._context.clear()
        return Output(sequence, prompt, cells, PromptLookup(prompt))


def compare_lookups(plan: CandidatesPlan, counts: Sequence[int] = COUNTS) -> Iterator[Comparison]:
    """Measure prompts that repeat themselves, and ordinary ones, for several numbers of sequences."""
    with Model(ModelOptions(path=plan.model)) as model:
        for kind, prompts in (
            ("repeating", repeating_prompts(model, plan.seed)),
            ("ordinary", ordinary_prompts(model)),
        ):
            with closing(Speculation(model, plan.threads, prompts)) as speculation:
                for count in counts:
                    yield _compare(speculation, kind, count, plan.rounds)


def _compare(speculation: Speculation, kind: str, count: int, rounds: int) -> Comparison:
    speculation.drafted = speculation.accepted = 0
    now, other = take_turns(
        lambda: speculation.run(count, TOKENS, drafts=False),
        lambda: speculation.run(count, TOKENS, drafts=True),
        rounds,
    )
    share = f"{100 * speculation.accepted / speculation.drafted:.0f} %" if speculation.drafted else "none drafted"
    sequences = "1 sequence" if count == 1 else f"{count} sequences"
    return Comparison(situation=f"{sequences}, {kind} prompts", now=now, other=other, remarks={"accepted": share})


def repeating_prompts(model: Model, seed: int) -> list[list[int]]:
    """Return prompts that are a text and once more the same text, as far as its first words of a third time."""
    prompts = []
    for number in range(SEQUENCES):
        text = repeating_text(seed, number)
        prompt = model.vocabulary.tokenize(text, add_special=True, parse_special=False)
        prompts.append(prompt[-(CELLS - 2 * TOKENS) :])
    return prompts


def ordinary_prompts(model: Model) -> list[list[int]]:
    """Return questions as the model's chat template renders them, if it has one."""
    if model.chat_template() is None:
        return [model.vocabulary.tokenize(text, add_special=True, parse_special=False) for text in QUESTIONS]
    template = ChatTemplate.of(model)
    texts = [template.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    return [model.vocabulary.tokenize(text, add_special=False, parse_special=True) for text in texts]


PROMPT_LOOKUP = Experiment(
    title="drafts by prompt lookup",
    unit="tokens/s",
    now="without drafts",
    other="with drafts",
    method=(
        f"Greedy. At most {LONGEST_DRAFT} tokens that followed the last 3 or 2 in the same sequence before are "
        f"verified in one step. Repeating prompts are a text of {WORDS} words, twice, and the beginning of a third "
        f"time, which the output carries on; ordinary ones are questions. Outputs of {TOKENS} tokens; whoever is done "
        "begins again."
    ),
    compare=compare_lookups,
)
