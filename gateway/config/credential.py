"""The settings of a token that is renewed: its source, and the rules between its settings.

The sources are in ttft_gateway/credentials/sources.py. Pure. Messages never quote an argument of a program.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field

from gateway.config.document import Finding, Loc, RawMapping
from gateway.config.section import Section
from gateway.config.values import Name
from ttft_gateway.credentials.sources import CLOUDS, OPTION_OF, SourceName


def _may_be_a_name(schema: dict[str, Any]) -> None:
    schema["type"] = ["object", "string"]
    schema["if"] = {"type": "string"}
    schema["then"] = {"enum": list(CLOUDS)}


class CredentialSettings(Section):
    """A source of tokens. `credential: google` is short for `credential: {source: google}`."""

    model_config = ConfigDict(json_schema_extra=_may_be_a_name)

    source: Literal["aws", "google", "azure", "command", "file"] = Field(examples=["google"])
    """Login of Amazon, Google or Microsoft that this process has, a program that prints a token, or a file."""
    command: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None, min_length=1, max_length=50, examples=["[/usr/local/bin/token, --for, vertex]"]
    )
    """Program and arguments of `source: command`; it prints an ExecCredential of Kubernetes."""
    file: str | None = Field(default=None, min_length=1, examples=["/run/secrets/token"])
    """Watched file of `source: file`, with the token or an ExecCredential; relative to the configuration file."""
    profile: Name | None = Field(default=None, examples=["production"])
    """Profile of the AWS configuration, of `source: aws`; unset: the default one."""


assert set(get_args(SourceName)) == set(get_args(CredentialSettings.model_fields["source"].annotation))


def named_source(value: object) -> object:
    """Return the mapping for the name of a source alone."""
    return {"source": value} if isinstance(value, str) else value


def credential_findings(replica: RawMapping, loc: Loc) -> Iterator[Finding]:
    """Return the violations of rules about the credential of a replica."""
    given = named_source(replica.get("credential"))
    if not isinstance(given, dict):
        return
    at, source = (*loc, "credential"), given.get("source")
    for key in ("api_key", "api_key_file"):
        if key in replica:
            yield (*loc, key), "`credential` is set as well; remove one of the two"
            break
    for name, user in OPTION_OF.items():
        if name in given and source != user:
            yield (*at, name), f"only source {user} uses `{name}`; remove this line"
        if source == user == name and name not in given:
            example = "[/usr/local/bin/token]" if name == "command" else "/run/secrets/token"
            yield at, f"source {name} needs `{name}`; write `credential: {{source: {name}, {name}: {example}}}`"
    if source == "aws" and "region" not in replica:
        yield at, "a token of Bedrock is valid in one region; add `region: us-east-1` to the replica"
