"""Reading a configuration for a reload beside a running loop: no step is long."""

import gc
import weakref

import pytest

from gateway.config.document import Document, Position, read_yaml
from gateway.config.settings import Settings
from gateway.errors import ReloadFailed
from gateway.process_events import ConfigReloaded
from gateway.server import reloads
from gateway_fixture import serving
from running import run_real

TEXT = "models:\n  - name: m\n    replicas:\n      - {name: a, base_url: http://10.0.0.1/v1}\n"


def _settings(names: str) -> Settings:
    rows = [{"name": "a", "kind": "vllm", "base_url": "http://10.0.0.1/v1"}]
    return Settings.model_validate({"models": [{"name": name, "replicas": rows} for name in names]})


def test_no_garbage_is_collected_while_a_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection would hold the loop; it is on again afterwards, also after an error."""
    collects = []

    def reread() -> Settings:
        collects.append(gc.isenabled())
        return _settings("ab")

    def fails() -> Settings:
        raise ValueError("unreadable")

    assert len(reloads._read(reread, _settings("a")).models) == 2
    assert (collects, gc.isenabled()) == ([False], True)
    with pytest.raises(ValueError, match="unreadable"):
        reloads._read(fails, _settings("a"))
    assert gc.isenabled()
    monkeypatch.setattr(gc, "isenabled", lambda: False)
    monkeypatch.setattr(gc, "enable", lambda: collects.append(True))
    reloads._read(reread, _settings("a"))
    assert collects == [False, False]


def test_what_was_read_in_vain_is_free_when_reading_ends() -> None:
    """Of a model that is the same, the old object is kept and the new one is gone."""
    old, read = _settings("ab"), _settings("abc")
    new = [weakref.ref(model) for model in read.models]
    given = [read]
    del read
    kept = reloads._read(given.pop, old)
    assert kept.models[:2] == old.models
    assert [each() is None for each in new] == [True, True, False]


def test_without_a_file_no_configuration_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    """A gateway that was started with options logs a reload and refuses it; it is no trouble of the gateway."""

    async def main() -> list[ConfigReloaded]:
        async with serving({"a": {}}) as site:
            assert site.gateway is not None
            site.gateway.reloads._reread = None
            with pytest.raises(ReloadFailed, match="there is no configuration file"):
                await site.gateway.reloads.reload()
            return [event for event in site.events if isinstance(event, ConfigReloaded)]

    assert run_real(main()) == []
    assert "there is no configuration file" in caplog.text


def test_a_document_is_freed_by_its_parts() -> None:
    """Positions and lists are empty after the last use, and a document that is no mapping is no error."""
    document = read_yaml(TEXT, {})
    assert document.positions[("models", 0, "name")] == Position(2, 5)
    document.free()
    assert (document.data, document.positions) == ({"models": []}, {})
    Document("text").free()
