"""Every file of collector-config/ by the program it is for, or by that program's own validator."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from otel_lifecycle import semconv
from tests.stack import build
from tests.stack.programs import CONFIG

RULES: Final = sorted((CONFIG / "rules").glob("*.yaml"))
DASHBOARD: Final = CONFIG / "grafana" / "dashboards" / "inference.json"
README: Final = CONFIG / "README.md"
SETTINGS: Final = {"ALERT_WEBHOOK_URL": "http://127.0.0.1:1/", "GRAFANA_ADMIN_PASSWORD": "of-the-test"}


def run(program: str, *arguments: str | Path, env: Mapping[str, str] | None = None, timeout: float = 60) -> str:
    """Run one of the programs and return what it says; fail with that if it is not content."""
    command = [str(build.ensure(program)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["collector.yaml", "agent.yaml", "gateway.yaml"])
def test_the_collector_accepts_its_files(name: str) -> None:
    """``validate`` of the real Collector, with nothing set in the environment."""
    run("collector", "validate", "--config", CONFIG / name)


def test_the_collector_accepts_the_second_files() -> None:
    """With the queues on disk; and with secured receivers, which need a certificate and a token."""
    run("collector", "validate", "--config", CONFIG / "collector.yaml", "--config", CONFIG / "persistent-queue.yaml")
    secure = ("validate", "--config", CONFIG / "collector.yaml", "--config", CONFIG / "secure.yaml")
    files = {"OTLP_CERT_FILE": "/server.pem", "OTLP_KEY_FILE": "/server.key"}
    run("collector", *secure, env={**files, "OTLP_TOKEN": "of-the-test"})
    with pytest.raises(AssertionError, match="no bearer token provided"):
        run("collector", *secure, env=files)


def test_jaeger_accepts_its_file() -> None:
    """``validate`` of the real Jaeger."""
    run("jaeger", "validate", "--config", CONFIG / "jaeger.yaml")


def test_prometheus_accepts_its_file_and_the_rules() -> None:
    """Promtool finds every rule file that the configuration names, and no fault in them, lint included."""
    said = run("promtool", "check", "config", "--lint=all", "--lint-fatal", CONFIG / "prometheus.yaml")
    assert f"{len(RULES)} rule files found" in said


def without_secrets(config: Any) -> Any:
    """Return a configuration without its TLS and passwords."""
    if isinstance(config, dict):
        secret = {"scheme", "tls_config", "basic_auth"}
        return {key: without_secrets(value) for key, value in config.items() if key not in secret}
    return [without_secrets(item) for item in config] if isinstance(config, list) else config


def test_the_secured_file_of_prometheus_differs_by_its_secrets_alone() -> None:
    """Rules, targets and settings of prometheus-secure.yaml are those of prometheus.yaml."""
    plain, secured = (
        yaml.safe_load((CONFIG / f"{name}.yaml").read_text()) for name in ("prometheus", "prometheus-secure")
    )
    assert without_secrets(secured) == plain != secured


def test_alertmanager_accepts_its_file() -> None:
    """Amtool finds the receiver and the three inhibitions."""
    said = run("amtool", "check-config", CONFIG / "alertmanager.yaml")
    assert "3 inhibit rules" in said
    assert "1 receivers" in said


def test_the_gateways_judge_as_the_single_collector_does() -> None:
    """The sampler of gateway.yaml is that of collector.yaml, word for word."""

    def sampler(name: str) -> str:
        return (CONFIG / name).read_text().split("\n  tail_sampling:")[1].split("\n  batch:")[0]

    assert sampler("gateway.yaml") == sampler("collector.yaml")


def test_the_sampler_waits_longer_than_a_request_may_take() -> None:
    """Its default wait exceeds the age at which a request is called one that never ends (C68)."""
    (wait,) = re.findall(r"decision_wait: \$\{env:TRACE_WAIT:-(\d+)s\}", (CONFIG / "collector.yaml").read_text())
    (age,) = re.findall(r"oldest_request_age_seconds:max > (\d+)", (CONFIG / "rules" / "inference.yaml").read_text())
    assert int(wait) > int(age)


def project_of(env: Mapping[str, str]) -> Any:
    """Return compose.yaml as the loader behind ``docker compose`` understands it in that environment."""
    return json.loads(run("validate", "compose", CONFIG / "compose.yaml", env=env))


@pytest.fixture(scope="module")
def project() -> Any:
    """compose.yaml with nothing set but what must be."""
    return project_of(SETTINGS)


def test_compose_mounts_files_that_exist(project: Any) -> None:
    """Every bind mount has its source here, and every configuration file of the folder is mounted or is one of them."""
    sources = {
        Path(mount["source"])
        for service in project["services"].values()
        for mount in service.get("volumes", [])
        if mount["type"] == "bind"
    }
    assert [source for source in sources if not source.exists()] == []
    files = {path for path in CONFIG.rglob("*") if path.is_file() and CONFIG / "kubernetes" not in path.parents}
    mounted = {path for path in files if sources & {path, *path.parents}}
    assert files - mounted == {
        README,
        CONFIG / "compose.yaml",
        # Second files, for whoever wants them.
        CONFIG / "secure.yaml",
        CONFIG / "persistent-queue.yaml",
        CONFIG / "jaeger-secure.yaml",
        CONFIG / "compose-secure.yaml",
        # These name files that only the operator has.
        CONFIG / "prometheus-secure.yaml",
        CONFIG / "tempo-secure.yaml",
        CONFIG / "datasources-secure.yaml",
        CONFIG / "web.yaml",
    }


def test_compose_starts_what_was_tested(project: Any) -> None:
    """Every image has one exact version, and where it was built here it is that version."""
    images = dict(service["image"].rsplit(":", 1) for service in project["services"].values())
    assert [tag for tag in images.values() if not re.fullmatch(r"v?\d+\.\d+\.\d+", tag)] == []

    def pinned(module: str, path: str) -> str:
        (version,) = re.findall(rf"\n\t{re.escape(path)} v(\S+)", (build.HERE / module / "go.mod").read_text())
        return str(version)

    prometheus = pinned("prometheus", "github.com/prometheus/prometheus").split(".")
    built = ("otel/opentelemetry-collector-contrib", "prom/alertmanager", "prom/prometheus")
    assert {name: images[name] for name in built} == {
        "otel/opentelemetry-collector-contrib": pinned("collector", "go.opentelemetry.io/collector/otelcol"),
        "prom/alertmanager": "v" + pinned("alertmanager", "github.com/prometheus/alertmanager"),
        # The module of Prometheus 3.16.0 is called 0.316.0.
        "prom/prometheus": f"v{prometheus[1][0]}.{int(prometheus[1][1:])}.{prometheus[2]}",
    }
    # Jaeger's module 1.76.0 is its release 2.13.0.
    assert (pinned("jaeger", "github.com/jaegertracing/jaeger"), images["jaegertracing/jaeger"]) == ("1.76.0", "2.13.0")


SERVICES: Final = {"collector": "collector.yaml", "agent": "agent.yaml", "gateway": "gateway.yaml"}
# What compose itself decides: where a container listens, and what is published of it.
LISTENS: Final = {"OTLP_GRPC_ENDPOINT", "OTLP_HTTP_ENDPOINT", "HEALTH_ENDPOINT", "METRICS_HOST", "METRICS_PORT"}


def names_read(name: str) -> set[str]:
    """Return the environment variables that a file reads, whichever syntax it has for them."""
    lines = (line for line in (CONFIG / name).read_text().splitlines() if not line.lstrip().startswith("#"))
    return set(re.findall(r"(?<!\$)\$\{(?:env:)?(\w+)", "\n".join(lines)))


def test_compose_passes_every_setting_on() -> None:
    """What the operator exported reaches the program that reads it; what was not set is not set there either."""
    given = {name: f"of-the-test-{name}" for file in SERVICES.values() for name in names_read(file) - LISTENS}
    agents = {f"AGENT_{name}": f"the-agents-{name}" for name in ("MEMORY_LIMIT_MIB", "MEMORY_SPIKE_MIB")}
    memory = {"COLLECTOR_MEMORY": "3g", "AGENT_MEMORY": "1g"}
    env = {**SETTINGS, **given, **agents, **memory, "RUNBOOKS": "https://wiki.example"}
    services = project_of(env)["services"]
    for service, file in SERVICES.items():
        own = {name: given[name] for name in names_read(file) - LISTENS}
        if service == "agent":
            own |= {name.removeprefix("AGENT_"): value for name, value in agents.items()}
        assert services[service]["environment"] == own, service
    assert '{url: "https://wiki.example"}' in project_of(env)["configs"]["runbooks"]["content"]
    limits = [int(services[service]["mem_limit"]) >> 30 for service in SERVICES]
    assert limits == [3, 1, 3]


def test_compose_without_settings_leaves_the_defaults_of_the_files(project: Any) -> None:
    """A name that is not exported has no value in the container; the agent has the memory of one that holds nothing."""
    for service in SERVICES:
        environment = project["services"][service]["environment"]
        own = {"MEMORY_LIMIT_MIB": "256", "MEMORY_SPIKE_MIB": "64"} if service == "agent" else {}
        assert {name: value for name, value in environment.items() if value is not None} == own


def test_every_setting_is_in_the_readme() -> None:
    """Each environment variable that a file of the folder reads stands in a table of README.md."""
    rows = "".join(line for line in README.read_text().splitlines(keepends=True) if line.startswith("|"))
    read = {name for path in CONFIG.glob("*.yaml") for name in names_read(path.name)}
    assert sorted(name for name in read if f"`{name}`" not in rows) == []


def test_compose_gives_the_tested_flags(project: Any) -> None:
    """Prometheus has its OTLP receiver and its exemplar storage on, and alerts outlast its restart."""
    wanted = {"--web.enable-otlp-receiver", "--enable-feature=exemplar-storage", "--rules.alert.resend-delay=2m"}
    assert wanted <= set(project["services"]["prometheus"]["command"])


def published(project: Any) -> dict[str, str]:
    """Return each published port and the address it listens at."""
    ports = [port for service in project["services"].values() for port in service.get("ports", [])]
    return {port["published"]: port["host_ip"] for port in ports}


def test_compose_listens_on_loopback(project: Any) -> None:
    """Every user interface, and OTLP until an address is given."""
    interfaces = dict.fromkeys(("3000", "9090", "9093", "16686"), "127.0.0.1")
    otlp = ("4317", "4318", "14317", "14318")
    assert published(project) == {**interfaces, **dict.fromkeys(otlp, "127.0.0.1")}
    elsewhere = project_of({**SETTINGS, "OTLP_LISTEN": "10.1.2.3"})
    assert published(elsewhere) == {**interfaces, **dict.fromkeys(otlp, "10.1.2.3")}


SECRETS: Final = {"OTLP_TOKEN": "token", "INFERENCE_BASIC": "dTpw", "JAEGER_USERS": "u:hash"}


def test_the_secured_compose_adds_tls_alone(project: Any) -> None:
    """Images, ports and flags stay; every program has its certificate, and each file that it is given exists."""
    files = [CONFIG / "compose.yaml", CONFIG / "compose-secure.yaml"]
    secured = json.loads(run("validate", "compose", *files, env={**SETTINGS, **SECRETS}))
    flags = {
        "collector": {"--config=/etc/otelcol/secure.yaml"},
        "agent": {"--config=/etc/otelcol/secure.yaml"},
        "gateway": {"--config=/etc/otelcol/secure.yaml"},
        "jaeger": {"--config=/etc/jaeger/jaeger-secure.yaml"},
        "prometheus": {"--web.config.file=/etc/prometheus/secrets/web.yaml"},
        "alertmanager": {"--web.config.file=/etc/alertmanager/secrets/web.yaml"},
        "tempo": set(),
        "grafana": set(),
    }
    for name, plain in project["services"].items():
        service = secured["services"][name]
        assert (service["image"], service.get("ports")) == (plain["image"], plain.get("ports")), name
        own = {flag for flag in service.get("command") or () if "external-url" not in flag}
        assert own - set(plain.get("command") or ()) == flags[name], name
        mounts = {Path(mount["source"]) for mount in service["volumes"] if mount["type"] == "bind"}
        assert CONFIG / "secrets" in mounts, name
        assert [path for path in mounts - {CONFIG / "secrets"} if not path.exists()] == [], name
    assert secured["services"]["agent"]["environment"]["GATEWAY_AUTHORIZATION"] == "Bearer token"
    assert secured["services"]["collector"]["environment"]["PROMETHEUS_AUTHORIZATION"] == "Basic dTpw"


@pytest.mark.parametrize("missing", SECRETS)
def test_the_secured_compose_does_not_start_without_its_secrets(missing: str) -> None:
    """It says which one is missing."""
    env = {**SETTINGS, **{name: value for name, value in SECRETS.items() if name != missing}}
    with pytest.raises(AssertionError, match=f"set {missing}"):
        run("validate", "compose", CONFIG / "compose.yaml", CONFIG / "compose-secure.yaml", env=env)


def test_the_secured_files_of_tempo_and_grafana_differ_by_their_secrets_alone() -> None:
    """Ports, storage and data sources are those of the plain files; every address is https."""
    plain, secured = (yaml.safe_load((CONFIG / f"{name}.yaml").read_text()) for name in ("tempo", "tempo-secure"))
    del secured["server"]["http_tls_config"], secured["distributor"]["receivers"]["otlp"]["protocols"]["grpc"]["tls"]
    assert secured == plain
    folder = CONFIG / "grafana/provisioning/datasources/datasources.yaml"
    given, locked = (
        yaml.safe_load(path.read_text())["datasources"] for path in (folder, CONFIG / "datasources-secure.yaml")
    )
    assert [without_grafanas_secrets(source) for source in locked] == given


def without_grafanas_secrets(source: dict[str, Any]) -> dict[str, Any]:
    """Return a data source without its TLS and passwords."""
    assert source["url"].startswith("https://")
    options = {name: value for name, value in source["jsonData"].items() if not name.startswith("tls")}
    secret = {"secureJsonData", "basicAuth", "basicAuthUser", "jsonData"}
    plain = {name: value for name, value in source.items() if name not in secret}
    return {**plain, "url": source["url"].replace("https://", "http://")} | ({"jsonData": options} if options else {})


def test_compose_bounds_the_disk_and_links_to_itself(project: Any) -> None:
    """Prometheus drops its oldest blocks at a size, and links in alerts begin with the address that was given."""
    assert {"--storage.tsdb.retention.size=20GB", "--web.external-url=http://localhost:9090"} <= set(
        project["services"]["prometheus"]["command"]
    )
    given = project_of({**SETTINGS, "PROMETHEUS_DISK": "5GB", "PROMETHEUS_URL": "https://prometheus.example"})
    assert {"--storage.tsdb.retention.size=5GB", "--web.external-url=https://prometheus.example"} <= set(
        given["services"]["prometheus"]["command"]
    )


def test_the_dashboard_fits_grafanas_model() -> None:
    """Every field of the dashboard, its panels and its queries has a place in Grafana's own types, strictly."""
    run("validate", "dashboard", DASHBOARD)


