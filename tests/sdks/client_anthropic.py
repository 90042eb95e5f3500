"""The `anthropic` package as a client of /v1/messages. Runs in an environment of its own; see matrix.py."""

from typing import Any

import anthropic
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

SAY: Any = [{"role": "user", "content": PROMPT}]
TOOLS: Any = [{"name": TOOL, "input_schema": PARAMETERS}]

client = anthropic.Anthropic(base_url=scene.gateway, api_key=scene.key, max_retries=0)


def asynchronous() -> anthropic.AsyncAnthropic:
    """The other client."""
    return anthropic.AsyncAnthropic(base_url=scene.gateway, api_key=scene.key, max_retries=0)


class Weather(BaseModel):
    """What a structured answer is parsed as."""

    town: str
    days: int


def message(model: str = "fast", **more: Any) -> Any:
    """A message, or a stream of one."""
    return client.messages.create(model=model, max_tokens=ANSWER_TOKENS, messages=SAY, **more)


@check("answer")
def _answer() -> None:
    told = message()
    assert told.content[0].text
    assert told.stop_reason == "max_tokens"
    assert told.usage.output_tokens > 0


@check("stream")
def _stream() -> None:
    with client.messages.stream(model="fast", max_tokens=ANSWER_TOKENS, messages=SAY) as stream:
        text = "".join(stream.text_stream)
        final: Any = stream.get_final_message()
    assert text == final.content[0].text != ""
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens > 0


@check("async stream")
def _async_stream() -> None:
    async def read() -> list[Any]:
        async with asynchronous() as other:
            stream = await other.messages.create(model="fast", max_tokens=ANSWER_TOKENS, messages=SAY, stream=True)
            return [event async for event in stream]

    assert awaited(read())[-1].type == "message_stop"


@check("tools")
def _tools() -> None:
    told = message(tools=TOOLS, tool_choice={"type": "any"})
    assert told.stop_reason == "tool_use"
    is_weather(told.content[-1].input)


@check("streamed tools")
def _streamed_tools() -> None:
    choice: Any = {"type": "tool", "name": TOOL}
    with client.messages.stream(
        model="fast", max_tokens=ANSWER_TOKENS, messages=SAY, tools=TOOLS, tool_choice=choice
    ) as stream:
        final: Any = stream.get_final_message()
    is_weather(final.content[-1].input)


@check("tool result")
def _tool_result() -> None:
    told = message(tools=TOOLS, tool_choice={"type": "any"})
    result = {"type": "tool_result", "tool_use_id": told.content[-1].id, "content": "rain"}
    turns: Any = [*SAY, {"role": "assistant", "content": told.content}, {"role": "user", "content": [result]}]
    answer: Any = client.messages.create(model="fast", max_tokens=ANSWER_TOKENS, messages=turns, tools=TOOLS)
    assert answer.content[0].text


@check("structured output")
def _structured() -> None:
    told: Any = client.messages.parse(model="fast", max_tokens=ANSWER_TOKENS, messages=SAY, output_format=Weather)
    assert isinstance(told.parsed_output, Weather)


@check("streamed structured output")
def _streamed_structured() -> None:
    with client.messages.stream(model="fast", max_tokens=ANSWER_TOKENS, messages=SAY, output_format=Weather) as stream:
        final: Any = stream.get_final_message()
    assert isinstance(final.parsed_output, Weather)


@check("models")
def _models() -> None:
    assert "fast" in [model.id for model in client.models.list()]


@check("token counting")
def _count_tokens() -> None:
    assert client.messages.count_tokens(model="fast", messages=SAY).input_tokens > 0


@check("cancel while waiting")
def _cancel_waiting() -> None:
    async def leave() -> None:
        async with asynchronous() as other:
            await impatient(other.messages.create(model="silent", max_tokens=ANSWER_TOKENS, messages=SAY))

    left("silent", lambda: awaited(leave()))


@check("cancel a stream")
def _cancel_stream() -> None:
    def leave() -> None:
        with message("endless", stream=True) as stream:
            assert next(stream) is not None

    left("endless", leave)


@check("wrong key")
def _wrong_key() -> str:
    stranger = client.with_options(api_key="sk-wrong")
    return raised(
        lambda: stranger.messages.create(model="fast", max_tokens=ANSWER_TOKENS, messages=SAY),
        anthropic.AuthenticationError.__name__,
        401,
    )


@check("unknown model")
def _unknown_model() -> str:
    return raised(lambda: message("no-such-model"), anthropic.NotFoundError.__name__, 404)


@check("refused request")
def _refused() -> str:
    return raised(lambda: message("refusing"), anthropic.BadRequestError.__name__, 400)


@check("rate limit")
def _rate_limit() -> str:
    return raised(lambda: message("limited", stream=True), anthropic.RateLimitError.__name__, 429)


@check("failing replica")
def _failing() -> str:
    return raised(lambda: message("failing", stream=True), anthropic.InternalServerError.__name__, 500)


@check("cut stream")
def _cut() -> str:
    return raised(lambda: list(message("cut", stream=True)), anthropic.APIStatusError.__name__, None)


run()
