"""LlamaIndex as a client, with priorities.

pip install llama-index-llms-openai-like
python llamaindex_chat.py http://localhost:8000/v1
"""

import sys

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def main(url: str) -> None:
    # Without keys any will do; the model's name is one of those under /v1/models.
    llm = OpenAILike(api_base=url, api_key="unused", model="llm", is_chat_model=True, max_tokens=32, temperature=0)

    # The priority goes into the body of a request ...
    question = [ChatMessage(role="user", content="Write one sentence about llamas.")]
    for chunk in llm.stream_chat(question, extra_body={"priority": "interactive"}):
        print(chunk.delta, end="", flush=True)
    print()

    # ... or, for all that a client asks, into a header.
    patient = OpenAILike(
        api_base=url,
        api_key="unused",
        model="llm",
        is_chat_model=True,
        max_tokens=32,
        default_headers={"X-Priority": "batch"},
    )
    print(patient.complete("Write one sentence about rivers."))


if __name__ == "__main__":
    main(sys.argv[1])
