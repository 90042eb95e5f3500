"""Types of values of settings: parsing from YAML, validation, and formatting.

Owns durations, sizes, shares, addresses, URLs, names, kinds and secrets. No setting is named here, and no file is read.
An invalid value raises a `PydanticCustomError` of type "setting" with `what` (the problem, worded to follow "found X,
but") and `write` (the correction, "" if there is none to suggest); neither quotes a secret.

Units: durations become seconds (float), sizes bytes, shares fractions of 1.
"""

import ipaddress
import re
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, SecretStr, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.share.address import AddressFault, read_address
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import CATALOG

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_BYTES = {"GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20, "kB": 1000, "KiB": 1024, "B": 1}
_INTERVAL_MIN_S = 0.1
_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_DURATION = re.compile(rf"({_NUMBER})(ms|s|m|h)")
_SIZE = re.compile(r"([0-9]{1,12})(B|[kMG]B|[KMG]iB)")
_SHARE = re.compile(rf"({_NUMBER})%")
_BARE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_API_PATHS = (*(f"/{api.value}" for api in Api), "/models")
GATEWAYS_MAX = 4_096  # processes that a server counts
WORKERS_MAX = 128  # a process takes some 25 MB, and servers have about this number of cores
_UNIX = "http+unix://%2Frun%2Fvllm.sock/v1"


def invalid_value(what: str, write: str = "") -> PydanticCustomError:
    """Return the error of an invalid value.

    Args:
        what: problem, worded to follow "found X, but".
        write: correction; "" for none.
    """
    return PydanticCustomError("setting", "{what}", {"what": what, "write": write})


def _seconds(value: object) -> float:
    text = str(value)
    if isinstance(value, str) and (match := _DURATION.fullmatch(text)):
        return round(float(match[1]) * _SECONDS[match[2]], 6)
    if _BARE.fullmatch(text):
        raise invalid_value("a duration needs a unit (ms, s, m or h)", f"{text}ms or {text}s")
    raise invalid_value("it is not a duration", "a number and a unit, such as 250ms, 15s, 10m or 1h")


def _duration(seconds: float) -> str:
    for unit, length in _SECONDS.items():
        count = round(seconds / length, 6)
        if count and count == int(count):
            return f"{int(count)}{unit}"
    return f"{round(seconds * 1000, 6):g}ms" if seconds else "0s"


def _positive(seconds: float) -> float:
    if seconds == 0:
        raise invalid_value("it must be more than 0s")
    return seconds


def _not_often(seconds: float) -> float:
    if seconds < _INTERVAL_MIN_S:
        raise invalid_value(f"it must be at least {_duration(_INTERVAL_MIN_S)}")
    return seconds


def parse_size(value: object) -> int:
    """Read a size in bytes.

    Raises:
        PydanticCustomError: value is not a size.
    """
    text = str(value)
    if isinstance(value, str) and (match := _SIZE.fullmatch(text)):
        return int(match[1]) * _BYTES[match[2]]
    if _BARE.fullmatch(text):
        raise invalid_value("a size needs a unit (B, kB, MB, KiB, MiB)", f"{text}B or {text}MB")
    raise invalid_value("it is not a size", "a whole number and a unit, such as 256kB or 10MB")


def _size(count: int) -> str:
    unit = next(unit for unit, length in _BYTES.items() if count % length == 0)
    return f"{count // _BYTES[unit]}{unit}"


def _fraction(value: object) -> float:
    text = str(value)
    if isinstance(value, str) and (match := _SHARE.fullmatch(text)) and float(match[1]) <= 100:
        return round(float(match[1]) / 100, 8)
    if _BARE.fullmatch(text) and 0 <= float(text) <= 100:
        percent = float(text) * 100 if float(text) <= 1 else float(text)
        raise invalid_value("a share is a percentage", f"{percent:g}%")
    raise invalid_value("it is not a share", "a percentage from 0% to 100%, such as 10%")


def _share(fraction: float) -> str:
    return f"{round(fraction * 100, 6):g}%"


def no_boolean(value: object) -> object:
    """Reject `true` as a number: Python would read it as 1."""
    if isinstance(value, bool):
        raise invalid_value("a number is expected")
    return value


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):  # from a variable
        return value == "true"
    raise invalid_value("a boolean is expected", "true or false")


def _name(value: str) -> str:
    if not re.fullmatch(r"[!-~]{1,128}", value):
        raise invalid_value(
            "a name must be 1 to 128 visible ASCII characters without spaces (it is used in labels and headers)"
        )
    return value


def _kind(value: str) -> str:
    if value not in CATALOG:
        raise invalid_value("it is not a supported kind", "one of " + ", ".join(sorted(CATALOG)))
    return value


def secret_fault(text: str) -> str | None:
    """Return the problem of a secret, without quoting it; None if it is valid.

    A secret is sent in an HTTP header: anything but visible ASCII would break or forge the request.
    """
    if not text:
        return "the secret is empty; write the key, or remove this setting"
    if re.match(r"\$[A-Za-z_({]", text):
        return "the secret looks like a variable that was not replaced; write ${NAME} in the configuration file"
    if re.match(r"(?i)bearer\s", text):
        return "the secret starts with Bearer; write only the key"
    if not re.fullmatch(r"[!-~]+", text):
        return "the secret contains a space, a line break or another character that HTTP headers do not allow"
    return None


