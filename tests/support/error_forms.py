"""Errors as providers document or send them: for a caller's mistakes, and for a dead key, account or model name.

The sources are named in `ttft_gateway/apis/account_errors.py`, and are the providers' pages on errors.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple


class Form(NamedTuple):
    """An error response.

    Attributes:
        status: HTTP status.
        body: JSON body.
        amazon_type: value of `x-amzn-errortype`; empty without the header.
        at_once: True if one such response proves that the account is dead.
    """

    status: int
    body: Mapping[str, object]
    amazon_type: str = ""
    at_once: bool = False

    def response(self) -> bytes:
        """Return the response in bytes."""
        content = json.dumps(self.body).encode()
        reason = HTTPStatus(self.status).phrase if self.status in set(HTTPStatus) else "Other"
        head = f"HTTP/1.1 {self.status} {reason}\r\ncontent-type: application/json\r\n"
        head += f"x-amzn-errortype: {self.amazon_type}\r\n" if self.amazon_type else ""
        return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def openai(status: int, message: str, kind: str | None, code: str | None, param: str | None = None) -> Form:
    """Make an error in OpenAI's form."""
    return Form(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})


def anthropic(status: int, kind: str, message: str, **more: object) -> Form:
    """Make an error in Anthropic's form."""
    return Form(status, {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_1"})


def google(code: int, state: str, message: str, reason: str | None = None) -> Form:
    """Make an error in Google's form."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "googleapis.com"}]
    error = {"code": code, "message": message, "status": state, **({"details": details} if reason else {})}
    return Form(code, {"error": error})


MISTAKES: Mapping[str, Form] = {
    "anthropic-file": anthropic(404, "not_found_error", "File not found: file_011CNha8iCJcU1wXNR6q4V8w"),
    "anthropic-beta": anthropic(403, "permission_error", "This organization may not use the beta header 'x-1'."),
    "anthropic-conflict": anthropic(409, "conflict_error", "The container is in use by another request."),
    "anthropic-thread": anthropic(
        404, "not_found_error", "No thread was found.", details={"error_code": "thread_not_found"}
    ),
    "openai-conversation": openai(404, "Conversation with id 'conv_1' not found.", "invalid_request_error", None),
    "openai-response": openai(
        404, "Previous response with id 'resp_1' not found.", "invalid_request_error", "previous_response_not_found"
    ),
    "openai-vector-store": openai(403, "You have insufficient permissions for this file.", "invalid_request_error", ""),
    "openai-audio-model": openai(
        400, "This model requires that either input or output contain audio.", "invalid_request_error", None, "model"
    ),
    "openai-mcp": openai(424, "Error retrieving tool list: 401", "external_connector_error", "http_error"),
    "openai-value": openai(400, "Invalid value: 'x'.", "invalid_request_error", "invalid_value", "service_tier"),
    "gemini-file": google(403, "PERMISSION_DENIED", "You do not have permission to access the File abc."),
    "gemini-cache": google(404, "NOT_FOUND", "CachedContent not found (or permission denied)"),
    "bedrock-guardrail": Form(
        403, {"message": "You are not authorized to perform: bedrock:ApplyGuardrail"}, "AccessDeniedException"
    ),
    "openrouter-max_tokens": Form(
        402, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}
    ),
    "groq-flex": openai(498, "Flex tier capacity exceeded", "capacity_exceeded", "capacity_exceeded"),
    "a-key-of-its-own": openai(401, "The tool's token is not accepted.", "authentication_error", None),
    "method": openai(405, "Method not allowed", "invalid_request_error", "method_not_supported"),
    "gone": openai(410, "This file has expired", "expired", "file_expired"),
    "unprocessable": openai(422, "cannot be read", "invalid_request_error", None),
    "legal": openai(451, "not available", "legal", "legal"),
}
"""Errors by which a provider rejects one caller's request; to others it answers."""

DEAD: Mapping[str, Form] = {
    "openai-key": openai(401, "Incorrect API key provided: sk-x", "invalid_request_error", "invalid_api_key")._replace(
        at_once=True
    ),
    "openai-quota": openai(429, "You exceeded your current quota", "insufficient_quota", "insufficient_quota"),
    "openai-hard-limit": openai(
        400, "Billing hard limit has been reached", "invalid_request_error", "billing_hard_limit_reached"
    )._replace(at_once=True),
    "openai-not-active": openai(429, "not active", "billing_not_active", "billing_not_active")._replace(at_once=True),
    "openai-deactivated": openai(401, "deactivated", "invalid_request_error", "account_deactivated")._replace(
        at_once=True
    ),
    "openai-region": openai(
        403, "Country not supported", "request_forbidden", "unsupported_country_region_territory"
    )._replace(at_once=True),
    "openai-project": openai(
        403, "Project `proj_1` does not have access to model `x`", "invalid_request_error", "model_not_found"
    ),
    "anthropic-key": anthropic(401, "authentication_error", "invalid x-api-key"),
    "anthropic-credit": anthropic(
        400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    ),
    "anthropic-limit": anthropic(
        400, "invalid_request_error", "You have reached your specified API usage limits. You will regain access soon"
    ),
    "anthropic-billing": anthropic(402, "billing_error", "Payment required")._replace(at_once=True),
    "anthropic-organization": anthropic(400, "invalid_request_error", "This organization has been disabled."),
    "anthropic-model": anthropic(404, "not_found_error", "model: claude-0"),
    "gemini-key": google(400, "INVALID_ARGUMENT", "API key not valid.", "API_KEY_INVALID")._replace(at_once=True),
    "gemini-key-no-details": google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    "gemini-suspended": google(
        403, "PERMISSION_DENIED", "Permission denied: Consumer 'api_key:x' has been suspended.", "CONSUMER_SUSPENDED"
    )._replace(at_once=True),
    "vertex-service": google(403, "PERMISSION_DENIED", "disabled", "SERVICE_DISABLED")._replace(at_once=True),
    "vertex-billing": google(403, "PERMISSION_DENIED", "disabled", "BILLING_DISABLED")._replace(at_once=True),
    "azure-key": Form(401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}),
    "azure-deployment": Form(
        404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist"}}
    )._replace(at_once=True),
    "bedrock-key": Form(
        403, {"message": "The security token is invalid."}, "UnrecognizedClientException:http://aws"
    )._replace(at_once=True),
    "bedrock-expired": Form(403, {"message": "expired"}, "ExpiredTokenException")._replace(at_once=True),
    "bedrock-access": Form(
        403, {"message": "You don't have access to the model with the specified model ID."}, "AccessDeniedException"
    ),
    "bedrock-api-key": Form(
        403, {"Message": "Authentication failed: Please make sure your API Key is valid."}, "AccessDeniedException"
    ),
    "bedrock-expired-key": Form(403, {"Message": "Bearer Token has expired"}, "AccessDeniedException"),
    "bedrock-mantle-key": openai(401, "Invalid bearer token", None, "invalid_api_key")._replace(at_once=True),
    "bedrock-mantle-route": openai(
        400, "model `xai.grok-4.3` isn't supported on this route", "invalid_request_error", "validation_error"
    ),
    "bedrock-mantle-api": openai(
        400,
        "The model 'openai.gpt-5.6-terra' does not support the '/v1/chat/completions' API",
        "invalid_request_error",
        "validation_error",
    ),
    "bedrock-model": Form(400, {"message": "The provided model identifier is invalid."}, "ValidationException"),
    "vertex-token": google(
        401, "UNAUTHENTICATED", "Request had invalid authentication credentials.", "ACCESS_TOKEN_EXPIRED"
    )._replace(at_once=True),
    "vertex-model": google(404, "NOT_FOUND", "Publisher Model `projects/p/locations/l/models/x` was not found"),
    "vertex-agreement": google(
        400, "FAILED_PRECONDITION", "Project `1` is not allowed to use Publisher Model `projects/p/models/x`"
    ),
    "foundry-api": Form(
        404, {"error": {"code": "api_not_supported", "message": "Requested API is currently not supported"}}
    ),
    "deepseek": openai(402, "Insufficient Balance", "unknown_error", "invalid_request_error"),
    "openrouter": Form(402, {"error": {"message": "Insufficient credits. Add more using the settings", "code": 402}}),
    "mistral": Form(401, {"message": "Unauthorized", "request_id": "1"}),
    "cohere": Form(401, {"message": "invalid api token"}),
    "xai": Form(400, {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: na***ys."}),
    "xai-credits": Form(429, {"code": "exhausted", "error": "Your team x has either used all available credits or"}),
    "groq": openai(
        400, "Organization has been restricted.", "invalid_request_error", "organization_restricted"
    )._replace(at_once=True),
    "together": openai(401, "Invalid API key provided", "invalid_request_error", "invalid_api_key")._replace(
        at_once=True
    ),
    "fireworks": openai(412, "Account x is suspended, possibly due to unpaid invoices", "error", "PRECONDITION_FAILED"),
    "alibaba": openai(400, "make sure your account is in good standing", "Arrearage", "Arrearage")._replace(
        at_once=True
    ),
    "moonshot": openai(429, "Your account is suspended", "exceeded_current_quota_error", None)._replace(at_once=True),
    "zhipu": Form(429, {"error": {"code": "1113", "message": "您的账户已欠费,请充值后重试"}}),
    "vllm-model": Form(
        404, {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}
    ),
    "ollama-model": Form(404, {"error": {"message": 'model "x" not found, try pulling it first', "type": "api_error"}}),
}
"""Errors by which a provider rejects every request of the gateway."""
