"""docker/: the Dockerfile, compose.yaml and kubernetes.yaml fit their schemas, the gateway, and each other.

What needs containers is in scripts/verify-image, which is not part of this. Units: seconds.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
import yaml

from checkout import ROOT
from gateway.cli.environment import read_environment
from gateway.cli.parser import parse
from gateway.config.loader import load
from gateway.config.settings import LimitSettings, Settings
from gateway.server.process import DRAIN_ERROR_FLUSH_S, READINESS_LEAD_S
from gateway.simulated.profile import KEYS

DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))["services"]
_ROWS = list(yaml.safe_load_all((DOCKER / "kubernetes.yaml").read_text(encoding="utf-8")))
KUBERNETES = {row["kind"]: row for row in _ROWS if row["metadata"]["name"] == "ttft-gateway"}
[VLLM] = [row for row in _ROWS if row["metadata"]["name"] != "ttft-gateway"]
POD = KUBERNETES["Deployment"]["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
IMAGE_ENV = dict(re.findall(r"(TTFT_\w+)=(\S+)", DOCKERFILE))


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", "Dockerfile"],
        ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
        ["kubernetes-validate", "--strict", "-k", "1.30", "kubernetes.yaml"],  # the oldest it says it needs
        ["kubernetes-validate", "--strict", "kubernetes.yaml"],
        ["kubernetes-validate", "--strict", "-k", "1.30", "kubernetes-valkey.yaml"],
        ["kubernetes-validate", "--strict", "kubernetes-valkey.yaml"],
    ],
    ids=" ".join,
)
def test_checkers_find_nothing(command: list[str]) -> None:
    """The tools made for these files have no complaint."""
    tool = Path(sys.executable).with_name(command[0])
    done = subprocess.run([tool, *command[1:]], cwd=DOCKER, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_build_gets_what_it_copies() -> None:
    """Every file that the Dockerfile copies exists, and .dockerignore lets through these and no others."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    copied = {name for line in lines for name in line.split()}
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_the_image_runs_commands_that_exist() -> None:
    """Default command, health check, compose and Kubernetes call the command line as it is."""
    for name in ("HEALTHCHECK .* CMD", "CMD"):
        [line] = re.findall(rf"^{name} (\[.+\])$", DOCKERFILE, re.MULTILINE)
        words = [word for word in yaml.safe_load(line) if word != "ttft-gateway"]
        assert parse(words).command == words[0]
    assert parse(COMPOSE["gateway"]["command"]).command == "serve"
    assert parse(CONTAINER["args"]).command == "serve"
    replicas = [service for name, service in COMPOSE.items() if name != "gateway"]
    options = {word[2:] for service in replicas for word in service["command"] if word.startswith("--")}
    assert {option.replace("-", "_") for option in options} - {"seed"} <= set(KEYS)


def test_compose_serves_its_replicas() -> None:
    """The configuration of compose.yaml is valid in the image, needs a key, and names the other services."""
    environment = read_environment(IMAGE_ENV)
    settings = load(DOCKER / "gateway.yaml", {}, environment.settings)
    assert environment.key_in(settings) is not None
    replicas = {replica.name: replica.base_url for replica in settings.models[0].replicas}
    assert replicas == {name: f"http://{name}:8000/v1" for name in COMPOSE if name != "gateway"}
    [mount] = COMPOSE["gateway"]["volumes"]
    assert mount.split(":")[1] == IMAGE_ENV["TTFT_GATEWAY_CONFIG"]
    check_ports(settings, [int(port.split(":")[-1]) for port in COMPOSE["gateway"]["ports"]])
    assert grace_s(settings) <= int(COMPOSE["gateway"]["stop_grace_period"].removesuffix("s"))


def test_kubernetes_serves_its_configuration(tmp_path: Path) -> None:
    """The ConfigMap is fine with the variables of image and pod, and is mounted where the image looks for it."""
    [(name, text)] = KUBERNETES["ConfigMap"]["data"].items()
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    env = IMAGE_ENV | {row["name"]: row.get("value", "a-secret") for row in CONTAINER["env"]}
    settings = load(file, env, read_environment(env).settings)
    assert [key.name for key in settings.keys] == ["team-a"]
    [mount] = CONTAINER["volumeMounts"]
    assert f"{mount['mountPath']}/{name}" == IMAGE_ENV["TTFT_GATEWAY_CONFIG"]
    check_ports(settings, [port["containerPort"] for port in CONTAINER["ports"]])
    before_s = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before_s + grace_s(settings) <= POD["terminationGracePeriodSeconds"]


