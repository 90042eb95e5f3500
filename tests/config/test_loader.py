"""The configuration file as a whole: values that are loaded, and the place of each typical mistake."""

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import ErrorDetails

from gateway.config import loader
from gateway.config.document import Loc
from gateway.config.errors import ConfigError, ConfigProblem, finding
from gateway.config.loader import from_replicas, load, masked
from gateway.config.settings import Settings, sections
from sentences import Sentences

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
    """Return the settings of a file with this text."""
    file = folder / "gateway.yaml"
    file.write_text(text)
    return load(file, ENV)


def problems(folder: Path, text: str) -> tuple[ConfigProblem, ...]:
    """The problems of a file with this text."""
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return caught.value.problems


_LIST = (Path(__file__).parent / "config_mistakes.txt").read_text(encoding="utf-8")
MISTAKES = {
    name: (text, place) for name, text, place in re.findall(r"^== (.*)\n((?:.*\n)*?)=> (.*)$", _LIST, re.MULTILINE)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with key files; each test writes its own gateway.yaml there."""
    path = tmp_path_factory.mktemp("config")
    (path / "good.key").write_text("k-file\n")
    (path / "empty.key").write_text("\n")
    (path / "two.key").write_text("first\nsecond\n")
    (path / "same.key").write_text("first\nfirst\n")
    (path / "three.key").write_text("first\nsecond\nthird\n")
    (path / "second.key").write_text("k-second")
    return path


def test_every_mistake_of_the_list_is_read() -> None:
    """No entry of the list is skipped for its form."""
    assert len(MISTAKES) == _LIST.count("\n== ")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_has_one_problem_with_its_place(mistake: str, folder: Path) -> None:
    """A typical mistake gives exactly one problem, with its line, column and setting."""
    text, place = MISTAKES[mistake]
    found = [f"{problem.line}:{problem.column} {problem.path}".strip() for problem in problems(folder, text)]
    assert found == [place]


def test_all_mistakes_are_reported_at_once(folder: Path) -> None:
    """Mistakes of every kind (variables, types, rules) are reported together, in the order of the file."""
    text = (
        "listen: 0.0.0.0:8080\n"
        "drain_timeout: 30\n"
        "models:\n"
        "- name: m\n"
        "  replicas:\n"
        "  - {name: a, kind: vllm, base_url: http://h:1/v1, api_key: ${NONE}}\n"
        "  - {name: a, kind: vlm, base_url: h:1}\n"
    )
    assert [(problem.line, problem.column, problem.path) for problem in problems(folder, text)] == [
        (1, 1, "listen"),
        (2, 1, "drain_timeout"),
        (6, 52, "models[0].replicas[0].api_key"),
        (7, 6, "models[0].replicas[1].name"),
        (7, 15, "models[0].replicas[1].kind"),
        (7, 26, "models[0].replicas[1].base_url"),
    ]


UNREADABLE = {"missing": None, "not UTF-8": b"\xff\xfe", "too large": b"#" * 20_000_001}


def _unreadable(content: bytes | None, file: Path) -> ConfigError:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(file, {})
    return caught.value


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_cannot_be_read_is_named(name: str, tmp_path: Path) -> None:
    """A file that is missing, too large or no text is one problem of that file."""
    file = tmp_path / "gateway.yaml"
    [problem] = _unreadable(UNREADABLE[name], file).problems
    assert (problem.source, problem.line, problem.path) == (str(file), None, "")


def test_a_directory_is_named(tmp_path: Path) -> None:
    """A directory in place of the file is one problem of that directory."""
    [problem] = _unreadable(None, tmp_path).problems
    assert (problem.source, problem.line, problem.path) == (str(tmp_path), None, "")


LISTEN = ["0.0.0.0:1", "'[::]:1'", "gateway:1", "127.0.0.1:1", "'[::1]:1'", "localhost:1"]
ANONYMOUS = ["true", "false", "no", "0", "off", "'true'", "${NO:-false}", "yes", "1", "''"]


@given(
    listen=st.sampled_from(LISTEN),
    anonymous=st.sampled_from(ANONYMOUS),
    keys=st.sampled_from(["[]", "{}", "[{name: a, key: x}]"]),
)
def test_callers_without_a_key_are_served_only_on_purpose(
    tmp_path_factory: pytest.TempPathFactory, listen: str, anonymous: str, keys: str
) -> None:
    """Settings that load have keys, or allow anonymous callers by name, or listen on loopback only."""
    text = MODELS + f"listen: {listen}\nallow_anonymous: {anonymous}\nkeys: {keys}\n"
    try:
        got = loaded(tmp_path_factory.getbasetemp(), text)
    except ConfigError:
        return
    assert got.keys or got.allow_anonymous or got.listen.loopback


@pytest.mark.parametrize(
    ("listen", "anonymous", "keys", "loads"),
    [
        ("0.0.0.0:1", "false", "[]", False),
        ("'[::]:1'", "false", "[]", False),
        ("gateway:1", "false", "[]", False),
        ("0.0.0.0:1", "${NO:-false}", "[]", False),
        ("0.0.0.0:1", "1", "[]", False),
        ("0.0.0.0:1", "''", "[]", False),
        ("0.0.0.0:1", "'true'", "[]", True),
        ("0.0.0.0:1", "true", "[]", True),
        ("0.0.0.0:1", "false", "[{name: a, key: x}]", True),
        ("127.0.0.1:1", "false", "[]", True),
        ("'[::1]:1'", "false", "[]", True),
        ("localhost:1", "false", "[]", True),
    ],
)
def test_an_address_without_keys(listen: str, anonymous: str, keys: str, folder: Path, *, loads: bool) -> None:
    """An address that others can reach needs keys, or `allow_anonymous: true` itself."""
    text = MODELS + f"listen: {listen}\nallow_anonymous: {anonymous}\nkeys: {keys}\n"
    with contextlib.nullcontext() if loads else pytest.raises(ConfigError):
        loaded(folder, text)


@pytest.mark.parametrize(
    ("listen", "base_url", "loads"),
    [
        ("127.0.0.1:8080", "http://localhost:8080/v1", False),
        ("127.0.0.1:8080", "http://0.0.0.0:8080/v1", False),
        ("127.0.0.1:8080", "http://127.0.0.2:8080/v1", True),  # another address of this machine
        ("127.0.0.1:8080", "http://localhost:8082/v1", True),
        ("0.0.0.0:8080", "http://127.0.0.2:8080/v1", False),
        ("0.0.0.0:8080", "http://10.0.0.5:8080/v1", True),  # perhaps another machine
        ("10.0.0.5:8080", "http://10.0.0.5:8080/v1", False),
        ("10.0.0.5:8080", "http://127.0.0.1:8080/v1", True),
        ("localhost:80", "http://127.0.0.1/v1", False),
        ("127.0.0.1:8082", "http://127.0.0.1:8081/v1", False),  # the admin address
        ("127.0.0.1:8080", "http+unix://%2Frun%2Fvllm.sock/v1", True),
        ("127.0.0.1:8080", 'http://localhost:8080/v1", connection: {proxy: "http://p:3128"}, model: "m', True),
    ],
)
def test_a_replica_is_never_the_gateway_itself(listen: str, base_url: str, folder: Path, *, loads: bool) -> None:
    """An address that certainly leads back to the gateway is rejected: one request would use all its sockets."""
    replica = f'{{name: a, kind: vllm, base_url: "{base_url}"}}'
    text = f"listen: {listen}\nallow_anonymous: true\nmodels: [{{name: m, replicas: [{replica}]}}]\n"
    if loads:
        loaded(folder, text)
    else:
        [problem] = problems(folder, text)
        assert (problem.path, problem.line) == ("models[0].replicas[0].base_url", 3)


def test_secrets_come_from_variables_and_files(folder: Path) -> None:
    """A secret from the environment or a file is the key; the closing line break of the file is not part of it."""
    text = "keys: [{name: a, key: ${KEY}}, {name: b, key_file: good.key}]\n" + replica(api_key_file="second.key")
    got = loaded(folder, text)
    assert [key.key.get_secret_value() for key in got.keys] == ["k-1", "k-file"]
    api_key = got.models[0].replicas[0].api_key
    assert api_key is not None
    assert api_key.get_secret_value() == "k-second"


@pytest.mark.parametrize("line", ["admin_key: ${KEY}", "admin_key_file: good.key"])
def test_the_admin_key_has_the_same_sources(folder: Path, line: str) -> None:
    """The key of the admin address comes from a variable or a file, and is masked."""
    settings = loaded(folder, f"{line}\n{MODELS}")
    assert settings.admin_key is not None
    secret = settings.admin_key.get_secret_value()
    assert secret == ("k-1" if "KEY" in line else "k-file")
    assert secret not in masked(settings) + repr(settings)
    assert ("admin_key: '****'" in masked(settings)) == ("KEY" in line)


@pytest.mark.parametrize("line", ["password: ${KEY}", "password_file: good.key"])
def test_the_password_of_the_server_is_masked(line: str, folder: Path) -> None:
    """The password comes from a variable or a file, and is masked."""
    settings = loaded(folder, f'{MODELS}share: {{url: "rediss://h:6379/1", user: u, {line}}}')
    assert settings.share is not None
    assert settings.share.password is not None
    secret = settings.share.password.get_secret_value()
    assert secret == ("k-1" if "KEY" in line else "k-file")
    assert secret not in masked(settings) + repr(settings)
    assert ("password: '****'" in masked(settings)) == ("KEY" in line)


def test_a_key_file_is_read_again_by_the_next_load(tmp_path: Path) -> None:
    """A changed key file is seen by a reload."""
    for secret in ("old", "new"):
        (tmp_path / "a.key").write_text(secret)
        assert loaded(tmp_path, MODELS + "keys: [{name: a, key_file: a.key}]").keys[0].key.get_secret_value() == secret


SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="'"), min_size=6, max_size=12)


@settings(max_examples=20)
@given(SECRETS.map(lambda text: "S3" + text))
def test_no_message_shows_a_secret(tmp_path_factory: pytest.TempPathFactory, secret: str) -> None:
    """No message, repr or printed setting contains a secret, even one in a wrong place."""
    folder = tmp_path_factory.getbasetemp()
    quoted = f"'{secret}'" if "${" not in secret else "'S3replaced'"
    right = f"keys: [{{name: a, key: {quoted}}}]\n" + replica(api_key=quoted, headers=f"{{x-token: {quoted}}}")
    good = loaded(folder, right)
    shown = [masked(good), repr(good), str(good)]
    for wrong in (
        f"keys: [{quoted}]\n" + MODELS,
        f"admin_key: [{quoted}]\n" + MODELS,
        f"admin_key: '{secret} x'\n" + MODELS,
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
    """The output of print-config loads as the same settings, except for secrets, with each model's hedging in force."""
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


def test_printed_timeouts_are_those_in_force(folder: Path) -> None:
    """print-config shows each model and fallback with its own timeouts over the shared ones."""
    fallback = REPLICA.replace("name: a", "name: f")
    text = (
        "timeouts: {total: 1m, stall: 30s}\n"
        f"models: [{{name: m, timeouts: {{stall: 4s}}, replicas: [{REPLICA}],"
        f" fallbacks: [{{timeouts: {{ttft_max: 9s}}, replicas: [{fallback}]}}]}}]\n"
    )
    printed = masked(loaded(folder, text))
    (model,) = yaml.safe_load(printed)["models"]
    own, later = model["timeouts"], model["fallbacks"][0]["timeouts"]
    assert [own[name] for name in ("total", "stall", "ttft_max", "connect")] == ["1m", "4s", "2m", "3s"]
    assert [later[name] for name in ("stall", "ttft_max")] == ["4s", "9s"]
    assert "client_idle" not in own
    assert "total" not in later
    assert masked(loaded(folder, printed)) == printed


def test_the_second_line_of_a_key_file_is_the_previous_secret(folder: Path) -> None:
    """A caller's key file may have the previous secret, too, which print-config does not show either."""
    got = loaded(folder, MODELS + "keys: [{name: a, key_file: two.key}, {name: b, key: k-b, previous_key: k-c}]")
    previous = [key.previous_key for key in got.keys]
    assert [key.key.get_secret_value() for key in got.keys] == ["first", "k-b"]
    assert [key and key.get_secret_value() for key in previous] == ["second", "k-c"]
    printed = masked(got)
    assert yaml.safe_load(printed)["keys"][1]["previous_key"] == "****"
    assert "previous_key" not in yaml.safe_load(printed)["keys"][0]


def test_a_printed_key_file_stays_a_key_file(folder: Path) -> None:
    """A secret from a file is printed as the name of the file."""
    printed = yaml.safe_load(masked(loaded(folder, MODELS + "keys: [{name: a, key_file: good.key}]")))
    assert [(key["key_file"], "key" in key) for key in printed["keys"]] == [("good.key", False)]


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
    """Other settings are given as in a file, and are not modified."""
    others: dict[str, object] = {"listen": "127.0.0.1:0", "hedge": {"policy": "off"}}
    got = from_replicas("llama", ["http://h:1"], others=others)
    assert (got.listen.port, got.hedge.policy) == (0, "off")
    assert others == {"listen": "127.0.0.1:0", "hedge": {"policy": "off"}}


OPTIONS: dict[str, tuple[dict[str, Any], str, str]] = {  # arguments -> source and path of the problem
    "URL": ({"urls": ["http://h:1", "h:1"]}, "--replica 2", ""),
    "none": ({"urls": []}, "--replica", ""),
    "kind": ({"kind": ""}, "--kind", ""),
    "model": ({"model": 1}, "--model", ""),
    "address": ({"others": {"listen": "here"}}, "--listen", ""),
    "no keys": ({"others": {"listen": "0.0.0.0:81"}}, "--listen", ""),
    "itself": ({"urls": ["http://h:1", "http://localhost:8080"]}, "--replica 2", ""),
    "one port": ({"others": {"listen": "127.0.0.1:81", "admin_listen": "127.0.0.1:81"}}, "--admin-listen", ""),
    "other": ({"others": {"drain_timeout": 5}}, "settings", "drain_timeout"),
}


def _option_problem(options: dict[str, Any]) -> ConfigProblem:
    with pytest.raises(ConfigError) as caught:
        from_replicas(**{"model": "m", "urls": ["http://h:1", "http://h:2"], "kind": "vllm", **options})
    [problem] = caught.value.problems
    return problem


@pytest.mark.parametrize("name", OPTIONS)
def test_a_mistake_on_the_command_line_names_the_option(name: str) -> None:
    """A mistake on the command line is one problem with its option."""
    options, source, path = OPTIONS[name]
    problem = _option_problem(options)
    assert (problem.source, problem.path) == (source, path)


def test_sentences(folder: Path, tmp_path: Path, sentences: Sentences) -> None:
    """The message of each mistake is the one in the snapshot."""
    files = {name: "\n".join(map(str, problems(folder, text))) for name, (text, _) in MISTAKES.items()}
    unreadable = {name: _unreadable(content, tmp_path / "gateway.yaml") for name, content in UNREADABLE.items()}
    unreadable["directory"] = _unreadable(None, tmp_path)
    rows = (
        {f"file: {name}": text for name, text in files.items()}
        | {f"unreadable: {name}": str(error) for name, error in unreadable.items()}
        | {f"option: {name}": str(_option_problem(options)) for name, (options, *_) in OPTIONS.items()}
    )
    cut = re.compile("|".join(re.escape(f"{path}{end}") for path in (folder, tmp_path) for end in ("/", "")))
    sentences.check("config", {name: cut.sub("", text) for name, text in rows.items()})


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


def test_a_pipe_as_a_key_file_is_a_mistake(folder: Path) -> None:
    """A key file that is a pipe, into which nothing may ever write, is reported instead of read."""
    os.mkfifo(folder / "pipe.key")
    with pytest.raises(ConfigError, match="the path is a pipe, a socket or a device; name a regular file"):
        loaded(folder, MODELS + "keys: [{name: a, key_file: pipe.key}]")


def test_problems_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of unknown settings, 100 are explained; the others cost nothing more than parsing."""
    explained: list[object] = []

    def explain(error: ErrorDetails, reference: str | None) -> tuple[Loc, str]:
        explained.append(error)
        return finding(error, reference)

    monkeypatch.setattr(loader, "finding", explain)
    with pytest.raises(ConfigError) as caught:
        loaded(folder, MODELS + "".join(f"unknown_{number}: 1\n" for number in range(1_000)))
    assert (len(caught.value.problems), len(explained)) == (100, 100)