def test_the_dashboard_offers_data_sources_that_are_provisioned() -> None:
    """The variables of its data sources start with those that are provisioned."""
    provisioned = re.findall(r"uid: (\w+)", (CONFIG / "grafana/provisioning/datasources/datasources.yaml").read_text())
    variables = json.loads(DASHBOARD.read_text())["templating"]["list"]
    chosen = {entry["current"]["value"] for entry in variables if entry["type"] == "datasource"}
    assert chosen <= set(provisioned)


def alerts() -> list[str]:
    """Return the name of every alert."""
    return sorted(set(re.findall(r"- alert: (\w+)", "".join(path.read_text() for path in RULES))))


def test_every_alert_has_its_section_in_the_runbook() -> None:
    """The runbook has a heading for each alert and for no other, and each alert points to its own."""
    headings = re.findall(r"^### (Inference\w+)$", README.read_text(), re.MULTILINE)
    assert sorted(headings) == alerts()
    text = "".join(path.read_text() for path in RULES)
    links = re.findall(r'runbook_url: "\{\{ with query `inference:runbooks:info` .*?\}\}#(\w+)"', text)
    assert set(links) == {name.lower() for name in alerts()}
    assert len(links) == len(re.findall(r"\n        annotations:(?: &\w+)?\n", text))


