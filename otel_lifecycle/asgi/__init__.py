"""ASGI: each request of chosen routes, followed from where it enters the process to the end of its response."""

from otel_lifecycle.asgi._middleware import LifecycleMiddleware
from otel_lifecycle.asgi._routes import OPENAI_ROUTES, Route

__all__ = ["OPENAI_ROUTES", "LifecycleMiddleware", "Route"]
