"""The configuration file as a whole: what is loaded, and what each typical mistake is told, word for word."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.errors import ConfigError
from gateway.config.loader import from_replicas, load, masked
from gateway.config.settings import Settings, sections
from providers.catalog import CATALOG

ENV = {"KEY": "k-1", "OTHER_KEY": "k-2", "EMPTY": "", "PLAIN": "10.0.0.1:8000/v1", "BARE": "15"}

REPLICA = "{name: a, kind: vllm, base_url: http://h:1/v1}"
MODELS = f"models: [{{name: m, replicas: [{REPLICA}]}}]\n"


def replica(**changes: str) -> str:
    """A file with one replica, with some of its settings changed or added."""
    row = {"name": "a", "kind": "vllm", "base_url": "http://h:1/v1", **changes}
    return (
        "models:\n- name: m\n  replicas:\n  - " + "\n    ".join(f"{key}: {value}" for key, value in row.items()) + "\n"
    )


def loaded(folder: Path, text: str) -> Settings:
    """What a file with this text gives."""
    file = folder / "gateway.yaml"
    file.write_text(text)
    return load(file, ENV)


def told(folder: Path, text: str) -> list[str]:
    """What a file with this text is told, without the folder."""
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return str(caught.value).replace(f"{folder}/", "").split("\n")


MISTAKES = {
    name: (text, message)
    for name, text, message in re.findall(
        r"^== (.*)\n((?:.*\n)*?)=> (.*)$", (Path(__file__).parent / "config_mistakes.txt").read_text(), re.MULTILINE
    )
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with key files; each test writes its own gateway.yaml there."""
    path = tmp_path_factory.mktemp("config")
    (path / "good.key").write_text("k-file\n")
    (path / "empty.key").write_text("\n")
    (path / "two.key").write_text("first\nsecond\n")
    (path / "second.key").write_text("k-second")
    return path


def test_every_mistake_of_the_list_is_read() -> None:
    """No entry of the list is skipped for its form."""
    assert len(MISTAKES) == (Path(__file__).parent / "config_mistakes.txt").read_text().count("\n== ")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_where_and_what_to_write_instead(mistake: str, folder: Path) -> None:
    """A typical mistake gives exactly one message, and it names the place, what was found, and what to write."""
    text, message = MISTAKES[mistake]
    assert told(folder, text) == [message.replace("{kinds}", ", ".join(sorted(CATALOG)))]


def test_all_mistakes_are_told_at_once(folder: Path) -> None:
    """Mistakes of every kind (variables, types, rules between settings) are told together, in the order of the file."""
    text = (
        "listen: 0.0.0.0:8080\n"
        "drain_timeout: 30\n"
        "models:\n"
        "- name: m\n"
        "  replicas:\n"
        "  - {name: a, kind: vllm, base_url: http://h:1/v1, api_key: ${NONE}}\n"
        "  - {name: a, kind: vlm, base_url: h:1}\n"
    )
    assert [message.split(": ")[:2] for message in told(folder, text)] == [
        ["gateway.yaml:1:1", "listen"],
        ["gateway.yaml:2:1", "drain_timeout"],
        ["gateway.yaml:6:52", "models[0].replicas[0].api_key"],
        ["gateway.yaml:7:6", "models[0].replicas[1].name"],
        ["gateway.yaml:7:15", "models[0].replicas[1].kind"],
        ["gateway.yaml:7:26", "models[0].replicas[1].base_url"],
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"\xff\xfe", "this is not UTF-8 text"),
        (b"#" * 1_000_001, "it is larger than 1,000,000 bytes; is it the right file?"),
    ],
    ids=["missing", "not UTF-8", "too large"],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    """A file that is missing, too large or no text is a ConfigError that names it, and no traceback."""
    file = tmp_path / "gateway.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert str(caught.value) == f"{file}: {message}"


def test_a_directory_is_named(tmp_path: Path) -> None:
    """A directory in place of the file is a ConfigError that says so."""
    with pytest.raises(ConfigError, match="this is a directory; name the file in it"):
        load(tmp_path, {})


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "'[::]:1'", "gateway:1", "127.0.0.1:1", "'[::1]:1'", "localhost:1"])
@pytest.mark.parametrize("anonymous", ["true", "false", "no", "0", "off", "'true'", "${NO:-false}", "yes", "1", "''"])
@pytest.mark.parametrize("keys", ["[]", "{}", "[{name: a, key: x}]"])
def test_nobody_is_served_without_a_key_by_accident(listen: str, anonymous: str, keys: str, folder: Path) -> None:
    """However it is written: what loads has keys, or says that it serves anybody, or serves this machine only."""
    try:
        got = loaded(folder, MODELS + f"listen: {listen}\nallow_anonymous: {anonymous}\nkeys: {keys}\n")
    except ConfigError:
        return
    assert got.keys or got.allow_anonymous or got.listen.loopback


