"""openapi.yaml against the code, in both directions: what one of them has, the other has, too."""

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import schemathesis

from checkout import ROOT
from contract_file import CONTRACT, PATH, errors, operations, resolved
from gateway.api.count_tokens import PATH as COUNT_PATH
from gateway.api.passed_routes import METHODS as PASSED_METHODS
from gateway.api.plain_routes import contract
from gateway.api.request_head import AZURE_APIS
from gateway.config.settings import LimitSettings, Settings
from gateway.errors import GatewayError, Limit, MethodNotAllowed, UnsupportedUpgrade, UpstreamFailed
from gateway.events import Result
from gateway.pages.files import REFERENCE
from gateway.race import report
from gateway.server.app import Gateway
from gateway.server.public_routes import client_apis
from running import run_virtual
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.hedging.outcomes import Denial
from ttft_gateway.requests import field_errors as inbound_fields
from ttft_gateway.requests import messages as inbound_messages
from ttft_gateway.requests import openai as inbound_openai
from ttft_gateway.requests import request as inbound
from ttft_gateway.requests import responses as inbound_responses

PATHS = [f"/v1/{api.value}" for api in client_apis()]
GATEWAY = ROOT / "gateway"
SCHEMAS = CONTRACT["components"]["schemas"]
HEADERS = CONTRACT["components"]["headers"]
RATES = {f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")}
ADMIN_ONLY = {  # docs/errors.md has them
    "config_refused",
    "forbidden",
    "last_replica",
    "replica_not_found",
    "too_many_subscribers",
}


def test_it_is_an_openapi_document() -> None:
    """The file is valid OpenAPI 3.1, and every reference in it leads somewhere."""
    schemathesis.openapi.from_dict(CONTRACT).validate()
    assert CONTRACT["openapi"] == "3.1.0"
    for reference in re.findall(r"\$ref: '([^']*)'", PATH.read_text(encoding="utf-8")):
        assert resolved({"$ref": reference})


def test_what_is_not_used_is_not_there() -> None:
    """Every component is used, but for the three errors that belong to no operation."""
    used = set(re.findall(r"#/components/(\w+/\w+)", PATH.read_text(encoding="utf-8")))
    parts = {f"{kind}/{name}" for kind, named in CONTRACT["components"].items() for name in named}
    of_no_operation = {"responses/UnknownRoute", "responses/MethodNotAllowed", "responses/UnsupportedUpgrade"}
    assert parts - used == {*of_no_operation, "securitySchemes/bearer"}


def _served() -> set[tuple[str, str]]:
    """Return the paths and methods that a gateway serves, without HEAD and the parts of the page."""
    replica = {"name": "a", "kind": "vllm", "base_url": "http://127.0.0.1:1/v1"}
    settings = Settings.model_validate({"models": [{"name": "m", "replicas": [replica]}]})

    async def main() -> set[tuple[str, str]]:
        async with asyncio.TaskGroup() as tasks:
            gateway = Gateway(settings, tasks)
            reads = {(path, "GET") for path in gateway.public.plain.paths if path not in set(REFERENCE) - {"/docs"}}
            azure = {f"/openai/deployments/{{model}}/{api}" for api in AZURE_APIS}
            posts = {(path, "POST") for path in {*gateway.public.raced.paths, *azure, COUNT_PATH}}
            passed = {(path, method) for path in gateway.public.passed.paths for method in PASSED_METHODS}
            gateway.close()
        return reads | posts | passed

    return run_virtual(main())


def test_routes() -> None:
    """The gateway serves the paths and methods of the contract, and no others."""
    assert _served() == {(path, method) for path, method, _ in operations()}


def test_statuses() -> None:
    """Each route has every status that the gateway itself can return for it; a replica's errors have any status."""
    classes = {kind for kind in _classes(GatewayError) if kind.__module__ != "gateway.server.admin"}
    classes -= {kind for kind in classes if kind.code in ADMIN_ONLY - {"forbidden"}}
    raced = {str(kind.status) for kind in classes - {GatewayError, MethodNotAllowed, UnsupportedUpgrade}}
    head = {"200", "400", "408", "414", "431", "500"}
    further = {
        "/v1/models": {"401", "421"},
        "/v1/models/{model}": {"401", "404", "421"},
        "/readyz": {"503"},
    }
    for path, method, operation in operations():
        statuses = set(operation["responses"])
        if path.startswith("/v1/{family}"):  # a replica's success has any status, too
            assert statuses == {"2XX", "4XX", "5XX"}
        elif method == "GET":
            assert statuses == head | further.get(path, set()), path
        else:
            assert {"200", "4XX", "5XX"} <= statuses, path
            assert statuses == {"200", "4XX", "5XX"} or raced <= statuses, path


def test_it_is_what_is_served() -> None:
    """The gateway serves this file, and its version is the project's."""
    assert contract() == PATH.read_text(encoding="utf-8")
    project = (PATH.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{CONTRACT["info"]["version"]}"' in project


def _said(value: ast.AST) -> Iterator[str]:
    """The strings in an expression as patterns; what an f-string fills in is a word."""
    if isinstance(value, ast.JoinedStr):
        yield "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"[a-z_]+" for p in value.values)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield re.escape(value.value)
    else:
        for part in ast.iter_child_nodes(value):
            yield from _said(part)


def _codes() -> set[str]:
    """Every error code that stands in the gateway's source, as a pattern."""
    found: set[str] = set()
    for file in (*GATEWAY.rglob("*.py"), *(GATEWAY.parent / "ttft_gateway" / "requests").glob("*.py")):
        if "simulated" in file.parts:  # a replica's errors are its own
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case (
                    ast.keyword(arg="code", value=value)
                    | ast.Assign(targets=[ast.Name(id="code")], value=value)
                    | ast.AnnAssign(target=ast.Name(id="_CODES"), value=ast.Dict() as value)
                ):
                    found.update(_said(value))
    return found


def test_error_codes() -> None:
    """Every code that the gateway gives is in the contract (or the admin address's), and every code there is given."""
    named = {error.code for error in errors()} | ADMIN_ONLY
    given = _codes()
    assert [code for code in given if not any(re.fullmatch(code, name) for name in named)] == []
    assert [name for name in named if not any(re.fullmatch(code, name) for code in given)] == []


def _classes(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    yield kind
    for sub in kind.__subclasses__():
        yield from _classes(sub)


@pytest.mark.parametrize("kind", [kind for kind in _classes(GatewayError) if kind.__module__ != "gateway.server.admin"])
def test_error_classes(kind: type[GatewayError]) -> None:
    """An error class that has a code has a response with its status and this code, and the same type."""
    if kind.code in {None, *ADMIN_ONLY}:
        return
    types = {
        error.example["error"]["type"] for error in errors() if (error.status, error.code) == (kind.status, kind.code)
    }
    assert kind.kind in types


def test_headers_of_an_answer() -> None:
    """The headers that a race adds are documented at every 200 of a raced route."""
    source = Path(report.__file__).read_text(encoding="utf-8")
    for path in PATHS:
        told = CONTRACT["paths"][path]["post"]["responses"]["200"]["headers"]
        assert told.keys() == {*re.findall(r'b"(x-[a-z-]+)"', source), "x-request-id"} | RATES


def test_headers_of_an_error() -> None:
    """The headers that an error can have are listed with the responses that carry a replica's error."""
    error = UpstreamFailed("", status=502, retry_after_s=1.0, should_retry=False)
    error.limit = "provider"
    names = {name.decode() for name, _ in error.headers()} | {"x-request-id"} | RATES
    for response in ("Forbidden", "RateLimited", "UpstreamFailed", "Unavailable", "UpstreamTimeout", "PassedOn"):
        assert CONTRACT["components"]["responses"][response]["headers"].keys() == names


def test_closed_sets_and_bounds() -> None:
    """Enumerations equal the code's; bounds equal the default settings and the parser's."""
    assert HEADERS["Result"]["schema"]["enum"] == [result.value for result in Result]
    assert {*HEADERS["Denied"]["schema"]["examples"]} <= {denial.value for denial in Denial}
    assert HEADERS["Limit"]["schema"]["enum"] == list(get_args(Limit))
    assert HEADERS["Attempts"]["schema"]["maximum"] == ATTEMPTS_MAX
    limits = LimitSettings()
    asked = SCHEMAS["RaceRequest"]["properties"]
    bounds = {name: field["maximum"] for name, field in asked.items() if "maximum" in field}
    tokens_max = limits.max_tokens_max
    expected = {
        "n": limits.n_max,
        "best_of": limits.n_max,
        "max_tokens": tokens_max,
        "max_completion_tokens": tokens_max,
    }
    assert bounds == expected
    assert SCHEMAS["RaceRequest"]["maxProperties"] == inbound.KEYS_MAX
    assert SCHEMAS["ChatCompletionRequest"]["properties"]["messages"]["maxItems"] == inbound_fields.MESSAGES_MAX
    for schema, name in (("CompletionRequest", "prompt"), ("EmbeddingsRequest", "input")):
        prompts = SCHEMAS[schema]["properties"][name]["anyOf"]
        assert {kind["maxItems"] for kind in prompts if "maxItems" in kind} == {inbound_fields.PROMPTS_MAX}
    asked = SCHEMAS["ResponsesRequest"]["properties"]
    assert asked["max_output_tokens"]["maximum"] == tokens_max
    assert asked["input"]["anyOf"][1]["maxItems"] == inbound_fields.MESSAGES_MAX


def test_fields_that_are_read() -> None:
    """The request schemas have exactly the fields that the gateway reads."""
    shared = SCHEMAS["RaceRequest"]["properties"].keys()
    kinds = {"ChatCompletionRequest": inbound_openai._Chat, "CompletionRequest": inbound_openai._Completions}
    for schema, kind in kinds.items():
        assert set(kind.__struct_fields__) == shared | SCHEMAS[schema]["properties"].keys()
    counted = SCHEMAS["CountRequest"]["properties"].keys()
    created = SCHEMAS["MessageRequest"]["properties"].keys()
    assert set(inbound_messages._Fields.__struct_fields__) == counted | created
    assert created == {"max_tokens", "thread"}
    alone = {"ResponsesRequest": inbound_responses._Responses, "EmbeddingsRequest": inbound_openai._Embeddings}
    alone["WholeRequest"] = inbound_openai._PassedThrough
    for schema, each in alone.items():
        assert set(each.__struct_fields__) == SCHEMAS[schema]["properties"].keys()
