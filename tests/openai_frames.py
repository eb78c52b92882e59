"""Frames as OpenAI-compatible servers send them, for the tests that read and feed them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def chat(
    delta: Mapping[str, Any], *, index: int = 0, finish_reason: str | None = None, **choice: Any
) -> dict[str, Any]:
    """Build a chat-completion chunk of one choice."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": "served-model",
        "choices": [{"index": index, "delta": dict(delta), "finish_reason": finish_reason, **choice}],
    }


def completion(text: str, *, index: int = 0, finish_reason: str | None = None, **choice: Any) -> dict[str, Any]:
    """Build a completion chunk of one choice."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "served-model",
        "choices": [{"index": index, "text": text, "finish_reason": finish_reason, **choice}],
    }


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    """Build the frame that closes a stream with ``include_usage``."""
    details = None if cached is None else {"cached_tokens": cached}
    figures = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {**chat({}), "choices": [], "usage": {**figures, "prompt_tokens_details": details}}


def sse(body: Mapping[str, Any]) -> str:
    """Send a frame as the server-sent event it travels in."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def as_object(value: Any) -> Any:
    """Turn mappings into objects with attributes, as client models have them."""
    if isinstance(value, Mapping):
        return SimpleNamespace(**{name: as_object(item) for name, item in value.items()})
    return [as_object(item) for item in value] if isinstance(value, list) else value
