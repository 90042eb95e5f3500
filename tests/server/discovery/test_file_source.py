"""A list of replicas in a file: when it is read again, and what is not believed."""

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gateway.config.discovered import PoolPlace
from gateway.config.discovered import sources as listed_sources
from gateway.config.errors import ConfigError
from gateway.config.replica_list import read_replicas
from gateway.config.settings import Replicas, Settings
from gateway.server import daemon_thread
from gateway.server.daemon_thread import SlowCalls
from gateway.server.discovery import sources
from gateway.server.discovery.failure import SourceFailed
from gateway.server.discovery.sources import Source, source_of
from running import run_real

PLACE = PoolPlace("m", 0)
A, B = (f"- {{name: {name}, kind: vllm, base_url: http://{name}:1/v1}}\n" for name in "ab")


def settings(file: Path, **more: object) -> Settings:
    """A model with a replica `x`, and the file."""
    fixed = [{"name": "x", "kind": "vllm", "base_url": "http://x:1/v1"}]
    return Settings.model_validate(
        {"models": [{"name": "m", "replicas": fixed, "discover": {"file": str(file), **more}}]}
    )


def source_in(file: Path) -> Source:
    """The source of that model."""
    made = settings(file)
    return source_of(listed_sources(made)[PLACE], made, PLACE, {})


def answers(file: Path, *steps: Callable[[], object]) -> list[str]:
    """Ask after each step; return the names of the replicas, or the fault."""

    async def main() -> list[str]:
        source = source_in(file)
        got = []
        for step in steps:
            step()
            try:
                got.append("".join(row.name for row in await source.ask()))
            except SourceFailed as error:
                got.append(str(error).replace(f"{file.parent}/", ""))
        return got

    return run_real(main())


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_SETTLED_S", 0.01)


def test_it_is_read_when_it_changes(tmp_path: Path) -> None:
    """A file that is written, replaced, damaged, emptied, removed and repaired; a fault has its position."""
    file, other = tmp_path / "replicas.yaml", tmp_path / "new.yaml"
    damaged = A + "- {name: b, kind: vllm, base_ur"
    steps = (
        lambda: None,
        lambda: file.write_text(A),
        lambda: None,
        lambda: (other.write_text(A + B), other.replace(file)),
        lambda: file.write_text(damaged),
        lambda: file.write_text(""),
        lambda: file.write_text("[]"),
        lambda: file.write_text("a: 1"),
        lambda: file.write_text(B),
        file.unlink,
        file.mkdir,
    )
    assert answers(file, *steps) == [
        "the file does not exist",
        "a",
        "a",
        "ab",
        (
            "replicas.yaml:2:32: the file is not valid YAML: a quote, [ or { before this position is not closed, "
            "or a comma is missing; add it"
        ),
        "replicas.yaml:1:1: found nothing, but a list of replicas is expected; write `- {name: a, base_url: ...}`",
        "",
        "replicas.yaml:1:1: found no list, but a list of replicas is expected; write `- {name: a, base_url: ...}`",
        "b",
        "the file does not exist",
        "the path is not a regular file",
    ]


