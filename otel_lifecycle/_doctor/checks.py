"""From what was seen to what is right, what is wrong, and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from otel_lifecycle._doctor.endpoints import SIGNALS, endpoint_of, problem_of
from otel_lifecycle._doctor.look import ProbeReport

State: TypeAlias = Literal["ok", "note", "wrong"]
OLDEST: Final = (1, 31)
"""OpenTelemetry versions below this are not supported."""
# High enough that settings of other tools are not taken for misspelt ones.
LIKE: Final = 0.85
"""Similarity from which a name counts as a misspelling of a known one."""
INSTALL: Final = "pip install otel-lifecycle, in the environment of the command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    topic: str
    state: State
    text: str
    remedy: str = ""

    def plain(self) -> dict[str, str]:
        """Return it as plain data."""
        return asdict(self)


def checks_of(seen: ProbeReport, environment: Mapping[str, str]) -> list[Check]:
    """Return all checks, in the order in which to fix them."""
    return [
        *_versions(seen),
        *_settings(seen, environment),
        *_providers(seen),
        *_export(environment),
        *_engines(seen),
        *(Check(topic="probe", state="note", text=f"not looked at: {error}") for error in seen.get("errors", ())),
    ]


def _versions(seen: ProbeReport) -> Iterator[Check]:
    versions = seen.get("versions", {})
    yield Check(topic="python", state="ok", text=f"{seen.get('python')} at {seen.get('executable')}")
    for name in ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp", "otel-lifecycle"):
        version = versions.get(name)
        if version is None:
            # The package "otlp" only gathers the two for gRPC and HTTP; one of them is enough.
            exporters = any(one.startswith("opentelemetry-exporter-otlp-proto-") for one in versions)
            if name == "opentelemetry-exporter-otlp" and exporters:
                continue
            yield Check(topic="versions", state="wrong", text=f"{name} is not installed", remedy=INSTALL)
        elif name != "otel-lifecycle" and _parsed(version) < OLDEST:
            remedy = f"pip install -U 'opentelemetry-sdk>={OLDEST[0]}.{OLDEST[1]}' opentelemetry-exporter-otlp"
            yield Check(topic="versions", state="wrong", text=f"{name} {version} is too old", remedy=remedy)
        else:
            yield Check(topic="versions", state="ok", text=f"{name} {version}")
    # The SDK requires the API of its own release, but a later install can break that.
    if versions.get("opentelemetry-api") != versions.get("opentelemetry-sdk"):
        remedy = "pip install -U opentelemetry-api opentelemetry-sdk opentelemetry-exporter-otlp"
        yield Check(topic="versions", state="wrong", text="API and SDK are of different releases", remedy=remedy)


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _settings(seen: ProbeReport, environment: Mapping[str, str]) -> Iterator[Check]:
    problem = seen.get("settings")
    if problem:
        yield Check(topic="settings", state="wrong", text=_first_part(problem), remedy=_rest(problem))
    known = seen.get("known_variables", [])
    for name in sorted(environment):
        # Only close misspellings are reported: other SDKs and tools have settings that this list does not know.
        if name.startswith("OTEL_") and not name.startswith("OTEL_LIFECYCLE_") and known and name not in known:
            alike = difflib.get_close_matches(name, known, n=1, cutoff=LIKE)
            if alike:
                yield Check(
                    topic="settings", state="wrong", text=f"{name} is not a setting", remedy=f"write {alike[0]}"
                )
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        text, remedy = "OTEL_SDK_DISABLED=true switches everything off", "unset OTEL_SDK_DISABLED"
        yield Check(topic="settings", state="wrong", text=text, remedy=remedy)
    for signal in SIGNALS:
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        if environment.get(variable, "").lower() == "none":
            text = f"{variable}=none: {signal} are not exported"
            yield Check(topic="settings", state="note", text=text, remedy=f"unset {variable} to export them")
    sampler = environment.get("OTEL_TRACES_SAMPLER", "")
    if sampler and sampler not in {"always_on", "parentbased_always_on"}:
        text = f"OTEL_TRACES_SAMPLER={sampler}: not every request has a span; metrics count all"
        yield Check(topic="settings", state="note", text=text)


def _first_part(problem: str) -> str:
    return problem.partition(";")[0]


def _rest(problem: str) -> str:
    """Return what a message says after the fault; of a list of names the one that is most alike."""
    named, _, rest = problem.partition(";")
    name, listed = named.split(" ", 1)[0], rest.removeprefix(" there are ").split(", ")
    alike = difflib.get_close_matches(name, listed, n=1, cutoff=0.6)
    return f"write {alike[0]}" if alike else rest.strip()


def _providers(seen: ProbeReport) -> Iterator[Check]:
    providers = seen.get("providers", {})
    if seen.get("ended"):
        text = "the command ended before it was examined; its set-up may be gone"
        yield Check(topic="providers", state="note", text=text, remedy="a shorter --wait looks earlier")
    if not providers.get("sdk"):
        text = "the program does not set up an OpenTelemetry SDK, so nothing is recorded"
        remedy = "call otel_lifecycle.configure(), or start it with opentelemetry-instrument"
        yield Check(topic="providers", state="wrong", text=text, remedy=remedy)
        return
    yield Check(topic="providers", state="ok", text=f"tracers by {providers.get('tracer')}")
    processors = providers.get("processors")
    if processors is None:
        yield Check(topic="processors", state="note", text="this release of the SDK does not show its processors")
    else:
        yield from _processors(list(dict.fromkeys(_names(processors))))
    # None means that the SDK does not show its readers, which is not a fault.
    if providers.get("readers") == []:
        text, remedy = "no metric reader: metrics go nowhere", "let configure() set one up, or give a MeterProvider one"
        yield Check(topic="processors", state="wrong", text=text, remedy=remedy)


def _processors(names: list[str]) -> Iterator[Check]:
    yield Check(topic="processors", state="ok", text=", ".join(names) or "none")
    if not any("Lifecycle" in name for name in names):
        text = "no LifecycleSpanProcessor: requests are not judged and give no metrics"
        remedy = "call otel_lifecycle.configure(), or provider.add_span_processor(LifecycleSpanProcessor())"
        yield Check(topic="processors", state="wrong", text=text, remedy=remedy)
    # ProcessSpans is the exporter of configure(); every exporter of OpenTelemetry has Exporter in its name.
    if not any("Export" in name or "ProcessSpans" in name for name in names):
        text, remedy = "no span exporter: spans go nowhere", "let configure() set one up, or add a BatchSpanProcessor"
        yield Check(topic="processors", state="wrong", text=text, remedy=remedy)


def _names(layers: list[Any]) -> Iterator[str]:
    for layer in layers:
        yield str(layer["class"]).rpartition(".")[2]
        yield from _names(layer["inner"])


def _export(environment: Mapping[str, str]) -> Iterator[Check]:
    for signal in SIGNALS:
        names = environment.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp")
        if "otlp" not in names.split(","):
            continue
        endpoint = endpoint_of(signal, environment)
        problem = problem_of(endpoint)
        form = "gRPC" if endpoint.grpc else "HTTP"
        if problem is None:
            yield Check(topic="endpoint", state="ok", text=f"{signal}: {endpoint.url} answers ({form})")
        else:
            remedy = "start a Collector there, or `otel-lifecycle live`, or run the command by `otel-lifecycle run`"
            yield Check(topic="endpoint", state="wrong", text=f"{signal}: {problem}", remedy=remedy)


def _engines(seen: ProbeReport) -> Iterator[Check]:
    engines = seen.get("engines", [])
    for engine in engines:
        if "error" in engine:
            text = f"{engine['instrumentor']} cannot be used: {engine['error']}"
            yield Check(topic="engines", state="note", text=text)
        elif engine["active"]:
            yield Check(topic="engines", state="ok", text=f"{engine['engine']} {engine['version']} is instrumented")
        else:
            text = f"{engine['engine']} {engine['version']} is installed and not instrumented"
            module, _, name = engine["instrumentor"].partition(":")
            remedy = f"start with opentelemetry-instrument, or call {name}().instrument() of {module}"
            yield Check(topic="engines", state="note", text=text, remedy=remedy)
    if not engines:
        text = "none that an instrumentor is for; your own server marks its requests itself"
        yield Check(topic="engines", state="ok", text=text)
