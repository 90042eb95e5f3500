"""The `langchain-openai` package as a client of the gateway. Runs in an environment of its own; see matrix.py."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from reporting import PARAMETERS, PROMPT, TOOL, awaited, check, impatient, is_weather, left, raised, run, scene

URL = f"{scene.gateway}/v1"
TOOLS: Any = [{"type": "function", "function": {"name": TOOL, "description": TOOL, "parameters": PARAMETERS}}]


class Weather(BaseModel):
    """What a structured answer is parsed as."""

    town: str
    days: int


def chat(model: str = "fast", **more: Any) -> Any:
    """A chat model of LangChain."""
    fields: dict[str, Any] = {"api_key": scene.key, "temperature": 0, **more}
    return ChatOpenAI(model=model, base_url=URL, max_retries=0, stream_usage=True, **fields)


@check("answer")
def _answer() -> None:
    told = chat().invoke(PROMPT)
    assert told.content
    assert told.response_metadata["finish_reason"] in ("stop", "length")
    assert told.usage_metadata["output_tokens"] > 0


@check("stream")
def _stream() -> None:
    chunks = list(chat().stream(PROMPT))
    assert "".join(chunk.content for chunk in chunks) == chat().invoke(PROMPT).content
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0


@check("async stream")
def _async_stream() -> None:
    async def read() -> str:
        return "".join([chunk.content async for chunk in chat().astream(PROMPT)])

    assert awaited(read()) == chat().invoke(PROMPT).content


@check("tools")
def _tools() -> None:
    (call,) = chat().bind_tools(TOOLS, tool_choice="required").invoke(PROMPT).tool_calls
    is_weather(call["args"])


@check("streamed tools")
def _streamed_tools() -> None:
    whole: Any = None
    for chunk in chat().bind_tools(TOOLS, tool_choice=TOOL).stream(PROMPT):
        whole = chunk if whole is None else whole + chunk
    is_weather(whole.tool_calls[0]["args"])


@check("tool result")
def _tool_result() -> None:
    called = chat().bind_tools(TOOLS, tool_choice="required").invoke(PROMPT)
    result = ToolMessage("rain", tool_call_id=called.tool_calls[0]["id"])
    assert chat().bind_tools(TOOLS).invoke([HumanMessage(PROMPT), called, result]).content


@check("structured output")
def _structured() -> None:
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat().with_structured_output(Weather, method=method).invoke(PROMPT), Weather), method


@check("streamed structured output")
def _streamed_structured() -> None:
    assert isinstance(list(chat().with_structured_output(Weather).stream(PROMPT))[-1], Weather)


@check("responses")
def _responses() -> None:
    assert chat(use_responses_api=True).invoke(PROMPT).text


@check("streamed responses")
def _streamed_responses() -> None:
    assert "".join(chunk.text for chunk in chat(use_responses_api=True).stream(PROMPT))


@check("responses with tools")
def _responses_tools() -> None:
    model = chat(use_responses_api=True).bind_tools(TOOLS, tool_choice="required")
    called = model.invoke(PROMPT)
    is_weather(called.tool_calls[0]["args"])
    result = ToolMessage("rain", tool_call_id=called.tool_calls[0]["id"])
    assert chat(use_responses_api=True).bind_tools(TOOLS).invoke([HumanMessage(PROMPT), called, result]).text


@check("embeddings", "openai")
def _embeddings() -> None:
    model: Any = OpenAIEmbeddings
    own = {"api_key": scene.key, "check_embedding_ctx_length": False}  # else it fetches a vocabulary from elsewhere
    vectors = model(model="fast", base_url=URL, max_retries=0, **own).embed_documents([PROMPT, "and lakes"])
    assert len(vectors) == 2
    assert vectors[0] != vectors[1]


@check("cancel while waiting")
def _cancel_waiting() -> None:
    left("silent", lambda: awaited(impatient(chat("silent").ainvoke(PROMPT))))


@check("cancel a stream")
def _cancel_stream() -> None:
    def leave() -> None:
        stream = chat("endless").stream(PROMPT)
        assert next(stream) is not None
        stream.close()

    left("endless", leave)


@check("wrong key")
def _wrong_key() -> str:
    return raised(lambda: chat(api_key="sk-wrong").invoke(PROMPT), "AuthenticationError", 401)


@check("unknown model")
def _unknown_model() -> str:
    return raised(lambda: chat("no-such-model").invoke(PROMPT), "NotFoundError", 404)


@check("refused request")
def _refused() -> str:
    return raised(lambda: chat("refusing").invoke(PROMPT), "BadRequestError", 400)


@check("rate limit")
def _rate_limit() -> str:
    return raised(lambda: list(chat("limited").stream(PROMPT)), "RateLimitError", 429)


@check("failing replica")
def _failing() -> str:
    return raised(lambda: list(chat("failing").stream(PROMPT)), "InternalServerError", 500)


@check("cut stream")
def _cut() -> str:
    return raised(lambda: list(chat("cut").stream(PROMPT)), "APIError", None)


run()
