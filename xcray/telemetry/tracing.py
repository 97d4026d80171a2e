"""Traces of requests and attempts as OpenTelemetry spans; a job's spans form one trace."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

LOG: Final = logging.getLogger(__name__)
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
TRACEPARENT: Final = "traceparent"
FLUSH_SECONDS: Final = 3.0  # limit on the wait for the last spans at the end of a process

_NO_SPAN: Final[AbstractContextManager[Any]] = contextlib.nullcontext()
_tracer: Any = None
_provider: Any = None


def enable_tracing(service: str, processor: Any = None) -> bool:
    """Enable tracing if the environment asks for it; return whether it is enabled.

    service: the service name, unless OTEL_SERVICE_NAME sets one. processor: receives the spans
    instead of an exporter.
    """
    global _tracer, _provider
    if _tracer is not None:
        return True
    if processor is None and (
        not any(os.environ.get(name) for name in ENDPOINTS) or _is_disabled()
    ):
        return False
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ModuleNotFoundError:
        LOG.warning(
            "tracing is configured, but OpenTelemetry is not installed:"
            " pip install 'xcray[telemetry]'"
        )
        return False
    name = os.environ.get("OTEL_SERVICE_NAME", service)
    _provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    _provider.add_span_processor(processor or _otlp_processor())
    _tracer = _provider.get_tracer("xcray")
    return True


def disable_tracing() -> None:
    """Disable tracing; export remaining spans for at most FLUSH_SECONDS."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        # the exporter retries for a long time
        flush = threading.Thread(target=provider.shutdown, name="xcray-traces", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def is_enabled() -> bool:
    """Return whether spans are recorded."""
    return _tracer is not None


def span(
    name: str, *, parent: str | None = None, kind: str = "INTERNAL", **attributes: Any
) -> AbstractContextManager[Any]:
    """Return a span around a block, as a child of the current one or of `parent` (a traceparent).

    The block gets the span, or None if tracing is off.
    """
    return _NO_SPAN if _tracer is None else _span(name, parent, kind, attributes)


def trace_headers() -> dict[str, str]:
    """Return the header that carries the current span to another process, or an empty dict."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    out: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(out)
    return {name: value for name, value in out.items() if name == TRACEPARENT}


def current_trace_id() -> str | None:
    """Return the id of the current trace in hexadecimal, or None."""
    header = trace_headers().get(TRACEPARENT)
    return None if header is None else header.split("-")[1]


def record_span(
    name: str,
    seconds: float,
    *,
    parent: str | None = None,
    until: float | None = None,
    **attributes: Any,
) -> None:
    """Record a span of `seconds` that ended now or at `until` (Unix seconds)."""
    if _tracer is None:
        return
    end = time.time_ns() if until is None else int(until * 1e9)
    _tracer.start_span(
        name,
        _parent_context(parent),
        attributes=_prefix_attributes(attributes),
        start_time=end - int(seconds * 1e9),
    ).end(end)


class PhaseSpans:
    """Consecutive spans: the phases of an attempt."""

    def __init__(self) -> None:
        self._span: Any = None

    def enter(self, phase: str) -> None:
        """End the previous phase and start the next."""
        self.close()
        if _tracer is not None:
            self._span = _tracer.start_span(phase)

    def close(self) -> None:
        """End the current phase."""
        if self._span is not None:
            self._span.end()
            self._span = None


@contextlib.contextmanager
def _span(name: str, parent: str | None, kind: str, attributes: dict[str, Any]) -> Iterator[Any]:
    """Implement `span`. Errors are recorded by class only: their messages can contain user data."""
    from opentelemetry.trace import SpanKind, Status, StatusCode

    options: dict[str, Any] = {"kind": SpanKind[kind], "attributes": _prefix_attributes(attributes)}
    no_exceptions = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(
        name, _parent_context(parent), **options, **no_exceptions
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_attribute("error.type", type(error).__name__)
            current.set_status(Status(StatusCode.ERROR))
            raise


def _parent_context(parent: str | None) -> Any:
    """Return the context of a traceparent, or the current one if it is missing or invalid."""
    if parent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({TRACEPARENT: parent})


def _prefix_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value, prefixed: job_id becomes xcray.job_id."""
    return {f"xcray.{name}": value for name, value in attributes.items() if value is not None}


def _otlp_processor() -> Any:
    """Return a batch processor that exports to OTLP over HTTP, as the environment configures."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())


def _is_disabled() -> bool:
    """Return whether OTEL_SDK_DISABLED is true."""
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
