"""A script without an event loop: text as it comes, and many requests at once.

Run it with `python blocking_script.py model.gguf`.
"""

import sys

from llamalane import BlockingEngine, EngineConfig, SamplingParameters

SUBJECTS = ("rivers", "mountains", "deserts", "forests")


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def main(model: str) -> None:
    brief = SamplingParameters(temperature=0, max_tokens=24)
    with BlockingEngine(EngineConfig.for_model(model)) as engine:
        # Submitting never waits: these run together, and give way to whatever is more urgent.
        sentences = {
            subject: engine.submit_chat(messages(f"One sentence about {subject}."), sampling=brief, priority="batch")
            for subject in SUBJECTS
        }
        for text in engine.submit_chat(messages("What is a llama?"), sampling=brief, priority="interactive"):
            print(text, end="", flush=True)
        print()
        for subject, handle in sentences.items():
            result = handle.result(timeout=300)
            print(f"{subject}: {result.text.strip()} ({result.usage.completion_tokens} tokens)")


if __name__ == "__main__":
    main(sys.argv[1])