def test_it_is_not_read_without_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unchanged file is parsed once, and rows that stay are the same objects."""
    file, reads = tmp_path / "replicas.yaml", list[Path]()

    def counted(path: Path, env: Mapping[str, str], base: Settings, place: PoolPlace) -> Replicas:
        reads.append(path)
        return read_replicas(path, env, base, place)

    monkeypatch.setattr(sources, "read_replicas", counted)
    file.write_text(A)

    async def main() -> None:
        source = source_in(file)
        [first] = await source.ask()
        await source.ask()
        assert len(reads) == 1
        file.write_text(B + A)
        assert (await source.ask())[1] is first

    run_real(main())


def test_a_file_that_is_being_written_is_read_to_its_end(tmp_path: Path) -> None:
    """A change between reading and looking again has the file read again."""
    file = tmp_path / "replicas.yaml"
    file.write_text(A)

    async def main() -> None:
        source = source_in(file)
        asyncio.get_running_loop().call_later(0.005, file.write_text, A + B)
        assert len(await source.ask()) == 2

    run_real(main())


def test_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source fails, starts no second thread until then, and works again afterwards."""
    monkeypatch.setattr(sources, "_ANSWER_S_MAX", 0.02)
    file, hanging = tmp_path / "replicas.yaml", list[asyncio.Future[object]]()
    file.write_text(A)

    def hang(*_: object) -> asyncio.Future[object]:
        hanging.append(asyncio.Future())
        return hanging[-1]

    async def main() -> None:
        source = source_in(file)
        with monkeypatch.context() as patch:
            patch.setattr(daemon_thread, "on_thread", hang)
            for _ in range(3):
                with pytest.raises(SourceFailed, match="the disk does not answer"):
                    await source.ask()
        assert len(hanging) == 1
        hanging[0].set_exception(OSError("late"))
        await asyncio.sleep(0)
        monkeypatch.setattr(sources, "_ANSWER_S_MAX", 10.0)
        assert len(await source_in(file).ask()) == 1
        monkeypatch.setattr(source, "_calls", SlowCalls("again", 10.0))
        assert len(await source.ask()) == 1

    run_real(main())


def test_rows_have_the_settings_of_their_source(tmp_path: Path) -> None:
    """Kind, key and others come from `discover` where the row has none; variables and key files work as elsewhere."""
    file = tmp_path / "replicas.yaml"
    (tmp_path / "a.key").write_text("key-of-the-row\n")
    file.write_text(
        "- {name: a, base_url: http://a:1/v1, api_key_file: a.key}\n"
        "- {name: b, base_url: http://${HOST}:1/v1, kind: sglang, weight: 5}\n"
    )
    with_shared = settings(file, kind="vllm", api_key="shared-key", weight=2, quota="q")
    a, b = read_replicas(file, {"HOST": "b"}, with_shared, PLACE)
    assert (a.kind, a.weight, a.quota, b.kind, b.weight, b.quota) == ("vllm", 2, "q", "sglang", 5, "q")
    keys = [row.api_key.get_secret_value() for row in (a, b) if row.api_key is not None]
    assert keys == ["key-of-the-row", "shared-key"]
    assert b.base_url == "http://b:1/v1"


@pytest.mark.parametrize(
    ("text", "more", "problem"),
    [
        ("- {name: x, kind: vllm, base_url: http://a:1/v1}", {}, '1:4: [0].name: found "x", but models[0].replicas[0]'),
        (A + A, {}, '2:4: [1].name: found "a", but [0] already has this name'),
        ("- {name: a, base_url: http://a:1/v1}", {}, "1:3: [0].kind: this setting is missing; write `kind: vllm`"),
        ("- {name: a, kind: vllm, base_url: h}", {}, '1:25: [0].base_url: found "h", but a base_url must start with'),
        ("- {name: a, kind: vllm, base_url: http://a:1/v1, boundary: eu}", {}, "1:1: models[0].replicas[0]: [0] has a"),
        ("- a\n", {}, "1:3: [0]: found text (not shown), but a mapping (`name: value`) is expected"),
        ("- {name: a, kind: vllm, base_url: http://a:1/v1, api_key: $(cat)}", {}, "1:50: [0].api_key: found text (not"),
    ],
)
def test_a_mistake_has_its_position(tmp_path: Path, text: str, more: dict[str, object], problem: str) -> None:
    """Rows are checked as if they were in the configuration file, with their positions in the list."""
    file = tmp_path / "replicas.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_replicas(file, os.environ, settings(file, **more), PLACE)
    assert problem in str(caught.value)


def test_a_long_list_is_rejected(tmp_path: Path) -> None:
    """A thousand replicas are the maximum."""
    file = tmp_path / "replicas.yaml"
    file.write_text("".join(f"- {{name: a{number}, base_url: http://a:1/v1}}\n" for number in range(1001)))
    with pytest.raises(ConfigError, match="found 1001 replicas; write at most 1000"):
        read_replicas(file, {}, settings(file), PLACE)
