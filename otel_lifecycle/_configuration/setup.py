"""``configure()`` and ``shutdown()``: the one default the API needs.

The SDK is imported when ``configure()`` is called, not before: importing the package loads the API only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import RLock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics, trace

from otel_lifecycle._configuration import process_exit
from otel_lifecycle._configuration.setting_keywords import SettingKeywords
from otel_lifecycle._configuration.settings import SIGNALS, Settings, read_settings
from otel_lifecycle._core.engines import EngineLogs
from otel_lifecycle._keywords import refuse_unknown, with_keywords
from otel_lifecycle._log import logger
from otel_lifecycle._runtime import runtime

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from otel_lifecycle._configuration.pipeline import Pipeline


PROVIDER_OF = {"traces": "tracer_provider", "metrics": "meter_provider"}


class _Default:
    """What ``configure()`` set up in this process, or in the parent that this one was forked from."""

    def __init__(self) -> None:
        # Re-entrant, because building a pipeline may ask the delegating providers for the current one.
        self.lock = RLock()
        self.settings: Settings | None = None
        self.pipeline: Pipeline | None = None
        self.pid = 0
        self.spent = 0.0
        self.installed: Any = None
        self.own: dict[str, Any] = {}

    def current(self) -> Pipeline | None:
        """Return the pipeline of this process; a forked child's is built when it is first asked for."""
        # Without the lock, because every span and record asks; the lock is for the one time in a child.
        if self.pid != os.getpid() and self.settings is not None:
            with self.lock:
                if self.pid != os.getpid():
                    self.rebuild()
        return self.pipeline

    def rebuild(self) -> None:
        """Build the child's own pipeline: it counts from zero under an instance id of its own."""
        from otel_lifecycle._configuration.pipeline import Pipeline

        assert self.settings is not None  # noqa: S101  # only called where there are some
        # Set first: what is built may ask for the current pipeline, and must not start to build another.  Until it
        # stands, other threads get the parent's, which exports nothing in a child.
        self.pid = os.getpid()
        self.pipeline = Pipeline(self.settings, child=True, **self.own)
        if self.installed is not None:
            self.installed.remake_observables()
        process_exit.at_exit_of_child(_at_exit)


_default = _Default()


@with_keywords(dict.fromkeys(SettingKeywords.__annotations__))
def configure(**arguments: Unpack[SettingKeywords]) -> None:
    """Set up providers, OTLP export and the lifecycle processor for this process, and for those forked from it.

    Takes the settings of :class:`otel_lifecycle.types.SettingKeywords`.  Nearly each is also a variable,
    OTEL_LIFECYCLE_<NAME> (the SLO: _SLO_TTFT, _SLO_TPOT, _SLO_E2E); an argument beats the environment.

    Where the app has set global providers, the processor is added to them and nothing is replaced; a warning names the
    arguments that cannot apply there.  A second call is ignored with a warning.
    Raises ConfigurationError for a setting that makes no sense, TypeError for one that does not exist.
    """
    refuse_unknown("configure", arguments, SettingKeywords.__annotations__)
    given = {name: value for name, value in arguments.items() if value is not None}
    with _default.lock:
        own = _own_providers()
        settings = read_settings(given, signals=[name for name in SIGNALS if PROVIDER_OF[name] not in own])
        # After the settings are read, so that a second call with a wrong setting raises, too.
        if _default.current() is not None:
            logger.warning("configure() was called before; this call changes nothing")
            return
        _warn_of_ignored(given, own)
        _install(settings, own)


def _own_providers() -> dict[str, Any]:
    """Return the global providers that the app set up itself, by the names that a pipeline takes them under."""
    # Imported here and below: `import otel_lifecycle` must not load the SDK.
    from opentelemetry.sdk.trace import TracerProvider

    from otel_lifecycle._configuration.fork_safe_providers import ForkSafeMeterProvider, ForkSafeTracerProvider

    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    own: dict[str, Any] = {}
    if isinstance(tracers, TracerProvider) and not isinstance(tracers, ForkSafeTracerProvider):
        own["tracer_provider"] = tracers
    # By method and not by class: any provider that can be flushed is a working one; the API's proxy has no
    # force_flush().
    if hasattr(meters, "force_flush") and not isinstance(meters, ForkSafeMeterProvider):
        own["meter_provider"] = meters
    return own