def _secret(value: SecretStr) -> SecretStr:
    if fault := secret_fault(value.get_secret_value()):
        raise invalid_value(fault)
    return value


def _engine_url(url: str) -> str:
    try:
        read_address(url)
    except AddressFault as fault:
        raise invalid_value(str(fault)) from None
    return url


def _host_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*", value):
        raise invalid_value(
            "it is not the name of a host", "the name without scheme and port, such as gateway.internal"
        )
    return value


class Address(NamedTuple):
    """Address to listen on: a host or IP address, and a port (0: any free port)."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """True if only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def here(self) -> "Address":
        """Address to connect to from this machine: loopback instead of 0.0.0.0 or [::]."""
        try:
            ip = ipaddress.ip_address(self.host)
        except ValueError:
            return self
        loopback = "127.0.0.1" if ip.version == 4 else "::1"
        return self._replace(host=loopback) if ip.is_unspecified else self

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(value: object) -> Address:
    """Read `host:port`.

    Raises:
        PydanticCustomError: value is not an address.
    """
    if isinstance(value, Address):
        return value
    text = str(value)
    if _BARE.fullmatch(text):
        raise invalid_value("an address must be host:port", f"127.0.0.1:{text} (this machine only) or 0.0.0.0:{text}")
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9.-]+)):([0-9]{1,5})", text)
    example = "for example 127.0.0.1:8080, 0.0.0.0:8080 or '[::1]:8080'"
    if not isinstance(value, str) or match is None:
        raise invalid_value("an address must be host:port", example)
    if int(match[3]) > 65535:
        raise invalid_value("a port is at most 65535", example)
    return Address(match[1] or match[2], int(match[3]))


def _address_or_off(value: object) -> Address | None:
    return None if value is None or value in ("off", False) else parse_address(value)


def _file_or_off(value: object) -> str | None:
    if value is None or value in ("off", False):
        return None
    if not isinstance(value, str) or not value or "\0" in value:
        raise invalid_value("a path is expected", "a path, such as /var/lib/ttft-gateway/learned.json, or off")
    return value


def _workers(value: object) -> int | None:
    if value is None or value == "auto":
        return None
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= WORKERS_MAX:
        raise invalid_value(f"the number of workers is not between 1 and {WORKERS_MAX}", "auto, or a number such as 4")
    return int(text)


def _gateways(value: object) -> int | str:
    text = str(value)
    if isinstance(value, bool) or not text or re.fullmatch(r"-?[0-9.]+", text):
        if not re.fullmatch("[0-9]{1,4}", text) or not 1 <= int(text) <= GATEWAYS_MAX:
            example = "a number such as 3, or a host name with the addresses of all gateways"
            raise invalid_value(f"the number of gateways is not between 1 and {GATEWAYS_MAX}", example)
        return int(text)
    return _host_name(text)


def _base_url(value: str) -> str:
    example = "for example http://10.0.0.1:8000/v1"
    if not re.fullmatch(r"[!-~]+", value):
        raise invalid_value("a base_url must be ASCII without spaces", example)
    try:
        url = urlsplit(value)
        host = url.hostname if url.port != 0 else None
    except ValueError:
        raise invalid_value("it is not a URL with a port from 1 to 65535", example) from None
    if "@" in url.netloc or ("//" not in value and "@" in value):
        raise invalid_value(
            "a URL with a user or password would appear in logs", "the key in api_key, and the URL without it"
        )
    if url.scheme in ("unix", "http+unix"):
        if url.scheme == "unix" or not re.fullmatch("%2[Ff].+", url.netloc):
            raise invalid_value("the path of a unix socket must have %2F for each /", _UNIX)
    elif "://" not in value:
        raise invalid_value("a base_url must start with http:// or https://", with_v1(f"http://{value}"))
    elif url.scheme not in ("http", "https") or not host:
        raise invalid_value("a base_url must be http:// or https:// with a host, and a port over 0", example)
    elif "%" in url.netloc:
        raise invalid_value(
            "a host must not contain % (IPv6 zones are not supported)", "a name, or an address without zone"
        )
    if "api-version=" in url.query:
        raise invalid_value("a base_url must not contain ?", "the part before it, and add `api_version: ...`")
    if url.query or url.fragment or value.endswith(("?", "#")):
        raise invalid_value("a base_url must not contain ? or #", "the part before it (write a key in api_key)")
    return _check_path(value, url.path)


def _proxy_url(value: SecretStr) -> SecretStr:
    example = "for example http://proxy.internal:3128"
    text = value.get_secret_value()
    try:
        url = urlsplit(text)
        host = url.hostname if url.port != 0 else None
    except ValueError:
        raise invalid_value("it is not a URL", example) from None
    if url.scheme not in ("http", "https") or not host or not re.fullmatch(r"[!-~]+", text):
        raise invalid_value("a proxy must be http:// or https:// with a host and a port", example)
    if url.path.strip("/") or url.query or url.fragment:
        raise invalid_value("a proxy must not have a path or query", example)
    return value


