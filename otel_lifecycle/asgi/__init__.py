"""ASGI: each request of chosen routes, followed from where it enters the process to the end of its response."""

from otel_lifecycle._http.routes import OPENAI_ROUTES, Messages, Route
from otel_lifecycle.asgi._middleware import LifecycleMiddleware

__all__ = ["OPENAI_ROUTES", "LifecycleMiddleware", "Messages", "Route"]