def test_the_address_of_the_runbook_is_a_label_of_one_series_only() -> None:
    """Not an external label, which federation and remote write would add to every sample; README.md by default."""
    assert "external_labels" not in (CONFIG / "prometheus.yaml").read_text()
    compose = project_of(SETTINGS)["configs"]["runbooks"]["content"]
    shipped = (CONFIG / "rules" / "runbooks.yaml").read_text()
    rules = shipped.split("groups:", 1)[1].replace("{url: README.md}", '{url: "README.md"}')
    assert [line.strip() for line in compose.split("groups:", 1)[1].splitlines()] == [
        line.strip() for line in rules.splitlines()
    ]


def test_an_alert_reads_figures_of_its_own_instant() -> None:
    """Recording rules and the alerts that read them are one group, which Prometheus evaluates in order."""
    text = (CONFIG / "rules" / "inference.yaml").read_text()
    assert re.findall(r"^  - name: (\S+)$", text, re.MULTILINE) == ["inference"]
    recorded = {name: text.index(f"- record: {name}\n") for name in re.findall(r"- record: (\S+)", text)}
    for rule in re.split(r"\n      - (?=record|alert)", text)[1:]:
        at = text.index(rule)
        expr = rule.split("\n        annotations:")[0].split("expr:", 1)[1]
        own = rule.split(": ", 1)[1].split("\n")[0]
        read = set(re.findall(r"inference:[\w:]+", expr)) - {own}
        assert {name for name in read if recorded[name] > at} == set(), own