def test_the_replicas_are_the_pods_of_a_headless_service(tmp_path: Path) -> None:
    """The source of the model is the Service of the example, which has an address for each pod and the same port."""
    [text] = KUBERNETES["ConfigMap"]["data"].values()
    file = tmp_path / "gateway.yaml"
    file.write_text(text, encoding="utf-8")
    source = load(file, {"TEAM_A_KEY": "a-secret"}).models[0].discover
    assert source is not None
    assert (VLLM["kind"], VLLM["spec"]["clusterIP"]) == ("Service", "None")
    assert (source.dns, source.port) == (VLLM["metadata"]["name"], VLLM["spec"]["ports"][0]["port"])


def test_selectors_meet_the_pods() -> None:
    """Service, budget and Deployment select the labels of the pods, and the pods run as the image's user."""
    labels = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    budget = KUBERNETES["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"]
    deployment = KUBERNETES["Deployment"]["spec"]["selector"]["matchLabels"]
    assert KUBERNETES["Service"]["spec"]["selector"] == budget == deployment == labels
    user = f"{POD['securityContext']['runAsUser']}:{POD['securityContext']['runAsGroup']}"
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE) == [user]


def test_the_shared_gateways_are_those_of_the_other_file(tmp_path: Path) -> None:
    """kubernetes-valkey.yaml has the objects of kubernetes.yaml, and differs in what sharing needs only."""
    rows = list(yaml.safe_load_all((DOCKER / "kubernetes-valkey.yaml").read_text(encoding="utf-8")))
    shared = {(row["kind"], row["metadata"]["name"]): row for row in rows}
    alone = {(row["kind"], row["metadata"]["name"]): row for row in _ROWS}
    config, deployment = ("ConfigMap", "ttft-gateway"), ("Deployment", "ttft-gateway")
    assert {key for key, row in alone.items() if shared[key] != row} == {config, deployment}

    file = tmp_path / "gateway.yaml"
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "tls.crt"))
    text = shared[config]["data"]["gateway.yaml"]
    file.write_text(text.replace("/etc/ttft-gateway-valkey", str(tmp_path)), encoding="utf-8")
    [container] = shared[deployment]["spec"]["template"]["spec"]["containers"]
    settings = load(file, {row["name"]: row.get("value", "a-secret") for row in container["env"]})
    assert settings.share is not None
    service = shared["Service", "ttft-gateway-valkey"]
    [port] = service["spec"]["ports"]
    assert settings.share.url == f"rediss://{service['metadata']['name']}:{port['port']}/0"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert [f"{mount}/tls.crt" in text for mount in mounts] == [False, True]

    spec = shared[deployment]["spec"]
    spec["replicas"] = 2
    container["env"] = [row for row in container["env"] if row["name"] != "VALKEY_PASSWORD"]
    for rows in (container["volumeMounts"], spec["template"]["spec"]["volumes"]):
        rows[:] = [row for row in rows if row["name"] != "valkey-ca"]
    assert spec == alone[deployment]["spec"]


def test_valkey_is_reached_by_the_gateways_only() -> None:
    """Its Service, its Deployment and the rule for connections select the same pods."""
    rows = yaml.safe_load_all((DOCKER / "kubernetes-valkey.yaml").read_text(encoding="utf-8"))
    valkey = {
        row["kind"]: row["spec"] for row in rows if row["metadata"]["name"] == "ttft-gateway-valkey" and "spec" in row
    }
    labels = valkey["Deployment"]["template"]["metadata"]["labels"]
    selectors = [valkey["Service"]["selector"], valkey["NetworkPolicy"]["podSelector"]["matchLabels"]]
    assert [*selectors, valkey["Deployment"]["selector"]["matchLabels"]] == [labels] * 3
    [rule] = valkey["NetworkPolicy"]["ingress"]
    gateway = KUBERNETES["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert [each["podSelector"]["matchLabels"] for each in rule["from"]] == [gateway]


def check_ports(settings: Settings, ports: list[int]) -> None:
    """The image exposes what the gateway listens on, and these are the ports that are used."""
    [exposed] = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)
    assert settings.admin_listen is not None
    assert [str(port) for port in ports] == exposed.split()
    assert [settings.listen.port, settings.admin_listen.port] == ports


def grace_s(settings: Settings) -> float:
    """How long the gateway may take to end."""
    return READINESS_LEAD_S + settings.drain_timeout_s + DRAIN_ERROR_FLUSH_S


def test_the_memory_limit_follows_from_the_setting() -> None:
    """The pod's limit holds the process, and the bodies that the configuration allows, translated."""
    limit = re.fullmatch(r"(\d+)Mi", CONTAINER["resources"]["limits"]["memory"])
    assert limit is not None
    bodies = LimitSettings().buffered_bodies_max_bytes / 2**20
    assert 170 + 2.3 * bodies <= int(limit[1]) <= 180 + 2.3 * bodies
