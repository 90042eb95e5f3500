"""The settings, and the agreement of documentation, schema and example with the code."""

import enum
import json
import re
from typing import get_args

import pytest
from pydantic import ValidationError

from checkout import ROOT
from gateway.config import settings as config
from gateway.config.loader import load
from gateway.config.settings import HedgeSettings, ReplicaOptions, Settings, sections
from gateway.race.context import RecoveryMode
from gateway.share.fleet import WhenAway
from ttft_gateway.apis.base import Api
from ttft_gateway.apis.catalog import Auth
from ttft_gateway.hedging.budget import BudgetUnit
from ttft_gateway.hedging.plan import Policy
from ttft_gateway.routing.strategies import Crossing, Routing

LISTS = {"keys", "models", "replicas", "fallbacks", "quotas", "tiers"}
MODEL = {"name": "m", "replicas": [{"name": "a", "kind": "vllm", "base_url": "http://h:1/v1"}]}


@pytest.mark.parametrize(
    ("names", "members"),
    [
        (config.Routing, Routing),
        (config.Policy, Policy),
        (config.BudgetUnitName, BudgetUnit),
        (config.Recovery, RecoveryMode),
        (config.CrossBoundary, Crossing),
        (config.WhenAwayName, WhenAway),
        (config.ApiName, Api),
    ],
)
def test_a_setting_has_the_names_of_its_enum(names: object, members: type[enum.Enum]) -> None:
    """A setting accepts exactly the values of the enum of the core that it is converted to."""
    assert set(get_args(names)) == {member.value for member in members}


def test_every_kind_of_authentication_has_a_name() -> None:
    """The setting `auth` can name each header that may carry a key."""
    assert set(get_args(config.AuthName)) == set(config.AUTHS)
    assert set(config.AUTHS.values()) == set(Auth)


def documented_settings() -> dict[str, object]:
    """Every setting by the path of its heading, with its default as in a file; None for no default."""
    found: dict[str, object] = {}
    # A mapping that is allowed in several sections is described once, in the highest one; what `discover` shares with
    # replicas, there; the timeouts of a model or fallback with all timeouts.
    places = {place: section for place, section in sections().items() if "discover" not in place[:-1]}
    highest = {section: place for place, section in sorted(places.items(), key=lambda item: -len(item[0]))}
    for section, place in highest.items():
        if any(section in other.__mro__[1:] for other in highest):
            continue
        prefix = "".join(f"{name}[]." if name in LISTS else f"{name}." for name in place)
        defaults = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        for name, field in section.model_fields.items():
            if place[-1:] == ("discover",) and name in ReplicaOptions.model_fields:
                continue
            default = defaults.get(str(field.alias))
            found[f"{prefix}{field.alias}"] = default if isinstance(default, str | int | float) else None
    return found


