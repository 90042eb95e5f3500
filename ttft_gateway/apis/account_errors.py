"""Errors by which providers reject the gateway's own key, account or model name, in whatever status: one table.

Codes are fields of their own, which no request can set: one is proof. A text is a sign only, because some servers quote
the request in their messages, and so are codes that a provider also sends for what a request asks for. Each row has its
source. Reads an `UpstreamError` of any wire protocol; the statuses 401 and 402 need no row.
"""

import enum
import re
from typing import Final, NamedTuple

from ttft_gateway.apis.errors import UpstreamError


class Blame(enum.Enum):
    """Part of the gateway's settings in an error."""

    CERTAIN = "certain"  # no request can cause the error
    LIKELY = "likely"  # a request could cause it


class _Form(NamedTuple):
    """The forms of one provider.

    Attributes:
        provider: its name, for readers.
        source: page or public thread that has the forms.
        certain: values of `type`, `code` or a reason in `details` that no request can cause.
        likely: such values that a request may cause, too.
        texts: patterns of messages.
    """

    provider: str
    source: str
    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


_FORMS: Final = (
    _Form(
        "OpenAI",
        "platform.openai.com/docs/guides/error-codes; RamiAwar/dataline#175 (billing_not_active)",
        ("invalid_api_key", "account_deactivated", "billing_hard_limit_reached", "billing_not_active"),
        ("insufficient_quota",),  # Alibaba sends it for a rate limit, too
        ("Incorrect API key provided", "Billing hard limit has been reached", "exceeded your current quota, please"),
    ),
    _Form(
        "OpenAI, by region or project",
        "platform.openai.com/docs/guides/error-codes",
        ("unsupported_country_region_territory",),
        ("model_not_found",),
        ("Project `?[\\w-]{1,80}`? does not have access to model",),
    ),
    _Form(
        "Anthropic",
        "docs.anthropic.com/en/api/errors; Wei-Shaw/sub2api#1586; NousResearch/hermes-agent#80553",
        ("billing_error",),
        ("authentication_error",),
        (
            "credit balance is too low",
            "reached your specified API usage limits",
            "organization has been disabled",
            r"\Amodel: [\w.:@/-]{1,120}\Z",  # the not_found_error of a model
        ),
    ),
    _Form(
        "Google: Gemini and Vertex",
        "google/api/error_reason.proto of googleapis/googleapis; ai.google.dev/gemini-api/docs/troubleshooting; "
        "googleapis/python-aiplatform#3574, yym68686/uni-api#41 (publisher models)",
        (
            "API_KEY_INVALID",
            "API_KEY_SERVICE_BLOCKED",
            "API_KEY_HTTP_REFERRER_BLOCKED",
            "API_KEY_IP_ADDRESS_BLOCKED",
            "API_KEY_ANDROID_APP_BLOCKED",
            "API_KEY_IOS_APP_BLOCKED",
            "ACCESS_TOKEN_EXPIRED",
            "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
            "ACCESS_TOKEN_TYPE_UNSUPPORTED",
            "ACCOUNT_STATE_INVALID",
            "BILLING_DISABLED",
            "CONSUMER_INVALID",
            "CONSUMER_SUSPENDED",
            "CREDENTIALS_MISSING",
            "GCP_SUSPENDED",
            "SERVICE_DISABLED",
            "USER_PROJECT_DENIED",
        ),
        ("UNAUTHENTICATED",),
        (
            "API key not valid",
            "API key expired",
            "pass a valid API key",
            r"Consumer '[^']{1,200}' has been suspended",
            "has not been used in project",
            "API key was reported as leaked",
            "project has been denied access",
            r"models/[\w.-]{1,120} is not found for API version",
            r"Publisher Model `[^`]{1,300}` (?:was|is) not found",
            "is not allowed to use Publisher Model",
        ),
    ),
    _Form(
        "Azure OpenAI and Foundry",
        "learn.microsoft.com/azure/ai-services/openai; SciSharp/BotSharp#386; MicrosoftDocs/azure-docs#107395; "
        "anthropics/claude-code#13558",
        ("DeploymentNotFound",),
        ("AuthenticationTypeDisabled",),
        (
            "Access denied due to (?:invalid subscription key|Virtual Network)",
            "API deployment for this resource does not exist",
            "Public access is disabled",
            "Requested API is currently not supported",
        ),
    ),
    _Form(
        "Amazon Bedrock; AccessDeniedException is also sent for a guardrail that the request names",
        "docs.aws.amazon.com/bedrock/latest/userguide/troubleshooting-api-error-codes.html and CommonErrors.html; "
        "anomalyco/opencode#47073 (403), BerriAI/litellm (tests of AnthropicExceptionMapping, expired), "
        "NousResearch/hermes-agent#65076 (routes)",
        (
            "UnrecognizedClientException",
            "ExpiredTokenException",
            "ExpiredToken",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "OptInRequired",
            "FTUFormNotFilled",
        ),
        (),
        (
            "security token included in the request is",
            "access to the model with the specified model ID",
            "account is not authorized to invoke this API",
            "Model access is denied due to",
            "make sure your API Key is valid",
            r"\ABearer Token has expired",
            "isn't supported on this route",
            r"The model '[^']{1,200}' does not support the '/",
            "provided model identifier is invalid",
        ),
    ),
    _Form(
        "xAI",
        "continuedev/continue#10778 (400), #10373 (429); Wei-Shaw/sub2api#4069 (403)",
        texts=("used all available credits", "have run out of credits", "does not exist or your team"),
    ),
    _Form(
        "Groq",
        "console.groq.com/docs/errors; NVIDIA-NeMo/Guardrails#563",
        ("organization_restricted",),
        (),
        ("Organization has been restricted",),
    ),
    _Form("DeepSeek", "api-docs.deepseek.com/quick_start/error_codes", texts=("Insufficient Balance",)),
    _Form(
        "OpenRouter; without credits the message may also be about max_tokens",
        "openrouter.ai/docs/api-reference/errors; hassanmsthf11/unlimited-claude-AI#22",
        texts=(r"\AInsufficient credits", "Key limit exceeded"),
    ),
    _Form(
        "Fireworks",
        "docs.fireworks.ai/guides/inference-error-codes; amd/gaia#3766 (412)",
        texts=(r"Account [\w-]{1,80} is suspended", "Model not found, inaccessible"),
    ),
    _Form(
        "Cohere and Mistral, beside their 401",
        "docs.cohere.com/reference/errors; cohere-ai/cohere-toolkit#857",
        texts=(r"\Ainvalid api token\Z",),
    ),
    _Form(
        "Alibaba Model Studio",
        "help.aliyun.com/en/model-studio/error-code",
        ("Arrearage", "InvalidApiKey", "AccessDenied.Unpurchased", "AllocationQuota.FreeTierOnly"),
        ("Model.AccessDenied", "ModelNotFound"),
        ("make sure your account is in good standing",),
    ),
    _Form(
        "Moonshot",
        "platform.moonshot.ai/docs (errors); MoonshotAI/kimi-code#1857 (429), MoonshotAI/Kimi-K2#5 (403)",
        ("exceeded_current_quota_error", "invalid_authentication_error"),
        (),
        ("is suspended due to insufficient balance",),
    ),
    _Form(
        "Zhipu and Z.AI; other providers use the same numbers for other errors",
        "docs.bigmodel.cn/cn/api/api-code; docs.z.ai/api-reference/api-code",
        likely=("1110", "1111", "1112", "1113", "1121", "1309"),
    ),
    _Form(
        "vLLM, SGLang and Ollama",
        "docs.vllm.ai (serving_models.py, NotFoundError); ollama/ollama (server/routes.go)",
        texts=(
            r"\AThe model `[^`]{1,200}` does not exist",
            r"\Amodel [\"'][^\"']{1,200}[\"'] not found",
        ),
    ),
)

