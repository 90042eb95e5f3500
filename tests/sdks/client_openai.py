"""The `openai` package as a client of the gateway. Runs in an environment of its own; see matrix.py."""

from typing import Any

import openai
from pydantic import BaseModel

from reporting import PARAMETERS, PROMPT, TOOL, awaited, check, impatient, is_weather, left, raised, run, scene

URL = f"{scene.gateway}/v1"
SAY: Any = [{"role": "user", "content": PROMPT}]
TOOLS: Any = [{"type": "function", "function": {"name": TOOL, "parameters": PARAMETERS}}]
RESPONSE_TOOLS: Any = [{"type": "function", "name": TOOL, "parameters": PARAMETERS, "strict": True}]

ENDS = ("stop", "length")  # Anthropic must be given a bound, which simulated replicas use up

client = openai.OpenAI(base_url=URL, api_key=scene.key, max_retries=0)


def asynchronous() -> openai.AsyncOpenAI:
    """The other client."""
    return openai.AsyncOpenAI(base_url=URL, api_key=scene.key, max_retries=0)


class Weather(BaseModel):
    """What a structured answer is parsed as."""

    town: str
    days: int


def chat(model: str = "fast", **more: Any) -> Any:
    """A chat completion, or a stream of one."""
    return client.chat.completions.create(model=model, messages=SAY, temperature=0, **more)


@check("answer")
def _answer() -> None:
    told = chat()
    assert told.choices[0].message.content
    assert told.choices[0].finish_reason in ENDS
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
        async with asynchronous() as other:
            stream = await other.chat.completions.create(model="fast", messages=SAY, stream=True)
            return [chunk async for chunk in stream]

    assert awaited(read())[-1].choices[0].finish_reason in ENDS


@check("tools")
def _tools() -> None:
    told = chat(tools=TOOLS, tool_choice="required").choices[0]
    assert told.finish_reason == "tool_calls"
    is_weather(told.message.tool_calls[0].function.arguments)


@check("streamed tools")
def _streamed_tools() -> None:
    with client.chat.completions.stream(
        model="fast", messages=SAY, tools=TOOLS, tool_choice={"type": "function", "function": {"name": TOOL}}
    ) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls is not None
    is_weather(calls[0].function.arguments)


@check("tool result")
def _tool_result() -> None:
    message = chat(tools=TOOLS, tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"}
    turns: Any = [*SAY, message.model_dump(exclude_none=True), result]
    told = client.chat.completions.create(model="fast", messages=turns, tools=TOOLS)
    assert told.choices[0].message.content


@check("structured output")
def _structured() -> None:
    told = client.chat.completions.parse(model="fast", messages=SAY, response_format=Weather)
    assert isinstance(told.choices[0].message.parsed, Weather)


@check("streamed structured output")
def _streamed_structured() -> None:
    with client.chat.completions.stream(model="fast", messages=SAY, response_format=Weather) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Weather)


@check("responses")
def _responses() -> None:
    told = client.responses.create(model="fast", input=PROMPT, store=False, temperature=0)
    assert told.output_text
    assert told.status in ("completed", "incomplete")
    parsed = client.responses.parse(model="fast", input=PROMPT, text_format=Weather)
    assert isinstance(parsed.output_parsed, Weather)


@check("streamed responses")
def _streamed_responses() -> None:
    with client.responses.stream(model="fast", input=PROMPT, text_format=Weather) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text
    assert isinstance(final.output_parsed, Weather)


@check("responses with tools")
def _responses_tools() -> None:
    told: Any = client.responses.create(model="fast", input=PROMPT, tools=RESPONSE_TOOLS, tool_choice="required")
    call = told.output[-1]
    is_weather(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    turns: Any = [*SAY, call.model_dump(exclude_none=True), result]
    assert client.responses.create(model="fast", input=turns, tools=RESPONSE_TOOLS).output_text


@check("completions", "openai")
def _completions() -> None:
    told = client.completions.create(model="fast", prompt=PROMPT, temperature=0)
    chunks = client.completions.create(model="fast", prompt=PROMPT, temperature=0, stream=True)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == told.choices[0].text != ""


@check("embeddings", "openai")
def _embeddings() -> None:
    packed = client.embeddings.create(model="fast", input=[PROMPT, "and lakes"]).data  # base64 on the wire
    plain = client.embeddings.create(model="fast", input=[PROMPT, "and lakes"], encoding_format="float").data
    assert len(packed) == len(plain) == 2
    assert all(abs(a - b) < 1e-6 for a, b in zip(packed[1].embedding, plain[1].embedding, strict=True))


@check("models")
def _models() -> None:
    assert "fast" in [model.id for model in client.models.list()]
    assert client.models.retrieve("fast").id == "fast"


@check("cancel while waiting")
def _cancel_waiting() -> None:
    async def leave() -> None:
        async with asynchronous() as other:
            await impatient(other.chat.completions.create(model="silent", messages=SAY))

    left("silent", lambda: awaited(leave()))


@check("cancel a stream")
def _cancel_stream() -> None:
    def leave() -> None:
        with chat("endless", stream=True) as stream:
            assert next(stream) is not None

    left("endless", leave)


@check("wrong key")
def _wrong_key() -> str:
    stranger = client.with_options(api_key="sk-wrong")
    return raised(
        lambda: stranger.chat.completions.create(model="fast", messages=SAY), openai.AuthenticationError.__name__, 401
    )


@check("unknown model")
def _unknown_model() -> str:
    return raised(lambda: chat("no-such-model"), openai.NotFoundError.__name__, 404)


@check("refused request")
def _refused() -> str:
    return raised(lambda: chat("refusing"), openai.BadRequestError.__name__, 400)


@check("rate limit")
def _rate_limit() -> str:
    return raised(lambda: chat("limited", stream=True), openai.RateLimitError.__name__, 429)


@check("failing replica")
def _failing() -> str:
    return raised(lambda: chat("failing", stream=True), openai.InternalServerError.__name__, 500)


@check("cut stream")
def _cut() -> str:
    return raised(lambda: list(chat("cut", stream=True)), openai.APIError.__name__, None)


run()
