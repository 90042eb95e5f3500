"""docker/helm: the chart's rendered examples fit Kubernetes and the gateway, and are those that Helm renders.

The rendered examples are in the repository, so that they are validated where Helm is missing. Units: seconds.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import chart
import pytest
import trustme
import yaml

from checkout import ROOT
from gateway.cli.environment import read_environment
from gateway.config.loader import load
from gateway.config.settings import Settings
from gateway.server.process import DRAIN_ERROR_FLUSH_S, READINESS_LEAD_S

Objects = dict[tuple[str, str], dict[str, Any]]

needs_helm = pytest.mark.skipif(chart.helm() is None, reason="helm is not on the PATH")
examples = pytest.mark.parametrize("example", chart.EXAMPLES)
GATEWAY = "ttft-gateway"
IMAGE = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def kept(example: str) -> str:
    """Return the recorded manifests of an example."""
    return (chart.RENDERED / f"{example}.yaml").read_text(encoding="utf-8")


def objects(text: str) -> Objects:
    """Return the objects of manifests by kind and name."""
    return {(row["kind"], row["metadata"]["name"]): row for row in yaml.safe_load_all(text) if row}


def pod(rows: Objects) -> dict[str, Any]:
    """Return the specification of the gateway's pods."""
    spec: dict[str, Any] = rows["Deployment", GATEWAY]["spec"]["template"]["spec"]
    return spec


def environment(rows: Objects) -> dict[str, str]:
    """Return the container's variables, with a different secret for each reference."""
    env = dict(re.findall(r"(TTFT_\w+)=(\S+)", IMAGE))
    return env | {row["name"]: row.get("value", f"s-{row['name']}") for row in pod(rows)["containers"][0]["env"]}


def written(rows: Objects, folder: Path) -> Path:
    """Write the configuration of the ConfigMap, with the files that it names in mounted Secrets."""
    text: str = rows["ConfigMap", GATEWAY]["data"]["gateway.yaml"]
    for mount in pod(rows)["containers"][0]["volumeMounts"]:
        for file in re.findall(rf"(?<= {mount['mountPath']}/)\S+", text):
            trustme.CA().cert_pem.write_to_path(str(folder / file))
            if not file.endswith(".crt"):
                (folder / file).write_text(f"s-{file}", encoding="utf-8")
        text = text.replace(f" {mount['mountPath']}/", f" {folder}/")
    config = folder / "gateway.yaml"
    config.write_text(text, encoding="utf-8")
    return config


def settings_of(rows: Objects, folder: Path) -> Settings:
    """Return the settings in force in a pod."""
    env = environment(rows)
    return load(written(rows, folder), env, read_environment(env).settings)


def test_the_rendered_examples_belong_to_this_chart() -> None:
    """After a change of the chart or of an example they must be rendered again."""
    stale = [name for name in chart.EXAMPLES if chart.digest() not in kept(name).partition("\n")[0]]
    assert stale == [], "run `python tests/project/chart.py`, with helm on the PATH"
    assert sorted(path.stem for path in chart.RENDERED.iterdir()) == list(chart.EXAMPLES)


def test_readme_and_schema_follow_from_the_values() -> None:
    """Each value has a comment, and table and schema equal values.yaml."""
    assert set(chart.descriptions()) == set(chart.values())
    assert (chart.CHART / "README.md").read_text(encoding="utf-8") == chart.readme()
    assert (chart.CHART / "values.schema.json").read_text(encoding="utf-8") == chart.schema()