_OF_BOTH: Final = ("service_name", "resource_attributes", "endpoint", "protocol", "file", "file_max_mb")
_IGNORED: Final = {"tracer_provider": ("sampler",), "meter_provider": ("metric_interval", "native_histograms")}
"""Arguments that a provider of the app's own makes void: it has its resource, exporters and sampler already."""


def _warn_of_ignored(arguments: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Name the arguments that cannot apply to the providers the app has set."""
    void = [name for provider in own for name in _IGNORED[provider]]
    if len(own) == len(_IGNORED):
        void += _OF_BOTH
    ignored = sorted(name for name in arguments if name in void)
    if ignored:
        logger.warning("configure() uses the providers that exist, so it ignores %s", ", ".join(ignored))


def _install(settings: Settings, own: dict[str, Any]) -> None:
    from otel_lifecycle._configuration.fork_safe_providers import ForkSafeMeterProvider, ForkSafeTracerProvider
    from otel_lifecycle._configuration.pipeline import Pipeline

    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    _default.own = own
    runtime().record_exceptions = settings.record_exceptions
    runtime().engines = EngineLogs(
        enabled=settings.interference, shared=settings.engine_shared, name_culprits=settings.culprit_ids
    )
    _default.settings, _default.pid = settings, os.getpid()
    _default.pipeline = Pipeline(settings, **_default.own)
    # A global provider can be set once.  After a shutdown the one from the first configure() is still there, and asks
    # for the new pipeline by itself.
    if "tracer_provider" not in own and not isinstance(tracers, ForkSafeTracerProvider):
        trace.set_tracer_provider(ForkSafeTracerProvider(_tracer_provider))
    if "meter_provider" not in own and not isinstance(meters, ForkSafeMeterProvider):
        _default.installed = ForkSafeMeterProvider(_meter_provider)
        metrics.set_meter_provider(_default.installed)
    # Last: nothing is registered for a pipeline that could not be built.
    process_exit.at_exit(_at_exit)
    if settings.handle_sigterm:
        process_exit.at_sigterm(_at_exit, settings.shutdown_timeout + 1)


def _tracer_provider() -> Any:
    pipeline = _default.current()
    return trace.NoOpTracerProvider() if pipeline is None else pipeline.tracer_provider


def _meter_provider() -> Any:
    pipeline = _default.current()
    return metrics.NoOpMeterProvider() if pipeline is None else pipeline.meter_provider


def shutdown(timeout: float | None = None) -> bool:
    """End every open request as cancelled, reason ``shutdown``, send what is left, and stop.

    Returns whether all of it was done within ``timeout`` seconds (default: as configured, else 10); it never takes
    longer, whatever the exporters do.  Afterwards requests are no-ops until ``configure()`` is called again.
    """
    with _default.lock:
        # A forked child that has built nothing has nothing to shut down; the pipeline it inherited is its parent's.
        pipeline = _default.pipeline if _default.pid == os.getpid() else None
        settings, _default.settings, _default.pipeline = _default.settings, None, None
    if pipeline is None or settings is None:
        return True
    left, _default.spent = max(0.0, settings.shutdown_timeout - _default.spent), 0.0
    # Outside the lock: it may take seconds, and what ends here may ask for a provider.
    done = pipeline.shutdown(left if timeout is None else timeout)
    if not done:
        logger.warning("shutdown gave up on an exporter that does not answer; what it held is lost")
    return done


def prepare() -> None:
    """Build what a forked child needs now, before its first request has to wait for it."""
    _default.current()


def flush(at_most: float) -> None:
    """Send what ``configure()`` still holds; does nothing without it.

    Takes up to ``at_most`` seconds and up to half of the time that the shutdown has.  Time that it spends without
    success is taken from the shutdown's, so that both together keep to that limit.
    """
    pipeline, settings = _default.pipeline, _default.settings
    if pipeline is None or settings is None or _default.pid != os.getpid():
        return
    # On a thread of its own, because force_flush() of the SDK may exceed its timeout (13.6 s instead of 1 s, #4568).
    worker = Thread(target=pipeline.flush, args=(settings.shutdown_timeout,), name="otel-lifecycle-flush", daemon=True)
    began = monotonic()
    worker.start()
    worker.join(min(at_most, settings.shutdown_timeout / 2))
    _default.spent = monotonic() - began if worker.is_alive() else 0.0


def _at_exit() -> None:
    shutdown()
