"""Names for annotations."""

from otel_lifecycle._request.clock import AtNs
from otel_lifecycle._request.handle import Request
from otel_lifecycle._request.streams import Counter as TokenCounter

__all__ = ["AtNs", "Request", "TokenCounter"]
