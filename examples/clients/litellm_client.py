"""litellm against a server: an answer, a stream, usage, logprobs, and what it makes of errors.

corekit serve --port 8000 --api-key secret
pip install litellm
python litellm_client.py http://127.0.0.1:8000/v1 secret
"""

from __future__ import annotations

import asyncio
import os
import sys

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # nothing is fetched

import litellm

MESSAGES = [{"role": "user", "content": "Name the capital of Japan."}]


def main(url: str, key: str) -> None:
    litellm.suppress_debug_info = True
    import httpx

    model = httpx.get(f"{url}/models", headers={"authorization": f"Bearer {key}"}).json()["data"][0]["id"]
    call = {"model": f"openai/{model}", "api_base": url, "api_key": key, "messages": MESSAGES, "temperature": 0, "max_tokens": 16, "num_retries": 0}

    whole = litellm.completion(**call, logprobs=True, top_logprobs=2)
    text = whole.choices[0].message.content
    print("whole:", repr(text), whole.choices[0].finish_reason, whole.usage.total_tokens)
    assert whole.usage.prompt_tokens > 0
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens

    chunks = list(litellm.completion(**call, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    rebuilt = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    print("stream:", repr(streamed), rebuilt.choices[0].finish_reason, rebuilt.usage.total_tokens)
    assert streamed == text == rebuilt.choices[0].message.content
    assert rebuilt.usage.total_tokens == whole.usage.total_tokens
    assert rebuilt.choices[0].finish_reason == whole.choices[0].finish_reason

    plain = litellm.text_completion(
        model=f"text-completion-openai/{model}", api_base=url, api_key=key, prompt="The capital of Japan is", max_tokens=4, temperature=0
    )
    print("text:", repr(plain.choices[0].text))
    assert plain.choices[0].text

    async def both() -> list[str]:
        answers = await asyncio.gather(*(litellm.acompletion(**call) for _ in range(8)))
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(both()) == [text] * 8
    check_errors(call)
    print("errors: as they should be")


def check_errors(call: dict) -> None:
    wrong = [
        ({"temperature": 7}, litellm.BadRequestError),
        ({"model": "openai/nobody"}, litellm.NotFoundError),
        ({"api_key": "wrong"}, litellm.AuthenticationError),
        ({"messages": [{"role": "user", "content": "x " * 100_000}]}, litellm.ContextWindowExceededError),
    ]
    for change, expected in wrong:
        try:
            litellm.completion(**{**call, **change})
        except expected as error:
            print(f"{type(error).__name__}: {str(error)[:120]}")
        else:
            raise AssertionError(f"{change} was answered")


if __name__ == "__main__":
    main(*sys.argv[1:])
