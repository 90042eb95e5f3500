"""The paths that are passed on, and the model that a body names."""

import pytest

from ttft_gateway.requests.errors import InvalidRequest
from ttft_gateway.requests.parsed import NumberLimits
from ttft_gateway.requests.passed import NamedModel, PassedTarget, named_model, target_of

BOUNDS = NumberLimits(n_max=1, max_tokens_max=1)
TARGETS = {
    b"/v1/files": PassedTarget("files", b"/files", b""),
    b"/v1/files/file-1/content": PassedTarget("files", b"/files/file-1/content", b""),
    b"/v1/files?purpose=batch&limit=2": PassedTarget("files", b"/files", b"?purpose=batch&limit=2"),
    b"/v1/fine_tuning/jobs/ft:a.b_c/cancel": PassedTarget("fine_tuning", b"/fine_tuning/jobs/ft:a.b_c/cancel", b""),
    b"/v1/messages/batches/b/results": PassedTarget("batches", b"/messages/batches/b/results", b""),
    b"/v1/audio/speech": PassedTarget("audio", b"/audio/speech", b""),
    b"/v1/messages/files": None,
    b"/v1/messages": None,
    b"/v1/filesystem": None,
    b"/v1/files/": None,
    b"/v1/files//x": None,
    b"/v1/files/../models": None,
    b"/v1/files/./x": None,
    b"/v1/files/..": None,
    b"/v1/files/..?x": None,
    b"/v1/files/%2e%2e/x": None,
    b"/v1/files/a\r\nhost:x": None,
    b"/v1/files?a b": None,
    b"/v1/organization/users": None,
    b"/files": None,
}


@pytest.mark.parametrize("target", TARGETS)
def test_a_path_of_plain_segments_is_passed_on(target: bytes) -> None:
    """Only known families, and no way out of them."""
    assert target_of(target) == TARGETS[target]


def form(*parts: bytes) -> bytes:
    """A form of these parts."""
    return b"".join(b"--b\r\n" + part + b"\r\n" for part in parts) + b"--b--\r\n"


MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1'
FILE = b'Content-Disposition: form-data; name="file"; filename="model"\r\n\r\nname="model"\r\n\r\n--b-x'
FORMS = {
    "first": form(MODEL, FILE),
    "last": form(FILE, MODEL),
    "with a type": form(FILE, MODEL.replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n")),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_model_of_a_form(name: str) -> None:
    """It is found anywhere in the form, and in no file."""
    body, at = FORMS[name], FORMS[name].index(b"whisper-1")
    found = named_model(body, {b"content-type": b'multipart/form-data; boundary="b"'}, None, BOUNDS)
    assert found == NamedModel("whisper-1", body, (at, at + 9))


@pytest.mark.parametrize("media", [b"application/json; charset=utf-8", b"application/vnd.api+json"])
def test_the_model_of_json(media: bytes) -> None:
    """Each type with JSON is read as JSON."""
    body = b'{"input": "x", "model": "tts"}'
    assert named_model(body, {b"content-type": media}, None, BOUNDS) == NamedModel(
        "tts", body, (24, 29), is_quoted=True
    )


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (form(FILE), b"multipart/form-data; boundary=b"),
        (form(MODEL), b"multipart/form-data"),
        (b"\x00\x01", b"application/octet-stream"),
        (b"", b"application/json"),
    ],
    ids=["no field", "no boundary", "bytes", "nothing"],
)
def test_a_body_without_a_model(body: bytes, media: bytes) -> None:
    """Other bodies name none."""
    assert named_model(body, {b"content-type": media}, None, BOUNDS) == NamedModel(None, body)


OTHER = MODEL.replace(b"whisper-1", b"dearer")
ODD = {
    "twice": form(MODEL, FILE, OTHER),
    "after another parameter": form(OTHER.replace(b"form-data; ", b"form-data; x=y; ")),
    "with a file name": form(MODEL, OTHER.replace(b'"model"', b'"model"; filename="x"')),
    "after another header": form(b"Content-Type: text/plain\r\n" + OTHER),
    "in another case": form(MODEL, OTHER.replace(b"name=", b"NAME = ")),
    "after a thousand parts": form(*[FILE] * 1_000, OTHER),
}


@pytest.mark.parametrize("name", ODD)
def test_a_form_names_one_model(name: str) -> None:
    """A second model, which a replica might read instead, would evade the models that a key may use."""
    with pytest.raises(InvalidRequest, match="the form has"):
        named_model(ODD[name], {b"content-type": b"multipart/form-data; boundary=b"}, None, BOUNDS)
