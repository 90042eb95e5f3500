"""The `litellm` package as a client of the gateway. Runs in an environment of its own; see matrix.py."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when it is imported

import litellm
from pydantic import BaseModel

from reporting import (
    ANSWER_TOKENS,
    PARAMETERS,
    PROMPT,
    TOOL,
    awaited,
    check,
    impatient,
    is_weather,
    left,
    raised,
    run,
    scene,
)

URL = f"{scene.gateway}/v1"
SAY: Any = [{"role": "user", "content": PROMPT}]
TOOLS: Any = [{"type": "function", "function": {"name": TOOL, "parameters": PARAMETERS}}]
RESPONSE_TOOLS: Any = [{"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": True}]


class Weather(BaseModel):
    """What a structured answer is asked for as."""

    town: str
    days: int


def reached(model: str, api_key: str = scene.key) -> dict[str, Any]:
    """Where a call goes."""
    return {"model": f"openai/{model}", "api_base": URL, "api_key": api_key, "max_retries": 0}


def chat(model: str = "fast", api_key: str = scene.key, **more: Any) -> Any:
    """A chat completion, or a stream of one."""
    return litellm.completion(messages=SAY, temperature=0, **reached(model, api_key), **more)


@check("answer")
def _answer() -> None:
    told = chat()
    assert told.choices[0].message.content
    assert told.choices[0].finish_reason in ("stop", "length")
    assert told.usage.completion_tokens > 0


@check("stream")
def _stream() -> None:
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == chat().choices[0].message.content
    assert chunks[-1].usage.completion_tokens > 0


@check("async stream")
def _async_stream() -> None:
    async def read() -> list[Any]:
        stream: Any = await litellm.acompletion(messages=SAY, stream=True, **reached("fast"))
        return [chunk async for chunk in stream]

    assert awaited(read())[-1].choices[0].finish_reason in ("stop", "length")


@check("tools")
def _tools() -> None:
    told = chat(tools=TOOLS, tool_choice="required").choices[0]
    assert told.finish_reason == "tool_calls"
    is_weather(told.message.tool_calls[0].function.arguments)


@check("streamed tools")
def _streamed_tools() -> None:
    chunks = list(chat(tools=TOOLS, tool_choice="required", stream=True))
    whole: Any = litellm.stream_chunk_builder(chunks)
    is_weather(whole.choices[0].message.tool_calls[0].function.arguments)


@check("tool result")
def _tool_result() -> None:
    message = chat(tools=TOOLS, tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    told: Any = litellm.completion(messages=[*SAY, message, result], tools=TOOLS, **reached("fast"))
    assert told.choices[0].message.content


@check("structured output")
def _structured() -> None:
    Weather.model_validate_json(chat(response_format=Weather).choices[0].message.content)


@check("streamed structured output")
def _streamed_structured() -> None:
    chunks = chat(response_format=Weather, stream=True)
    Weather.model_validate_json("".join(chunk.choices[0].delta.content or "" for chunk in chunks))


@check("responses")
def _responses() -> None:
    told: Any = litellm.responses(input=PROMPT, **reached("fast"))
    assert told.output_text


@check("streamed responses")
def _streamed_responses() -> None:
    events: Any = list(litellm.responses(input=PROMPT, stream=True, **reached("fast")))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type in ("response.completed", "response.incomplete")


@check("responses with tools")
def _responses_tools() -> None:
    told: Any = litellm.responses(input=PROMPT, tools=RESPONSE_TOOLS, tool_choice="required", **reached("fast"))
    call = told.output[-1]
    is_weather(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns: Any = [*SAY, call.model_dump(exclude_none=True), result]
    answer: Any = litellm.responses(input=turns, tools=RESPONSE_TOOLS, **reached("fast"))
    assert answer.output_text


@check("completions", "openai")
def _completions() -> None:
    fields = reached("fast") | {"model": "text-completion-openai/fast", "prompt": PROMPT, "max_tokens": ANSWER_TOKENS}
    told: Any = litellm.text_completion(**fields)
    assert told.choices[0].text


@check("embeddings", "openai")
def _embeddings() -> None:
    told = litellm.embedding(input=[PROMPT, "and lakes"], **reached("fast"))
    assert len(told.data) == 2
    assert told.data[0]["embedding"] != told.data[1]["embedding"]


@check("cancel while waiting")
def _cancel_waiting() -> None:
    left("silent", lambda: awaited(impatient(litellm.acompletion(messages=SAY, **reached("silent")))))


@check("cancel a stream")
def _cancel_stream() -> None:
    async def leave() -> None:
        stream: Any = await litellm.acompletion(messages=SAY, stream=True, **reached("endless"))
        async for chunk in stream:
            assert chunk is not None
            break
        await stream.aclose()

    left("endless", lambda: awaited(leave()))


@check("wrong key")
def _wrong_key() -> str:
    return raised(lambda: chat(api_key="sk-wrong"), "AuthenticationError", 401)


@check("unknown model")
def _unknown_model() -> str:
    return raised(lambda: chat("no-such-model"), "NotFoundError", 404)


@check("refused request")
def _refused() -> str:
    return raised(lambda: chat("refusing"), "ContextWindowExceededError", 400)


@check("rate limit")
def _rate_limit() -> str:
    return raised(lambda: chat("limited", stream=True), "RateLimitError", 429)


@check("failing replica")
def _failing() -> str:
    return raised(lambda: chat("failing", stream=True), "InternalServerError", 500)


@check("cut stream")
def _cut() -> str:
    return raised(lambda: list(chat("cut", stream=True)), "APIError", None)


run()