def test_the_examples_fit_the_schema() -> None:
    """The values of the examples are known, and of the right type."""
    files = [str(chart.CHART / "examples" / f"{name}.yaml") for name in chart.EXAMPLES]
    tool = str(Path(sys.executable).with_name("check-jsonschema"))
    command = [tool, "--schemafile", str(chart.CHART / "values.schema.json"), *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", [["-k", "1.30"], ["-k", "1.32"], []], ids=["1.30", "1.32", "newest"])
def test_kubernetes_accepts_the_objects(version: list[str], tmp_path: Path) -> None:
    """All objects that are of Kubernetes itself fit their schemas."""
    others = {"PodMonitor", "HTTPRoute"}
    rows = [row for name in chart.EXAMPLES for row in objects(kept(name)).values() if row["kind"] not in others]
    expected = {"Deployment", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "Role", "RoleBinding", "Service"}
    assert {row["kind"] for row in rows} >= expected
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(rows), encoding="utf-8")
    tool = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run([tool, "--strict", *version, file], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@examples
def test_the_gateway_accepts_its_configuration(example: str, tmp_path: Path) -> None:
    """`check-config` finds nothing in the rendered file, with the variables of the pod."""
    rows = objects(kept(example))
    command = [sys.executable, "-m", "gateway", "check-config", str(written(rows, tmp_path))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(rows), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fleet_is_counted_by_its_service(tmp_path: Path) -> None:
    """`share.gateways` is a headless Service with all pods of the gateway, also those that are not ready."""
    rows = objects(kept("valkey"))
    share = settings_of(rows, tmp_path).share
    assert share is not None
    service = rows["Service", str(share.gateways)]["spec"]
    labels = rows["Deployment", GATEWAY]["spec"]["template"]["metadata"]["labels"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True
    assert service["selector"].items() <= labels.items()


@examples
def test_the_pod_follows_from_the_configuration(example: str, tmp_path: Path) -> None:
    """Ports, time to drain and memory equal the settings in force."""
    rows = objects(kept(example))
    settings, spec = settings_of(rows, tmp_path), pod(rows)
    [container] = spec["containers"]
    assert settings.admin_listen is not None
    ports = [port["containerPort"] for port in container["ports"]]
    assert ports == [settings.listen.port, settings.admin_listen.port]
    drain_s = READINESS_LEAD_S + settings.drain_timeout_s + DRAIN_ERROR_FLUSH_S
    spare_s = spec["terminationGracePeriodSeconds"] - container["lifecycle"]["preStop"]["sleep"]["seconds"] - drain_s
    assert 2 <= spare_s <= 4
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert 0 <= memory - 170 - 2.3 * settings.limits.buffered_bodies_max_bytes / 2**20 <= 10


@examples
def test_selectors_meet_the_pods(example: str) -> None:
    """Every object that selects pods selects the gateway's, and the ports that they name exist."""
    rows = objects(kept(example))
    template = rows["Deployment", GATEWAY]["spec"]["template"]
    names = {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    selectors = [
        rows["Service", GATEWAY]["spec"]["selector"],
        *(
            row["spec"][key]["matchLabels"]
            for row in rows.values()
            for key in ("selector", "podSelector")
            if "matchLabels" in row.get("spec", {}).get(key, {})
        ),
    ]
    assert len(selectors) >= 4
    assert all(each.items() <= template["metadata"]["labels"].items() for each in selectors)
    rules = rows["NetworkPolicy", GATEWAY]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == names
    assert all(rule["from"] for rule in rules if {"port": "admin"} in rule["ports"])


@examples
def test_secrets_are_references(example: str) -> None:
    """No Secret is rendered, and each variable of the configuration is a key of one."""
    rows = objects(kept(example))
    assert "Secret" not in {kind for kind, _ in rows}
    used = set(re.findall(r"\$\{(\w+)\}", rows["ConfigMap", GATEWAY]["data"]["gateway.yaml"]))
    given = {row["name"] for row in pod(rows)["containers"][0]["env"] if "valueFrom" in row}
    assert given == used


def test_files_of_secrets_are_mounted() -> None:
    """Each file that a configuration names is in a mounted Secret."""
    rows = objects(kept("providers"))
    spec = pod(rows)
    volumes = {row["name"]: row for row in spec["volumes"]}
    secrets = {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in spec["containers"][0]["volumeMounts"]
        if "secret" in volumes[mount["name"]]
    }
    assert secrets == {"/run/secrets/providers": "providers"}
    files = re.findall(r"_file: (\S+)/\w+", rows["ConfigMap", GATEWAY]["data"]["gateway.yaml"])
    assert set(files) == secrets.keys()


def test_discovery_uses_the_headless_service(tmp_path: Path) -> None:
    """The source of the model is a Service of the chart with an address for each pod, and the same port."""
    rows = objects(kept("vllm"))
    source = settings_of(rows, tmp_path).models[0].discover
    assert source is not None
    assert source.dns is not None
    service = rows["Service", source.dns]["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", source.port)


def test_the_rights_follow_from_the_configuration(tmp_path: Path) -> None:
    """The pods may list and watch what their sources need, in its namespace, and nothing else."""
    rows = objects(kept("endpointslices"))
    assert {model.discover and model.discover.endpointslices for model in settings_of(rows, tmp_path).models} == {
        "vllm.llm"
    }
    role, binding = rows["Role", GATEWAY], rows["RoleBinding", GATEWAY]
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "llm"
    given = {(rule["apiGroups"][0], rule["resources"][0], *rule["verbs"]) for rule in role["rules"]}
    assert given == {("discovery.k8s.io", "endpointslices", "list", "watch"), ("", "pods", "list", "watch")}
    [subject] = binding["subjects"]
    assert binding["roleRef"]["name"] == GATEWAY
    assert subject["name"] == rows["ServiceAccount", GATEWAY]["metadata"]["name"] == pod(rows)["serviceAccountName"]
    assert subject["namespace"] == "default"
    assert pod(rows)["automountServiceAccountToken"] is True
    others = [objects(kept(name)) for name in chart.EXAMPLES if name != "endpointslices"]
    assert not any(
        kind == "Role" or row.get("automountServiceAccountToken") for each in others for (kind, _), row in each.items()
    )
    assert not any(pod(each)["automountServiceAccountToken"] for each in others)


@needs_helm
@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, {"Role", "RoleBinding", "ServiceAccount"}),
        ({"rbac": {"create": False}}, {"ServiceAccount"}),
        ({"serviceAccount": {"name": "mine"}}, {"Role", "RoleBinding"}),
        ({"config": "kubernetes: {url: x}\nmodels: [{discover: {endpointslices: a.b}}]"}, set()),
        (
            {"config": "models: [{fallbacks: [{discover: {endpointslices: a}}]}]"},
            {"Role", "RoleBinding", "ServiceAccount"},
        ),
    ],
    ids=["default", "no rights", "an account", "another cluster", "a fallback"],
)
def test_rights_are_created_where_they_are_needed(values: dict[str, Any], kinds: set[str], tmp_path: Path) -> None:
    """Role, RoleBinding and ServiceAccount follow from configuration and values."""
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    more = ("-f", "examples/endpointslices.yaml", "-f", str(tmp_path / "values.yaml"))
    done = chart.run_helm("template", chart.RELEASE, ".", *more)
    assert done.returncode == 0, done.stderr
    assert {kind for kind, _ in objects(done.stdout)} & {"Role", "RoleBinding", "ServiceAccount"} == kinds


def test_the_pods_are_those_of_the_plain_manifests(tmp_path: Path) -> None:
    """kubernetes.yaml is what the chart renders for vLLM, apart from labels, comments and the NetworkPolicy."""
    plain = objects((ROOT / "docker" / "kubernetes.yaml").read_text(encoding="utf-8"))
    rows = objects(kept("vllm"))
    assert rows.keys() - plain.keys() == {("NetworkPolicy", GATEWAY)}
    assert plain.keys() <= rows.keys()
    (tmp_path / "plain").mkdir()
    assert settings_of(rows, tmp_path) == settings_of(plain, tmp_path / "plain")
    ours, theirs = pod(rows), pod(plain)
    for spec in (ours, theirs):
        spec["containers"][0].pop("imagePullPolicy", None)
        spec["topologySpreadConstraints"][0].pop("labelSelector")
    image, version = theirs["containers"][0].pop("image").split(":")
    assert ours["containers"][0].pop("image") == f"{image}:VERSION"
    assert ours == theirs
    assert yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == version


def test_the_plain_valkey_accepts_the_pods() -> None:
    """The NetworkPolicy of kubernetes-valkey.yaml admits the pods of the chart."""
    valkey = objects((ROOT / "docker" / "kubernetes-valkey.yaml").read_text(encoding="utf-8"))
    [rule] = valkey["NetworkPolicy", "ttft-gateway-valkey"]["spec"]["ingress"]
    labels = objects(kept("valkey"))["Deployment", GATEWAY]["spec"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= labels.items()


def test_the_shared_example_scales_and_is_scraped(tmp_path: Path) -> None:
    """PodMonitor and autoscaler name the pods' port, the admin key, the Deployment, and a metric of docs/metrics.md."""
    rows = objects(kept("valkey"))
    settings = settings_of(rows, tmp_path)
    assert settings.share is not None
    assert settings.share.url == "rediss://ttft-gateway-valkey:6379/0"
    [endpoint] = rows["PodMonitor", GATEWAY]["spec"]["podMetricsEndpoints"]
    env = {row["name"]: row for row in pod(rows)["containers"][0]["env"]}
    assert endpoint["authorization"]["credentials"] == env["ADMIN_KEY"]["valueFrom"]["secretKeyRef"]
    assert endpoint["port"] == "admin"
    scaler = rows["HorizontalPodAutoscaler", GATEWAY]["spec"]
    deployment = rows["Deployment", GATEWAY]
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]
    [metric] = scaler["metrics"]
    metrics = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert f"### `{metric['pods']['metric']['name']}`\n\nGauge." in metrics


def test_the_complete_example_has_everything() -> None:
    """Routes lead to the Service, and what is added to the pods is there beside the chart's own."""
    rows = objects(kept("complete"))
    [rule] = rows["Ingress", GATEWAY]["spec"]["rules"]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    [route] = rows["HTTPRoute", GATEWAY]["spec"]["rules"]
    service = rows["Service", GATEWAY]["spec"]
    assert (backend["name"], backend["port"]["name"]) == (GATEWAY, service["ports"][0]["name"])
    assert (route["backendRefs"][0]["port"], route["timeouts"]) == (service["ports"][0]["port"], {"request": "0s"})
    spec = pod(rows)
    assert spec["serviceAccountName"] == rows["ServiceAccount", GATEWAY]["metadata"]["name"]
    assert not spec["automountServiceAccountToken"]
    [container] = spec["containers"]
    assert "HTTPS_PROXY" in {each["name"] for each in container["env"]}
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
    template = rows["Deployment", GATEWAY]["spec"]["template"]["metadata"]
    assert template["labels"]["cost-center"] == "llm"
    assert all(row["metadata"]["labels"]["team"] == "platform" for row in rows.values())


@needs_helm
def test_alerts_and_dashboard_are_objects() -> None:
    """The PrometheusRule has the rules of docker/monitoring, and the ConfigMap has its dashboard."""
    on = ("--set", "prometheusRule.enabled=true,dashboard.enabled=true")
    done = chart.run_helm("template", chart.RELEASE, ".", "-f", "examples/vllm.yaml", *on)
    assert done.returncode == 0, done.stderr
    rows = objects(done.stdout)
    monitoring = ROOT / "docker" / "monitoring"
    rules = yaml.safe_load((monitoring / "rules.yaml").read_text(encoding="utf-8"))
    assert rows["PrometheusRule", GATEWAY]["spec"] == rules
    shown = rows["ConfigMap", f"{GATEWAY}-dashboard"]
    assert json.loads(shown["data"]["ttft-gateway.json"]) == json.loads((monitoring / "dashboard.json").read_text())
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


@needs_helm
@examples
def test_helm_renders_the_examples(example: str) -> None:
    """Helm accepts the chart, and renders the recorded manifests."""
    lint = chart.run_helm("lint", "--strict", ".", "-f", f"examples/{example}.yaml")
    assert lint.returncode == 0, lint.stdout + lint.stderr
    assert objects(chart.render(example)) == objects(kept(example))


@needs_helm
def test_another_release_has_names_of_its_own() -> None:
    """All names and selectors follow the release; the job of its metrics is one that the alerts look for."""
    done = chart.run_helm("template", "prod", ".", "-f", "examples/valkey.yaml")
    assert done.returncode == 0, done.stderr
    rows = objects(done.stdout)
    names = {kind: name for kind, name in rows if name != "vllm-pods"}
    assert names.pop("PodMonitor") == "prod-ttft-gateway"
    assert set(names.values()) == {"prod", "prod-peers"}
    spec = rows["Deployment", "prod"]["spec"]
    assert spec["selector"]["matchLabels"]["app.kubernetes.io/instance"] == "prod"
    assert rows["Service", "prod"]["spec"]["selector"] == spec["template"]["metadata"]["labels"]


@needs_helm
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"image": {"repository": ""}}, "image.repository is empty; set it to the name of the image in your registry"),
        ({"config": ""}, "config is empty; set it to the gateway's configuration file"),
        ({"config": "models: ["}, "config is not YAML"),
        ({"config": "listen: 0.0.0.0:80"}, "config.listen is set; remove it"),
        ({"config": "drain_timeout: ${DRAIN}"}, "config.drain_timeout is x; write a duration such as 30s"),
        ({"config": "limits: {buffered_bodies_max: 1}"}, "config.limits.buffered_bodies_max is 1; write a size"),
        ({"config": "workers: auto"}, "resources.limits.memory is empty, and config.workers is set"),
        ({"config": "share: {}", "share": {"url": "redis://x"}}, "config.share and share.url are both set"),
        ({"secrets": {"A": {"name": "x"}}}, "secrets.A is incomplete; write {name: SECRET, key: KEY}"),
        ({"secretFolders": [{"name": "x"}]}, "secretFolders has no path; write {name: SECRET, path: PATH}"),
        ({"replica": 3}, "replica"),
        ({"replicaCount": 3}, "replicaCount is set; write `replicas`"),
        ({"ingress": {"enabled": True}}, "ingress.hosts is empty; write the host names of the gateway"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs is empty; write the Gateway as {name: NAME}"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_wrong_values_are_rejected(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Helm fails with the value, its state and the action."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": {"repository": "x"}, "config": "keys: []"} | values), encoding="utf-8")
    done = chart.run_helm("template", chart.RELEASE, ".", "-f", str(file))
    assert done.returncode != 0
    assert message in done.stderr


@needs_helm
@pytest.mark.parametrize(
    ("config", "grace", "memory"),
    [
        ("drain_timeout: 500ms", 11, "1300Mi"),
        ("drain_timeout: 1.5m", 100, "1300Mi"),
        ("drain_timeout: 1h", 3610, "1300Mi"),
        ("limits: {buffered_bodies_max: 1GiB}", 40, "2530Mi"),
        ("workers: 1", 40, "1300Mi"),
        ("limits:", 40, "1300Mi"),
    ],
)
def test_units_of_the_settings_are_understood(config: str, grace: int, memory: str, tmp_path: Path) -> None:
    """Grace period and memory follow in every unit that the gateway accepts."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"image": {"repository": "x"}, "config": config}), encoding="utf-8")
    done = chart.run_helm("template", chart.RELEASE, ".", "-f", str(file))
    assert done.returncode == 0, done.stderr
    spec = pod(objects(done.stdout))
    limits = spec["containers"][0]["resources"]["limits"]
    assert (spec["terminationGracePeriodSeconds"], limits["memory"]) == (grace, memory)
