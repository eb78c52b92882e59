"""The Kubernetes files: every object fits its schema, and what refers to another object finds it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stack import certificates, kubernetes, programs
from tests.stack.programs import CONFIG
from tests.stack.test_files import names_read

# From the extra `test`. Neither has types.
kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
jsonschema: Any = pytest.importorskip("jsonschema")
OVERLAYS = ("small", "production")
NAME = "app.kubernetes.io/name"
FILES = {"otel-agent": ["agent.yaml"], "otel-gateway": ["gateway.yaml", "secure.yaml", "persistent-queue.yaml"]}
MEBIBYTES = {"Mi": 1, "Gi": 1024}


@cache
def render(overlay: str) -> list[dict[str, Any]]:
    """Return the objects of an overlay; nobody changes them."""
    return kubernetes.render(overlay)


@cache
def schema(kind: str) -> dict[str, Any]:
    """Return the schema of a custom resource."""
    return kubernetes.schema(kind)


def of(overlay: str, kind: str) -> dict[str, Any]:
    """Return the objects of a kind by their names."""
    return {item["metadata"]["name"]: item for item in render(overlay) if item["kind"] == kind}


def workloads(overlay: str) -> dict[str, Any]:
    """Return the two workloads by their names."""
    return {**of(overlay, "DaemonSet"), **of(overlay, "StatefulSet")}


def files_of(container: Mapping[str, Any]) -> list[str]:
    """Return the names of the configuration files that a container's arguments name."""
    return [argument.rpartition("/")[2] for argument in container["args"] if argument.startswith("--config=")]


