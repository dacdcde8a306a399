"""LangChain as a client, with priorities.

pip install langchain-openai
python langchain_chat.py http://localhost:8000/v1
"""

import sys

from langchain_openai import ChatOpenAI


def main(url: str) -> None:
    # Without keys any will do; the model's name is one of those under /v1/models.
    llm = ChatOpenAI(base_url=url, api_key="unused", model="llm", max_tokens=32, temperature=0)

    # The priority goes into the body of a request ...
    urgent = llm.bind(extra_body={"priority": "interactive"})
    for chunk in urgent.stream("Write one sentence about llamas."):
        print(chunk.text, end="", flush=True)
    print()

    # ... or, for all that a client asks, into a header.
    patient = ChatOpenAI(
        base_url=url, api_key="unused", model="llm", max_tokens=32, default_headers={"X-Priority": "batch"}
    )
    for answer in patient.batch([f"Write one sentence about {subject}." for subject in ("rivers", "deserts")]):
        print(f"{answer.text} ({answer.usage_metadata['output_tokens']} tokens)")


if __name__ == "__main__":
    main(sys.argv[1])
