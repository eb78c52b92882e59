"""Public names for annotations; the classes live in private modules and may move there."""

from otel_lifecycle._configuration.setting_keywords import SettingKeywords
from otel_lifecycle._request.clock import AtNs
from otel_lifecycle._request.conditions import ConditionKeywords
from otel_lifecycle._request.handle import Request
from otel_lifecycle._request.streams import Counter as TokenCounter

__all__ = ["AtNs", "ConditionKeywords", "Request", "SettingKeywords", "TokenCounter"]
