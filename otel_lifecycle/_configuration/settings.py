"""The settings of ``configure()``.  An argument beats the environment, and the environment beats the default.

Each setting also has a variable ``OTEL_LIFECYCLE_<NAME>``.  Where OpenTelemetry has a variable of its own for the same
thing, that one holds next, before the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import entry_points
from typing import Any, Final
from urllib.parse import urlsplit

from otel_lifecycle._core.outcome import DOMINANCE_THRESHOLD, check_threshold
from otel_lifecycle._core.slo import Slo
from otel_lifecycle.errors import ConfigurationError

PREFIX: Final = "OTEL_LIFECYCLE_"
SIGNALS: Final = ("traces", "metrics")
PROTOCOLS: Final = ("grpc", "http/protobuf")
GRPC_PORT: Final = 4317
# The SDK's 60 s are too long for an alert that has to fire within a minute or two.
DEFAULT_INTERVAL_S: Final = 15.0
# As long as one OTLP export may take, and well below the 30 s that Kubernetes leaves between SIGTERM and SIGKILL.
DEFAULT_SHUTDOWN_S: Final = 10.0
DEFAULT_FILE_MB: Final = 100
ARGUMENTS_ONLY: Final = ("resources", "resource_attributes")
DERIVED: Final = ("protocols", "exporters", "default_endpoint", "slo")
"""Settings without a variable of their own name: read from several, or from OpenTelemetry's."""
OTLP_NAMES: Final[Mapping[str, str | None]] = {
    "otlp": None,
    "otlp_proto_grpc": "grpc",
    "otlp_proto_http": "http/protobuf",
}
"""Names of exporters that are OTLP, and the protocol that a name fixes."""
DROP_INS: Final = ("vllm", "sglang")
"""Engines whose drop-in has a switch of its own, which is read where the engine loads it."""
RESOURCES: Final = ("cache_usage", "memory_used", "device_utilization")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything ``configure()`` works from, read and checked.

    ``protocols``: for traces and metrics each, ``grpc`` or ``http/protobuf``.  ``exporters``: for each the names of its
    exporters.  ``default_endpoint``: the signals that go to OTLP's default endpoint, because none is configured.
    ``file``: path of the OTLP JSON file, ``file_max_mb``: its size when it is put aside.
    ``metric_interval``: seconds.  ``sampler``: a Sampler, a ratio in [0, 1], None for OTEL_TRACES_SAMPLER.
    ``resources``: callbacks, without arguments, that return a number or ``[(number, attributes), ...]``.
    """

    service_name: str | None = None
    endpoint: str | None = None
    protocols: Mapping[str, str] = field(default_factory=dict)
    exporters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    default_endpoint: frozenset[str] = frozenset()
    file: str | None = None
    file_max_mb: int = DEFAULT_FILE_MB
    metric_interval: float = DEFAULT_INTERVAL_S
    sampler: Any = None
    slo: Slo | None = None
    dominance_threshold: float = DOMINANCE_THRESHOLD
    strict: bool = False
    token_times: bool = False
    compat: str | None = None
    record_exceptions: bool = False
    interference: bool = True
    culprit_ids: bool = True
    engine_shared: bool = False
    tenant_metrics: bool = False
    gen_ai_metrics: bool = True
    gen_ai_usage: bool = True
    native_histograms: bool = False
    handle_sigterm: bool = True
    shutdown_timeout: float = DEFAULT_SHUTDOWN_S
    resources: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    resource_attributes: Mapping[str, Any] = field(default_factory=dict)


def read_settings(
    arguments: Mapping[str, Any], environ: Mapping[str, str] | None = None, signals: Iterable[str] = SIGNALS
) -> Settings:
    """Read and check every setting; ConfigurationError, naming the rule and where it was broken, for what cannot be.

    ``signals``: those whose export is set up.  The others belong to the app's own providers.
    """
    environ = os.environ if environ is None else environ
    _refuse_unknown(environ)
    reader = _Reader(arguments, environ)
    threshold, where = reader.get("dominance_threshold", float, DOMINANCE_THRESHOLD)
    return Settings(
        service_name=reader.text("service_name"),
        endpoint=reader.endpoint(),
        protocols={signal: reader.protocol(signal) for signal in signals},
        exporters={signal: reader.exporters(signal) for signal in signals},
        default_endpoint=frozenset(signal for signal in signals if reader.named_endpoint(signal) is None),
        file=reader.text("file"),
        file_max_mb=reader.whole("file_max_mb", DEFAULT_FILE_MB),
        metric_interval=reader.interval(),
        sampler=reader.sampler(),
        slo=reader.slo(),
        dominance_threshold=_checked(where, check_threshold, threshold),
        strict=reader.flag("strict"),
        token_times=reader.flag("token_times"),
        compat=reader.choice("compat", ("vllm",)),
        record_exceptions=reader.flag("record_exceptions"),
        interference=reader.flag("interference", default=True),
        culprit_ids=reader.flag("culprit_ids", default=True),
        engine_shared=reader.flag("engine_shared"),
        tenant_metrics=reader.flag("tenant_metrics"),
        gen_ai_metrics=reader.flag("gen_ai_metrics", default=True),
        gen_ai_usage=reader.flag("gen_ai_usage", default=True),
        native_histograms=reader.flag("native_histograms"),
        handle_sigterm=reader.flag("handle_sigterm", default=True),
        shutdown_timeout=reader.seconds("shutdown_timeout", DEFAULT_SHUTDOWN_S),
        resources=_resources(arguments.get("resources")),
        resource_attributes=_attributes(arguments.get("resource_attributes")),
    )


def _refuse_unknown(environ: Mapping[str, str]) -> None:
    """Refuse a misspelt variable: it would do nothing, and nothing would show that."""
    settings = {item.name for item in fields(Settings)} - {*DERIVED, *ARGUMENTS_ONLY}
    slos = (f"slo_{item.name}" for item in fields(Slo))
    known = {PREFIX + name.upper() for name in (*settings, "protocol", *slos, *DROP_INS)}
    for name in environ:
        if name.startswith(PREFIX) and name not in known:
            raise ConfigurationError(f"{name} is not a setting; there are {', '.join(sorted(known))}")


class _Reader:
    """Looks a setting up in the arguments, then in the environment."""

    def __init__(self, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._environ = environ

    def get(self, name: str, parse: Callable[[str], Any], default: Any = None) -> tuple[Any, str]:
        """Return a setting and where it came from."""
        argument = self._arguments.get(name)
        if argument is not None:
            return argument, name
        variable = PREFIX + name.upper()
        raw = self._environ.get(variable, "").strip()
        if not raw:
            return default, name
        try:
            return parse(raw), variable
        except ValueError as error:
            raise ConfigurationError(f"{variable} is {raw!r:.80}; it must be {_WANTED.get(parse, 'valid')}") from error

    def standard(self, *names: str) -> str | None:
        """Return the first of OpenTelemetry's own variables that is set."""
        return next((value for name in names if (value := self._environ.get(name, "").strip())), None)

    def text(self, name: str) -> str | None:
        value, where = self.get(name, str)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be a string that is not empty")
        return value if value is None else str(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value, where = self.get(name, _parse_flag, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be True or False")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value, where = self.get(name, str)
        if value is not None and value not in choices:
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be {' or '.join(choices)}")
        return value if value is None else str(value)

    def seconds(self, name: str, default: float) -> float:
        value, where = self.get(name, float, default)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value > 0):
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be a positive number of seconds")
        return float(value)

    def whole(self, name: str, default: int) -> int:
        value, where = self.get(name, int, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be a whole number from 1")
        return value

    def interval(self) -> float:
        """The metric interval: ours, else OpenTelemetry's in milliseconds, else the default."""
        raw = self.standard("OTEL_METRIC_EXPORT_INTERVAL")
        return self.seconds("metric_interval", DEFAULT_INTERVAL_S if raw is None else _milliseconds(raw))

    def endpoint(self) -> str | None:
        value, where = self.get("endpoint", str)
        if value is None:
            return None
        url = urlsplit(value) if isinstance(value, str) else None
        if url is None or url.scheme not in ("http", "https") or not url.netloc:
            shown = without_credentials(value)
            raise ConfigurationError(f"{where} is {shown!r:.80}; it must be a URL such as http://localhost:4318")
        return str(value)

    def protocol(self, signal: str) -> str:
        """The OTLP protocol of a signal: as set, else grpc where the endpoint's port is gRPC's, else http/protobuf."""
        ours, where = self.get("protocol", str)
        standard = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        value = ours or self.standard(*standard)
        if value is None:
            return "grpc" if self._port(signal) == GRPC_PORT else "http/protobuf"
        if value not in PROTOCOLS:
            place = where if ours else next(name for name in standard if self._environ.get(name, "").strip())
            raise ConfigurationError(f"{place} is {value!r:.80}; it must be {' or '.join(PROTOCOLS)}")
        return str(value)

    def named_endpoint(self, signal: str) -> str | None:
        """Return the configured endpoint of a signal; None where there is none."""
        return self.endpoint() or self.standard(
            f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
        )

    def _port(self, signal: str) -> int | None:
        given = self.named_endpoint(signal)
        try:
            # A gRPC endpoint may come without a scheme.
            return None if given is None else urlsplit(given if "//" in given else f"//{given}").port
        except ValueError:
            # Not chained: the error of the URL parser quotes what it could not read.
            shown = without_credentials(given)
            raise ConfigurationError(f"the OTLP endpoint is {shown!r:.80}; its port must be a number") from None

    def exporters(self, signal: str) -> tuple[str, ...]:
        """Return the names of a signal's exporters: OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER, by default otlp.

        With a file and no configured endpoint, the file is the only exporter.
        """
        variable = f"OTEL_{signal.upper()}_EXPORTER"
        value = self.standard(variable)
        if value is None:
            only_file = self.text("file") is not None and self.named_endpoint(signal) is None
            return () if only_file else ("otlp",)
        # A name that is given twice must not export everything twice.
        names = tuple(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
        if names == ("none",):
            return ()
        for name in names:
            if name not in OTLP_NAMES and name not in (installed := _installed(signal)):
                known = ", ".join(sorted({"none", *OTLP_NAMES, *installed}))
                raise ConfigurationError(
                    f"{variable} is {value!r:.80}; {name!r:.40} is not installed; there are {known}"
                )
        return names

    def sampler(self) -> Any:
        value, where = self.get("sampler", float)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not 0 <= value <= 1:
                raise ConfigurationError(f"{where} is {value!r:.80}; a ratio must lie in [0, 1]")
            return float(value)
        if value is not None and not callable(getattr(value, "should_sample", None)):
            raise ConfigurationError(f"{where} is {value!r:.80}; it must be a Sampler or a ratio in [0, 1]")
        return value

    def slo(self) -> Slo | None:
        """The objectives: the argument, else those of OTEL_LIFECYCLE_SLO_TTFT, _TPOT and _E2E in seconds."""
        # All or nothing: an argument replaces all three variables, so that objectives are never mixed from two places.
        given: object = self._arguments.get("slo")
        if given is not None:
            if not isinstance(given, Slo):
                raise ConfigurationError(f"slo is {given!r:.80}; it must be an otel_lifecycle.Slo")
            return given
        limits = {item.name: self.get(f"slo_{item.name}", float)[0] for item in fields(Slo)}
        if all(limit is None for limit in limits.values()):
            return None
        slo: Slo = _checked(f"{PREFIX}SLO_*", lambda objectives: Slo(**objectives), limits)
        return slo


def _installed(signal: str) -> list[str]:
    # Reading all entry points takes some 10 ms, so only where an exporter is named that is not OTLP.
    return [entry.name for entry in entry_points(group=f"opentelemetry_{signal}_exporter")]


def without_credentials(endpoint: object) -> object:
    """Return an endpoint as it may be shown: its user, password and query are left out."""
    if not isinstance(endpoint, str):
        return endpoint
    scheme, slashes, rest = endpoint.rpartition("://") if "://" in endpoint else ("", "", endpoint)
    # By hand: the endpoint is shown because it may be no URL.
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    hidden = "***@" if "@" in authority else ""
    return f"{scheme}{slashes}{hidden}{host}{slash}{path}".partition("?")[0]


def _milliseconds(raw: str) -> float:
    """Return OTEL_METRIC_EXPORT_INTERVAL in seconds."""
    try:
        seconds = float(raw) / 1000
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        rule = "it must be a positive number of milliseconds"
        raise ConfigurationError(f"OTEL_METRIC_EXPORT_INTERVAL is {raw!r:.80}; {rule}")
    return seconds


def _checked(where: str, check: Callable[[Any], Any], value: Any) -> Any:
    """Check a value; an error names where the value came from."""
    try:
        return check(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _parse_flag(raw: str) -> bool:
    if raw.lower() in ("true", "1", "yes", "on"):
        return True
    if raw.lower() in ("false", "0", "no", "off"):
        return False
    raise ValueError(raw)


_WANTED: Final[Mapping[Any, str]] = {float: "a number", int: "a whole number", _parse_flag: "true or false"}


def _attributes(given: object) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ConfigurationError(f"resource_attributes is {given!r:.80}; it must be a mapping")
    return dict(given or {})


def _resources(given: object) -> dict[str, Callable[[], Any]]:
    callbacks: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {} if given is None else {"": given}
    for name, callback in callbacks.items():
        if name not in RESOURCES or not callable(callback):
            raise ConfigurationError(f"resources takes callables under {', '.join(RESOURCES)}, not {name!r:.80}")
    return callbacks