_EXPIRED: Final = frozenset(
    {
        "ACCESS_TOKEN_EXPIRED",
        "ACCESS_TOKEN_TYPE_UNSUPPORTED",
        "ExpiredTokenException",
        "ExpiredToken",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
    }
)
_names_expired = re.compile(
    r"Bearer Token has expired|make sure your API Key is valid|security token included in the request is", re.IGNORECASE
).search
_CERTAIN: Final = frozenset(name for form in _FORMS for name in form.certain)
_LIKELY: Final = frozenset(name for form in _FORMS for name in form.likely)
_names_account = re.compile("|".join(text for form in _FORMS for text in form.texts), re.IGNORECASE).search


def account_blame(error: UpstreamError) -> Blame | None:
    """Return the part of the gateway's key, account or model name in an error; None if the error has no sign of it."""
    if error.param not in (None, "", "model"):
        return None
    names = (error.code, error.kind, error.reason)
    if not _CERTAIN.isdisjoint(names):
        return Blame.CERTAIN
    if not _LIKELY.isdisjoint(names) or _names_account(error.message) is not None:
        return Blame.LIKELY
    return None


def rejects_token(error: UpstreamError) -> bool:
    """Return True if an upstream rejects a token, which a new one may cure: a 401, or a 403 of Amazon Bedrock."""
    if error.status == 403:
        return not _EXPIRED.isdisjoint((error.code, error.kind, error.reason)) or bool(_names_expired(error.message))
    return error.status == 401