def test_every_alert_is_tested_to_fire_and_to_be_silent() -> None:
    """The promtool cases expect each alert at some time and none of it at another."""
    text = "".join(path.read_text() for path in (build.HERE / "rules").glob("*.yaml"))
    cases = re.findall(r"- alertname: (\w+)\n\s+eval_time: \w+(\n\s+exp_alerts:)?", text)
    for name in alerts():
        assert {bool(expected) for case, expected in cases if case == name} == {True, False}, name


def prometheus_names(metric: semconv.Metric) -> Sequence[str]:
    """Return what Prometheus calls a metric that comes by OTLP."""
    unit = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}.get(metric.unit, "")
    name = metric.name.replace(".", "_") + unit
    if metric.kind == "histogram":
        # Without a suffix it is a native histogram, which the rules read where no buckets come.
        return [name + suffix for suffix in ("", "_bucket", "_sum", "_count")]
    return [name + ("_total" if metric.kind == "counter" else "")]


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    """Every raw metric and label in an expression is one of the contract's, as Prometheus translates it."""
    text = "".join(path.read_text() for path in [*RULES, DASHBOARD])
    known = {name for metric in semconv.METRICS for name in prometheus_names(metric)}
    labels = {name.replace(".", "_") for metric in semconv.METRICS for name in metric.attributes}
    labels |= {semconv.TRAFFIC.replace(".", "_")}
    assert set(re.findall(r"(?<![\w:])inference_\w+", text)) - known - labels == set()


@pytest.mark.parametrize("path", sorted((build.HERE / "rules").glob("*.yaml")), ids=lambda path: str(path.stem))
def test_rules(path: Path) -> None:
    """Promtool's own test of the recording rules and the alerts."""
    # Promtool runs all rules every 30 s of a case: up to a minute of CPU a file, and several under load.
    run("promtool", "test", "rules", path, timeout=300)