def section_of(path: str) -> str:
    """Return the text of docs/configuration.md below a setting's heading."""
    text = (ROOT / "docs/configuration.md").read_text()
    return re.split(r"^##", text.split(f"# `{path}`\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_own_hedge_settings_override_the_shared_ones_key_by_key() -> None:
    """A model's own hedging settings win, even if equal to the default; the shared ones apply to all others."""
    settings = Settings.model_validate(
        {
            "hedge": {"budget": "20%", "max_hedges": 2, "quantile": 0.5},
            "models": [MODEL | {"hedge": {"budget": "10%"}}, MODEL | {"name": "n"}],
        }
    )
    own, shared = (settings.hedge_of(model) for model in settings.models)
    assert (own.budget, own.max_hedges, own.quantile) == (0.10, 2, 0.5)
    assert shared == settings.hedge


def test_own_settings_of_a_section_keep_the_shared_ones_beside_them() -> None:
    """A model that sets one value of `hedge.measure` has the shared values for the others."""
    settings = Settings.model_validate(
        {"hedge": {"measure": {"slo": "1s"}}, "models": [MODEL | {"hedge": {"measure": {"losers": "2%"}}}]}
    )
    measure = settings.hedge_of(settings.models[0]).measure
    assert (measure.slo_s, measure.losers) == (1.0, 0.02)


def test_timeouts_of_a_fallback_override_those_of_its_model() -> None:
    """A fallback's timeouts win over its model's, and these over the shared ones, key by key."""
    fallbacks = [{"replicas": MODEL["replicas"]}, {"replicas": MODEL["replicas"], "timeouts": {"stall": "9s"}}]
    model = MODEL | {"timeouts": {"stall": "4s", "total": "1m"}, "fallbacks": fallbacks}
    shared = {"stall": "30s", "connect": "1s", "client_idle": "5s"}
    settings = Settings.model_validate({"timeouts": shared, "models": [model, MODEL | {"name": "n"}]})
    own, other = settings.models
    shown = [(each.stall_s, each.total_s, each.connect_s) for each in settings.timeouts_by_pool(own)]
    assert shown == [(4.0, 60.0, 1.0), (4.0, 60.0, 1.0), (9.0, 60.0, 1.0)]
    assert settings.timeouts_of(other) == settings.timeouts


def test_units_are_those_of_the_field_names() -> None:
    """Values with units become seconds, bytes or fractions."""
    settings = Settings.model_validate(
        {
            "models": [MODEL],
            "drain_timeout": "1m",
            "limits": {"event_max": "1KiB"},
            "timeouts": {"stall": "250ms"},
            "hedge": {"budget": "2.5%"},
        }
    )
    assert settings.drain_timeout_s == 60
    assert settings.limits.event_max_bytes == 1024
    assert settings.timeouts.stall_s == 0.25
    assert settings.hedge.budget == 0.025


def test_settings_cannot_be_changed() -> None:
    """Settings are frozen at every level."""
    with pytest.raises(ValidationError):
        HedgeSettings().budget = 0.5


def test_a_refused_secret_is_not_in_the_exception() -> None:
    """Not even pydantic's own exception quotes an input."""
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"keys": [{"name": "a", "key": "s3cret x"}], "models": "s3cret y"})
    assert "s3cret" not in str(caught.value)


def test_every_setting_has_a_heading_and_no_heading_is_left_over() -> None:
    """docs/configuration.md describes exactly the settings that there are."""
    headings = re.findall(r"^##+ `(.+)`$", (ROOT / "docs/configuration.md").read_text(), re.MULTILINE)
    assert sorted(set(headings) - {"models[].replicas[]"}) == sorted(documented_settings())


def test_every_setting_is_in_one_of_three_tiers() -> None:
    """docs/configuration.md begins with at most 25 everyday settings; every setting is below the heading of a tier."""
    page = (ROOT / "docs/configuration.md").read_text()
    before, *tiers = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    assert tiers[::2] == ["Everyday settings", "Settings for operations", "Expert settings"]
    everyday = re.findall(r"^### `", tiers[1], re.MULTILINE)
    assert (before.count("# `"), len(everyday) <= 25) == (0, True)


@pytest.mark.parametrize("path", [path for path, default in documented_settings().items() if default is not None])
def test_documented_defaults_are_those_of_the_code(path: str) -> None:
    """The default below a setting's heading is the one in force."""
    default = documented_settings()[path]
    written = str(default).lower() if isinstance(default, bool) else str(default)
    line = f"Default: `{written}`."
    assert line in section_of(path), f"docs/configuration.md, {path}: write {line}"


def test_links_in_the_documentation_lead_somewhere() -> None:
    """Each link within docs/configuration.md has its heading, each link out of it its file."""
    text = (ROOT / "docs/configuration.md").read_text()
    anchors = {
        re.sub(r"[^a-z0-9_ -]", "", line.lower()).replace(" ", "-")
        for line in re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (
            target[1:] in anchors if target.startswith("#") else (ROOT / "docs" / target.partition("#")[0]).exists()
        ), target


def test_the_schema_describes_every_setting() -> None:
    """An editor can show a sentence for each setting, and shows defaults with their units."""
    schema = json.loads((ROOT / "docs/config.schema.json").read_text())
    properties = [schema["properties"], *(section["properties"] for section in schema["$defs"].values())]
    assert not [key for section in properties for key, value in section.items() if not value.get("description")]
    assert schema["properties"]["drain_timeout"]["default"] == "30s"


def test_the_example_is_good_and_shows_no_default() -> None:
    """examples/gateway.yaml loads, and everything it sets differs from the default."""
    names = ("TEAM_A_KEY", "BATCH_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    settings = load(ROOT / "examples/gateway.yaml", {name: name.lower() for name in names})
    assert settings.model_dump(exclude_unset=True) == settings.model_dump(exclude_unset=True, exclude_defaults=True)