def test_secrets_come_from_variables_and_files(folder: Path) -> None:
    """A secret from the environment or a file is the key; the closing line break of the file is not part of it."""
    text = "keys: [{name: a, key: ${KEY}}, {name: b, key_file: good.key}]\n" + replica(api_key_file="second.key")
    got = loaded(folder, text)
    assert [key.key.get_secret_value() for key in got.keys] == ["k-1", "k-file"]
    api_key = got.models[0].replicas[0].api_key
    assert api_key is not None
    assert api_key.get_secret_value() == "k-second"


def test_a_key_file_is_read_again_by_the_next_load(tmp_path: Path) -> None:
    """A changed key file is seen by a reload."""
    for secret in ("old", "new"):
        (tmp_path / "a.key").write_text(secret)
        assert loaded(tmp_path, MODELS + "keys: [{name: a, key_file: a.key}]").keys[0].key.get_secret_value() == secret


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'"), min_size=6, max_size=12)


@settings(max_examples=20)
@given(SECRETS.map(lambda text: "S3" + text))
def test_no_message_shows_a_secret(tmp_path_factory: pytest.TempPathFactory, secret: str) -> None:
    """Wherever a secret stands, in a right place or a wrong one, no message, repr or printed setting contains it."""
    folder = tmp_path_factory.getbasetemp()
    quoted = f"'{secret}'" if "${" not in secret else "'S3replaced'"
    right = f"keys: [{{name: a, key: {quoted}}}]\n" + replica(api_key=quoted, headers=f"{{x-token: {quoted}}}")
    good = loaded(folder, right)
    shown = [masked(good), repr(good), str(good)]
    for wrong in (
        f"keys: [{quoted}]\n" + MODELS,
        f"keys: {quoted}\n" + MODELS,
        f"keys: [{{name: a, key: {quoted}}}, {{name: b, key: {quoted}}}]\n" + MODELS,
        f"keys: [{{name: a, kei: {quoted}}}]\n" + MODELS,
        f"keys: [{{name: a, key: [{quoted}]}}]\n" + MODELS,
        f"keys: [{{name: a, key_file: {quoted}}}]\n" + MODELS,
        replica(api_key=f"'{secret} x'"),
        replica(base_url=f"'http://u:{secret}@h/v1'"),
        replica(headers=f"{{host: {quoted}}}"),
        replica(base_url="${SECRET}"),
    ):
        (folder / "gateway.yaml").write_text(wrong)
        with pytest.raises(ConfigError) as caught:
            load(folder / "gateway.yaml", {"SECRET": secret})
        assert caught.value.__cause__ is None
        shown.append(str(caught.value))
    assert not [text for text in shown if secret in text or "S3replaced" in text]


def test_masked_settings_are_a_configuration_again(folder: Path) -> None:
    """What print-config shows, loaded again, is the same but for the secrets, and names what is in force per model."""
    text = (
        "admin_listen: off\n"
        "keys: [{name: a, key: x}]\n"
        "hedge: {policy: static, delay: 20ms, budget: 12.5%}\n"
        "timeouts: {total: 1.5s}\n"
        "quotas: [{name: q, tokens_per_min: 1000}]\n"
        "models:\n"
        f"- {{name: m, replicas: [{REPLICA}], hedge: {{policy: off}}}}\n"
        "- {name: n, replicas: [{name: b, kind: openai, base_url: http://h/v1, quota: q}], first_token: answer}\n"
    )
    first = loaded(folder, text)
    printed = masked(first)
    again = loaded(folder, printed)
    assert masked(again) == printed
    assert again.admin_listen is None
    assert [again.hedge_of(model) for model in again.models][1] == first.hedge_of(first.models[1])
    assert yaml.safe_load(printed)["models"][0]["hedge"]["policy"] == "off"
    assert again.model_copy(update={"keys": (), "models": ()}) == first.model_copy(update={"keys": (), "models": ()})


