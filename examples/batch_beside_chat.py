"""A nightly batch at level 5, while somebody chats at level 1.

    python batch_beside_chat.py model.gguf articles.txt summaries.txt

summarizes the lines of a file, and answers whatever is typed meanwhile as if there were no batch. The end of the input
(Ctrl-D) leaves the batch to be finished.
"""

import sys
from pathlib import Path
from typing import TextIO

import anyio
import anyio.to_thread

from llamalane import Engine, EngineConfig, SamplingParameters
from llamalane.errors import RequestError


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def summarize(engine: Engine, articles: list[str], target: TextIO) -> None:
    """Keep every place busy that the chat leaves free."""
    summaries = [""] * len(articles)
    places = anyio.CapacityLimiter(engine.stats().places)

    async def work(number: int) -> None:
        async with places:
            request = messages(f"Summarize in one sentence: {articles[number]}")
            try:
                result = await engine.chat(request, sampling=SamplingParameters(max_tokens=48), priority="batch")
                summaries[number] = " ".join(result.text.split())
            except RequestError as error:  # such as an article that is too long
                summaries[number] = f"({error})"

    async with anyio.create_task_group() as tasks:
        for number in range(len(articles)):
            tasks.start_soon(work, number)
    target.writelines(f"{summary}\n" for summary in summaries)


async def answer(engine: Engine, question: str) -> None:
    handle = await engine.submit_chat(
        messages(question), sampling=SamplingParameters(max_tokens=64), priority="interactive"
    )
    async for text in handle:
        print(text, end="", flush=True)
    result = await handle
    running = engine.stats().running.get(engine.levels.least_urgent, 0)
    print(f"\n({result.timings.first_token:.2f} s to the first token; {running} requests of the batch run)")


async def work(model: str, articles: list[str], target: TextIO) -> None:
    async with Engine(EngineConfig.for_model(model, places=4)) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(summarize, engine, articles, target)
        while question := await anyio.to_thread.run_sync(sys.stdin.readline):
            try:
                await answer(engine, question.strip())
            except RequestError as error:
                print(error)


def main(model: str, source: str, target: str) -> None:
    articles = Path(source).read_text().splitlines()
    with Path(target).open("w") as file:
        anyio.run(work, model, articles, file)
    print(f"{len(articles)} summaries are in {target}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
