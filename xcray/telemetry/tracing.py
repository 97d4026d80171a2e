"""Traces: what a request or an attempt did when, as OpenTelemetry spans; of a job in one trace, from its submission to its end.

Off, and then nearly free, unless OTEL_EXPORTER_OTLP_ENDPOINT (or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) is set and the extra
`telemetry` is installed. Everything else is set by the usual OTEL_ variables: headers, time limit, sampling, resource attributes.
"""

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
HEADER: Final = "traceparent"
LAST_SECONDS: Final = 3.0  # that the end of a process may wait for its last spans to be taken

_NOTHING: Final[AbstractContextManager[Any]] = contextlib.nullcontext()
_tracer: Any = None
_provider: Any = None


def switch_on(service: str, processor: Any = None) -> bool:
    """Trace from now on when the environment asks for it; whether that is so.

    service: what traces call this process, where OTEL_SERVICE_NAME does not. processor: takes the spans instead of an exporter.
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
            "traces are asked for, but OpenTelemetry is not installed: pip install 'xcray[telemetry]'"
        )
        return False
    name = os.environ.get("OTEL_SERVICE_NAME", service)
    _provider = TracerProvider(
        resource=Resource.create({"service.name": name}), shutdown_on_exit=False
    )
    _provider.add_span_processor(processor or _exporting())
    _tracer = _provider.get_tracer("xcray")
    return True


def switch_off() -> None:
    """Trace no more; what was is handed over, if somebody takes it within LAST_SECONDS."""
    global _tracer, _provider
    provider, _tracer, _provider = _provider, None, None
    if provider is not None:
        last = threading.Thread(
            target=provider.shutdown, name="xcray-traces", daemon=True
        )  # it tries again and again
        last.start()
        last.join(LAST_SECONDS)


def is_on() -> bool:
    """Whether spans are made."""
    return _tracer is not None


def span(
    name: str, *, parent: str | None = None, kind: str = "INTERNAL", **attributes: Any
) -> AbstractContextManager[Any]:
    """A span around a block, child of the one around it, or of `parent` (a traceparent). The block gets it, or None when off."""
    return _NOTHING if _tracer is None else _span(name, parent, kind, attributes)


def carried() -> dict[str, str]:
    """What takes the present span to another process: {"traceparent": ...}; empty without one."""
    if _tracer is None:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    out: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(out)
    return {name: value for name, value in out.items() if name == HEADER}


def trace_id() -> str | None:
    """The present trace, in hexadecimal digits."""
    found = carried().get(HEADER)
    return None if found is None else found.split("-")[1]


def happened(
    name: str,
    seconds: float,
    *,
    parent: str | None = None,
    until: float | None = None,
    **attributes: Any,
) -> None:
    """A span that took so long, until now or `until` (Unix seconds)."""
    if _tracer is None:
        return
    end = time.time_ns() if until is None else int(until * 1e9)
    _tracer.start_span(
        name, _context(parent), attributes=_given(attributes), start_time=end - int(seconds * 1e9)
    ).end(end)


class Phases:
    """Spans that follow each other: the phases of an attempt."""

    def __init__(self) -> None:
        self._span: Any = None

    def at(self, phase: str) -> None:
        """The phase that begins now; the one before ends."""
        self.close()
        if _tracer is not None:
            self._span = _tracer.start_span(phase)

    def close(self) -> None:
        """No phase any more."""
        if self._span is not None:
            self._span.end()
            self._span = None


@contextlib.contextmanager
def _span(name: str, parent: str | None, kind: str, attributes: dict[str, Any]) -> Iterator[Any]:
    """See `span`. Errors are noted by their class alone: messages hold what people sent."""
    from opentelemetry.trace import SpanKind, Status, StatusCode

    how: dict[str, Any] = {"kind": SpanKind[kind], "attributes": _given(attributes)}
    quiet = {"record_exception": False, "set_status_on_exception": False}
    with _tracer.start_as_current_span(name, _context(parent), **how, **quiet) as made:
        try:
            yield made
        except Exception as error:
            made.set_attribute("error.type", type(error).__name__)
            made.set_status(Status(StatusCode.ERROR))
            raise


def _context(parent: str | None) -> Any:
    """The context of a traceparent; the present one without it, or when it can't be read."""
    if parent is None:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: parent})


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes that have a value, by dotted names: job_id is xcray.job_id."""
    return {f"xcray.{name}": value for name, value in attributes.items() if value is not None}


def _exporting() -> Any:
    """Spans in batches to OTLP over HTTP, as the environment says."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return BatchSpanProcessor(OTLPSpanExporter())


def _is_disabled() -> bool:
    """OTEL_SDK_DISABLED=true."""
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