def test_a_printed_key_file_stays_a_key_file(folder: Path) -> None:
    """Where the secret is in a file, the file is shown and no secret."""
    printed = yaml.safe_load(masked(loaded(folder, MODELS + "keys: [{name: a, key_file: good.key}]")))
    assert printed["keys"] == [{"name": "a", "key_file": "good.key"}]


def test_the_command_line_makes_settings() -> None:
    """A model and URLs give replicas named by host and port, with /v1 where there was no path."""
    got = from_replicas("llama", ["http://h:1", "http://h:2/", "https://x/openai/v1", "http://h:1/v1"], kind="vllm")
    assert [(row.name, row.kind, row.base_url) for row in got.models[0].replicas] == [
        ("h:1#1", "vllm", "http://h:1/v1"),
        ("h:2", "vllm", "http://h:2/v1"),
        ("x/openai", "vllm", "https://x/openai/v1"),
        ("h:1#2", "vllm", "http://h:1/v1"),
    ]


def test_the_command_line_can_set_other_things() -> None:
    """Other settings are taken as they would stand in a file, and are not changed."""
    others: dict[str, object] = {"listen": "127.0.0.1:0", "hedge": {"policy": "off"}}
    got = from_replicas("llama", ["http://h:1"], others=others)
    assert (got.listen.port, got.hedge.policy) == (0, "off")
    assert others == {"listen": "127.0.0.1:0", "hedge": {"policy": "off"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"urls": ["http://h:1", "h:1"]},
            '--replica 2: found "h:1", but a base_url begins with http:// or https://; write http://h:1/v1',
        ),
        (
            {"urls": []},
            "--replica: at least one is needed; write `--replica http://10.0.0.1:8000/v1`",
        ),
        (
            {"kind": ""},
            f'--kind: found "", but there is no such kind; write one of {", ".join(sorted(CATALOG))}',
        ),
        (
            {"model": 1},
            "--model: found the number 1, but text is expected here; write it in quotes",
        ),
        (
            {"others": {"listen": "here"}},
            (
                '--listen: found "here", but an address is host:port; '
                "write for example 127.0.0.1:8080, 0.0.0.0:8080 or '[::1]:8080'"
            ),
        ),
        (
            {"others": {"listen": "0.0.0.0:81"}},
            (
                "--listen: found 0.0.0.0:81, but without keys only this machine may call; write `keys` in a "
                "configuration file, or write `--listen 127.0.0.1:81`, or, to serve anybody who can reach it, "
                "`--allow-anonymous`"
            ),
        ),
        (
            {"others": {"listen": "127.0.0.1:81", "admin_listen": "127.0.0.1:81"}},
            (
                "--admin-listen: --listen and --admin-listen are both on port 81; "
                "give each its own, or write `--admin-listen off`"
            ),
        ),
        (
            {"others": {"drain_timeout": 5}},
            "settings: drain_timeout: found the number 5, but a duration needs a unit (ms, s, m or h); write 5ms or 5s",
        ),
    ],
    ids=["URL", "none", "kind", "model", "address", "no keys", "one port", "other"],
)
def test_a_mistake_on_the_command_line_names_the_option(options: dict[str, Any], message: str) -> None:
    """A mistake on the command line is told with its option, once."""
    with pytest.raises(ConfigError) as caught:
        from_replicas(**{"model": "m", "urls": ["http://h:1", "http://h:2"], "kind": "vllm", **options})
    assert str(caught.value) == message


KEYS = [str(field.alias) for section in sections().values() for field in section.model_fields.values()]
WORDS = st.sampled_from([*KEYS, "off", "static", "true", "1", "0.5", "m", "http://h/v1", "''", "10s", "${X}"])
TREES = st.recursive(
    WORDS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(WORDS, inner, max_size=3).map(
            lambda rows: "{" + ", ".join(f"{key}: {value}" for key, value in rows.items()) + "}"
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(tree=TREES)
def test_data_of_any_shape_is_a_config_error(tmp_path_factory: pytest.TempPathFactory, tree: str) -> None:
    """Data of whatever shape ends in problems that have a place and a text (none of it is a good file)."""
    file = tmp_path_factory.getbasetemp() / "gateway.yaml"
    file.write_text(tree)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    assert caught.value.problems
    assert all(re.search(r":\d+:\d+: .{10,}", str(problem)) for problem in caught.value.problems)
