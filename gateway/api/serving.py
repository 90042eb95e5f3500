"""The models, keys and limits of the settings in force; a reload replaces them. No units."""

from collections.abc import Mapping

import msgspec

from gateway.admission.admission import Admission
from gateway.api.auth import Keyring
from gateway.api.body_reader import BodyLimits
from gateway.listed_keys import ListedKeys
from gateway.race.context import Model
from gateway.traces import TraceStart
from ttft_gateway.hedging.contract import ATTEMPTS_MAX
from ttft_gateway.requests.parsed import NumberLimits


class RequestLimits(msgspec.Struct, frozen=True):
    """Limits on client requests.

    Attributes:
        bounds: limits on numbers in a body.
        passed_headers: names of client headers to pass on.
        default_model: name of the model of requests without a known one; None if those are errors.
    """

    bounds: NumberLimits
    passed_headers: frozenset[bytes]
    default_model: str | None = None


class AttemptLimits(msgspec.Struct, frozen=True):
    """Limits on the upstream attempts for one key's requests.

    Attributes:
        hedge: True if requests may be hedged.
        attempts_max: largest number of attempts of a request, hedges and failed ones included.
    """

    hedge: bool
    attempts_max: int


class Serving(msgspec.Struct, frozen=True):
    """The objects built from the settings that serve requests.

    Attributes:
        models: models by public name and by alias.
        keyring: API keys and the models they may use.
        bodies: limits on request bodies.
        uploads: limits on the bodies that are sent to a replica while they arrive.
        admission: gives permits to requests.
        counts: gives permits to requests that only count tokens; their limits are separate, as at Anthropic.
        limits: limits on client requests.
        attempts: limits on attempts by name of the key, for keys that have some.
        listed: keys from a list.
        traces: finds the place of each request in its trace; None without tracing.
    """

    models: Mapping[str, Model]
    keyring: Keyring
    bodies: BodyLimits
    uploads: BodyLimits
    admission: Admission
    counts: Admission
    limits: RequestLimits
    attempts: Mapping[str, AttemptLimits] = msgspec.field(default_factory=dict)
    traces: TraceStart | None = None
    listed: ListedKeys | None = None

    def attempts_of(self, key_name: str) -> AttemptLimits | None:
        """Return the limits on attempts of a key; None if it has none."""
        rule = None if self.listed is None else self.listed.rule(key_name)
        if rule is None or (rule.hedge and rule.attempts_max >= ATTEMPTS_MAX):
            return self.attempts.get(key_name)
        return AttemptLimits(rule.hedge and rule.attempts_max > 1, rule.attempts_max)

    def model(self, key_name: str, requested: str) -> Model:
        """Return the requested model, or the default one.

        Raises:
            UnknownModel: there is no such model.
            ModelNotAllowed: the key may not use it.
        """
        model = self.models.get(requested)
        if model is None and self.limits.default_model is not None:
            model = self.models[self.limits.default_model]
        keyring = self.keyring
        if model is None or (keyring.has_rules and not keyring.may_use(key_name, model.name)):
            raise keyring.model_error(key_name, requested, self.models)
        return model