def check(item: Mapping[str, Any]) -> None:
    """Raise for an object that the API server would refuse, or of which it would drop a field."""
    if item["apiVersion"].startswith("monitoring.coreos.com/"):
        wanted = schema(item["kind"])
        # Not validate(), which checks the schema itself each time, for seconds.
        jsonschema.Draft7Validator(wanted).validate(item)
        assert list(kubernetes.unknown(item, wanted)) == []
    else:
        kubernetes_validate.validate(dict(item), kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_object_fits_its_schema(overlay: str) -> None:
    """Kubernetes' own objects by the schemas of the newest release, the operator's by those of its own."""
    for item in render(overlay):
        check(item)
    namespaces = {item["metadata"]["namespace"] for item in render(overlay)}
    assert namespaces == {"inference-observability"}


@pytest.mark.parametrize(
    "kind", ["Service", "StatefulSet", "NetworkPolicy", "PodMonitor", "PrometheusRule", "Prometheus"]
)
def test_a_field_with_a_wrong_name_is_refused(kind: str) -> None:
    """So the test above can fail."""
    item = next(item for item in render("production") if item["kind"] == kind)
    wrong = {**item, "spec": {**item["spec"], "podSelectors": {}}}
    with pytest.raises((AssertionError, kubernetes_validate.ValidationError)):
        check(wrong)


def test_the_rules_are_those_of_the_folder() -> None:
    """Made by `python -m tests.stack.kubernetes`, which has to run again after a change of the rules."""
    assert kubernetes.RULES.read_text() == kubernetes.written()
    (rule,) = of("small", "PrometheusRule").values()
    assert rule["spec"] == kubernetes.rules()["spec"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_agents_find_the_gateways(overlay: str) -> None:
    """By the name of a headless service that selects them and opens the port they listen on."""
    service, gateway = of(overlay, "Service")["otel-gateway"], workloads(overlay)["otel-gateway"]
    (agent,) = workloads(overlay)["otel-agent"]["spec"]["template"]["spec"]["containers"]
    (host,) = (variable["value"] for variable in agent["env"] if variable["name"] == "GATEWAY_HOST")
    assert (host, service["spec"]["clusterIP"]) == (service["metadata"]["name"], "None")
    assert service["spec"]["selector"].items() <= gateway["spec"]["template"]["metadata"]["labels"].items()
    assert gateway["spec"]["serviceName"] == host
    assert [port["port"] for port in service["spec"]["ports"]] == [4317]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_select_something_and_ports_exist(overlay: str) -> None:
    """Of every service, network policy and monitor but Jaeger's, which is not part of this."""
    pods = {name: item["spec"]["template"] for name, item in workloads(overlay).items()}
    selecting = [
        (item["spec"]["selector"], [port["targetPort"] for port in item["spec"]["ports"]])
        for item in of(overlay, "Service").values()
    ]
    selecting += [
        (
            item["spec"]["podSelector"]["matchLabels"],
            [port["port"] for rule in item["spec"]["ingress"] for port in rule["ports"]],
        )
        for item in of(overlay, "NetworkPolicy").values()
    ]
    monitor = of(overlay, "PodMonitor")["otel-collectors"]["spec"]
    selecting.append((monitor["selector"]["matchLabels"], [end["port"] for end in monitor["podMetricsEndpoints"]]))
    for selector, ports in selecting:
        chosen = [pod for pod in pods.values() if selector.items() <= pod["metadata"]["labels"].items()]
        assert chosen, selector
        for pod in chosen:
            (container,) = pod["spec"]["containers"]
            assert set(ports) <= {port["name"] for port in container["ports"]}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_rules_find_the_job_of_the_collectors(overlay: str) -> None:
    """``up{job="collector"}`` of the rules is the label that the monitor makes of the pods."""
    label = of(overlay, "PodMonitor")["otel-collectors"]["spec"]["jobLabel"]
    jobs = {item["spec"]["template"]["metadata"]["labels"][label] for item in workloads(overlay).values()}
    assert jobs == {"collector"}
    assert 'up{job="collector"}' in (CONFIG / "rules" / "telemetry.yaml").read_text()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_containers_have_files_settings_probes_and_memory(overlay: str) -> None:
    """Files are in the config map, variables are read by them, and the limit is above what the Collector keeps to."""
    compose = yaml.safe_load((CONFIG / "compose.yaml").read_text())["services"]
    for name, item in workloads(overlay).items():
        (container,) = item["spec"]["template"]["spec"]["containers"]
        assert container["image"] == compose["collector"]["image"]
        (config,) = (v["configMap"]["name"] for v in item["spec"]["template"]["spec"]["volumes"] if "configMap" in v)
        given = of(overlay, "ConfigMap")[config]["data"]
        assert given == {file: (CONFIG / file).read_text() for file in FILES[name]}
        used = files_of(container)
        assert set(used) <= set(given)
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        # Kubernetes puts the token into the header by its name.
        read = {name for file in used for name in names_read(file)} | {"GATEWAY_TOKEN"}
        assert set(env) <= read
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/", "port": "health"}
        default = {"otel-agent": 256, "otel-gateway": 1536}[name]
        limit = container["resources"]["limits"]["memory"]
        assert int(limit[:-2]) * MEBIBYTES[limit[-2:]] > int(env.get("MEMORY_LIMIT_MIB") or default)


def test_production_shows_a_token_over_tls_and_keeps_its_queue_on_disk() -> None:
    """The agent trusts the authority of the gateways' certificate by the name that is in it."""
    (agent,) = workloads("production")["otel-agent"]["spec"]["template"]["spec"]["containers"]
    gateway = workloads("production")["otel-gateway"]["spec"]
    (collector,) = gateway["template"]["spec"]["containers"]
    env = {variable["name"]: variable.get("value") for variable in agent["env"]}
    order = [variable["name"] for variable in agent["env"]]
    assert (env["GATEWAY_INSECURE"], env["GATEWAY_AUTHORIZATION"]) == ("false", "Bearer $(GATEWAY_TOKEN)")
    # A variable is only replaced by one that stands before it.
    assert order.index("GATEWAY_TOKEN") < order.index("GATEWAY_AUTHORIZATION")
    assert files_of(collector) == FILES["otel-gateway"]
    mounts = {mount["name"]: mount["mountPath"] for mount in collector["volumeMounts"]}
    (claim,) = gateway["volumeClaimTemplates"]
    assert "/var/lib/otelcol/queue".startswith(mounts[claim["metadata"]["name"]])


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_gateway_of_production_starts(tmp_path: Path) -> None:
    """The real Collector with the container's arguments: TLS, token and queues on disk at once."""
    (container,) = workloads("production")["otel-gateway"]["spec"]["template"]["spec"]["containers"]
    arguments = [argument.replace("/etc/otelcol/", f"{CONFIG}/") for argument in container["args"]]
    certificates.make(tmp_path)
    env = {
        "OTLP_CERT_FILE": str(tmp_path / "server.pem"),
        "OTLP_KEY_FILE": str(tmp_path / "server.key"),
        "OTLP_TOKEN": "of-the-test",
        "QUEUE_DIRECTORY": str(tmp_path / "queue"),
    }
    program = programs.collector(tmp_path, CONFIG / "gateway.yaml", env=env)
    program.command = [program.command[0], *arguments]
    try:
        # It says why if it does not start.
        program.start()
        assert list((tmp_path / "queue").iterdir()) != []
    finally:
        program.stop()


def test_prometheus_takes_what_the_agents_push() -> None:
    """The settings of prometheus.yaml and of its flags in compose.yaml, in the operator's words."""
    (prometheus,) = of("small", "Prometheus").values()
    spec, file = prometheus["spec"], yaml.safe_load((CONFIG / "prometheus.yaml").read_text())
    assert spec["enableOTLPReceiver"] is True
    assert spec["enableFeatures"] == ["exemplar-storage"]
    assert spec["rules"]["alert"]["resendDelay"] == "2m"
    assert spec["otlp"]["promoteResourceAttributes"] == file["otlp"]["promote_resource_attributes"]
    assert spec["tsdb"]["outOfOrderTimeWindow"] == file["storage"]["tsdb"]["out_of_order_time_window"]
    assert spec["exemplars"]["maxSize"] == file["storage"]["exemplars"]["max_exemplars"]
    label = spec["ruleSelector"]["matchLabels"]
    for kind in ("PrometheusRule", "PodMonitor"):
        assert all(label.items() <= item["metadata"]["labels"].items() for item in of("small", kind).values())