def _check_path(value: str, path: str) -> str:
    for tail in _API_PATHS:
        if path.rstrip("/").endswith(tail):
            raise invalid_value(f"the gateway adds {tail} itself", with_v1(value.rstrip("/").removesuffix(tail)))
    if not path:
        raise invalid_value("the path is missing", f"{value}/v1 (or {value}/ if the API has no path)")
    return value.rstrip("/")


def with_v1(url: str) -> str:
    """Return the URL, with `/v1` added if it has no path."""
    return url.rstrip("/") + "/v1" if url.rstrip("/").count("/") == 2 else url


def _text(pattern: str, *examples: str) -> WithJsonSchema:
    """Return the JSON schema of a value written as text, which may contain `${NAME}`."""
    return WithJsonSchema({"type": "string", "pattern": rf"^({pattern})$|\$\{{", "examples": list(examples)})


_DURATION_SCHEMA = _text(r"[0-9]+(\.[0-9]+)?(ms|s|m|h)", "250ms", "15s", "10m")
_DURATION_TEXT = PlainSerializer(_duration, return_type=str)

Delay = Annotated[float, BeforeValidator(_seconds), _DURATION_TEXT, _DURATION_SCHEMA]
"""Duration of 0s or more; in seconds."""

Duration = Annotated[float, BeforeValidator(_seconds), AfterValidator(_positive), _DURATION_TEXT, _DURATION_SCHEMA]
"""Duration of more than 0s; in seconds."""

Interval = Annotated[float, BeforeValidator(_seconds), AfterValidator(_not_often), _DURATION_TEXT, _DURATION_SCHEMA]
"""Time between two look-ups; in seconds."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(_size, return_type=str),
    _text("[0-9]+(B|[kMG]B|[KMG]iB)", "256kB", "10MB"),
]
"""Size in bytes; kB = 1,000 and KiB = 1,024 bytes."""

Share = Annotated[
    float,
    BeforeValidator(_fraction),
    PlainSerializer(_share, return_type=str),
    _text(r"[0-9]+(\.[0-9]+)?%", "10%"),
]
"""Percentage, as a fraction of 1."""

Count = Annotated[int, Field(ge=1), BeforeValidator(no_boolean)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(no_boolean)]
Switch = Annotated[bool, BeforeValidator(_boolean)]
Name = Annotated[str, AfterValidator(_name)]
Kind = Annotated[str, AfterValidator(_kind), WithJsonSchema({"type": "string", "enum": sorted(CATALOG)})]
"""Kind of a replica."""

MASKED = PlainSerializer(lambda _: "****", return_type=str)
Secret = Annotated[SecretStr, AfterValidator(_secret), MASKED]
ProxyUrl = Annotated[SecretStr, AfterValidator(_proxy_url), MASKED]
"""URL of an HTTP proxy; secret, because it may contain a password."""
HostName = Annotated[str, AfterValidator(_host_name)]
EngineUrl = Annotated[
    str,
    AfterValidator(_engine_url),
    _text(r"(rediss?(\+sentinel)?|unix)://.+", "rediss://valkey.internal:6379/0"),
]
"""URL of a Redis or Valkey server, without user and password."""

_ADDRESS_SCHEMA = _text(r".+:[0-9]+", "127.0.0.1:8080", "0.0.0.0:8080")
ListenAddress = Annotated[
    Address, PlainValidator(parse_address), PlainSerializer(str, return_type=str), _ADDRESS_SCHEMA
]
OptionalAddress = Annotated[
    Address | None,
    PlainValidator(_address_or_off),
    PlainSerializer(lambda address: "off" if address is None else str(address), return_type=str),
    _text(r".+:[0-9]+|off", "127.0.0.1:8081", "off"),
]
"""Address; None for `off`."""

OptionalFile = Annotated[
    str | None,
    PlainValidator(_file_or_off),
    PlainSerializer(lambda file: "off" if file is None else file, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""Path of a file; None for `off`."""

Gateways = Annotated[
    int | str,
    PlainValidator(_gateways),
    WithJsonSchema(
        {"oneOf": [{"type": "integer", "minimum": 1, "maximum": GATEWAYS_MAX}, {"type": "string", "minLength": 1}]}
    ),
]
"""Number of gateways, or the host name with their addresses."""

Workers = Annotated[
    int | None,
    PlainValidator(_workers),
    PlainSerializer(lambda count: "auto" if count is None else count, return_type=int | str),
    WithJsonSchema(
        {
            "oneOf": [
                {"type": "integer", "minimum": 1, "maximum": WORKERS_MAX},
                {"type": "string", "pattern": r"^(auto|[0-9]+)$|\$\{"},
            ]
        }
    ),
]
"""Number of processes; None for `auto`."""

BaseUrl = Annotated[str, AfterValidator(_base_url), _text(r"(https?|http\+unix)://.+", "http://10.0.0.1:8000/v1")]
"""URL (http, https or a unix socket) up to and including `/v1`, without a trailing slash."""
