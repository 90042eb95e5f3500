"""A default has one place: gateway, client library, bench and pages follow it."""

import json
import re
import subprocess
import sys

import pytest
from msgspec.structs import replace

from checkout import ROOT
from gateway.config.settings import HedgeSettings, ModelSettings
from gateway.server.model_parts import hedge_parameters
from ttft_gateway.hedging.measure import MeasureShares
from ttft_gateway.hedging.parameters import DEFAULTS, HedgeParameters
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.routing.strategies import Crossing

# Prints the defaults of all who have some; None is no default, because the core has it. With an argument, every number
# is changed in its one place before.
PROGRAM = """
import json, sys
from msgspec import NODEFAULT
from msgspec.structs import asdict, fields, replace
import ttft_gateway.apis.base as base
import gateway.config.addresses as addresses
import ttft_gateway.hedging.contract as contract
from ttft_gateway.hedging.measure import MeasureShares

def other(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 7.0 if value == float("inf") else value / 2

if sys.argv[1:]:
    base.CONNECT_S, base.MAX_TOKENS_DEFAULT, contract.ATTEMPTS_MAX = 1.5, 16_000, 3
    addresses.LISTEN_DEFAULT, addresses.ADMIN_LISTEN_DEFAULT = "127.0.0.2:1", "127.0.0.2:2"
import ttft_gateway.hedging.parameters as parameters
if sys.argv[1:]:
    numbers = {name: value for name, value in asdict(parameters.DEFAULTS).items() if isinstance(value, int | float)}
    changed = {name: other(value) for name, value in numbers.items()}
    parameters.DEFAULTS = replace(parameters.DEFAULTS, **changed, measure=MeasureShares(0.01, 0.02))

from gateway.cli import parser
from ttft_gateway.client.config import HedgeConfig
from gateway.config import settings
from providers.protocols import ProtocolOptions
from providers.transport.origin import Origin
from streaming_bench.replay.hedged import settings_of
from streaming_bench.simulation.comparison import ComparisonPlan

found = {}
for section in (settings.HedgeSettings, settings.MeasureSettings):
    found |= {f"{section.__name__}.{name}": field.get_default() for name, field in section.model_fields.items()}
found |= {f"HedgeConfig.{field.name}": field.default for field in fields(HedgeConfig) if field.default is not NODEFAULT}
replayed = asdict(settings_of(budget=0.5, delay_min_s=0.5))
replayed = {name: value for name, value in replayed.items() if isinstance(value, int | float) and value != 0.5}
found |= {f"replay.{name}": value for name, value in replayed.items()}
found |= {
    "ComparisonPlan.max_hedges": ComparisonPlan((), ()).max_hedges,
    "attempts_max": settings.KeySettings.model_fields["attempts_max"].get_default(),
    "connect_s": settings.TimeoutSettings().connect_s,
    "Origin.connect_s": Origin("h", 1).connect_s,
    "max_tokens_default": settings.ReplicaOptions.model_fields["max_tokens_default"].get_default(),
    "ProtocolOptions.max_tokens": ProtocolOptions().max_tokens,
    "listen": settings.Settings.model_fields["listen"].get_default(),
    "admin_listen": settings.Settings.model_fields["admin_listen"].get_default(),
    "parser": [parser.LISTEN_DEFAULT, parser.ADMIN_LISTEN_DEFAULT],
}
print(json.dumps({name: repr(value) for name, value in found.items() if value is not None}))
"""
OWN = {  # defaults of one place only, and names of enumerations, which the second test compares
    *(f"HedgeConfig.{name}" for name in ("allow_billed_hedges", "key", "min_delay", "policy")),
    *(f"HedgeSettings.{name}" for name in ("budget_unit", "guard", "policy", "prefer", "routing")),
    "MeasureSettings.slo_s",
}


def _defaults(*arguments: str) -> dict[str, str]:
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_every_default_follows_its_one_place() -> None:
    """A number that is changed in its one place is changed everywhere, so no second copy of it exists."""
    before, after = _defaults(), _defaults("changed")
    copies = {name for name, value in before.items() if after[name] == value} - OWN
    assert copies == set(), (
        "take these from ttft_gateway/hedging/parameters.py, or add them to OWN if no other place has them"
    )
    assert {name for name in OWN if before[name] != after[name]} == set()


def test_settings_without_a_file_are_the_defaults() -> None:
    """Settings that are not set, names of enumerations included, are converted into `DEFAULTS`."""
    fields = ModelSettings.model_fields
    crossing, first_token = fields["cross_boundary"].get_default(), fields["first_token"].get_default()
    assert hedge_parameters(HedgeSettings(), Crossing(crossing), first_token) == DEFAULTS


def test_each_setting_of_hedging_is_a_parameter() -> None:
    """Each setting has a parameter of its name, which gets its value; `delay` is the parameter of one policy."""
    assert set(HedgeSettings.model_fields) - set(HedgeParameters.__struct_fields__) == {"delay_s"}
    written = {"policy": "static", "delay": "500ms", "gain_min": 1, "max_hedges": 2, "measure": {"losers": "25%"}}
    settings = HedgeSettings.model_validate(written)
    changed = replace(DEFAULTS, policy=Policy.STATIC, static_delay_s=0.5, gain_min=1.0, gain_min_engine=1.0)
    changed = replace(changed, max_hedges=2, measure=MeasureShares(losers=0.25))
    assert hedge_parameters(settings, Crossing.NEVER) == changed


@pytest.mark.parametrize("page", ["configuration.md", "hedging.md"])
def test_pages_state_the_gain(page: str) -> None:
    """Pages and the schema that state the two defaults of `gain_min` state the numbers in force."""
    numbers = [f"{DEFAULTS.gain_min:g}", f"{DEFAULTS.gain_min_engine:g}"]
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert re.findall(r"([\d.]+) for providers[;,] ([\d.]+) for your own\s+engines", text) == [tuple(numbers)]
    schema = (ROOT / "docs/config.schema.json").read_text(encoding="utf-8")
    assert re.findall(r"unset: ([\d.]+), own engines ([\d.]+)\.", schema) == [tuple(numbers)]
