"""The lifecycle of inference requests as OpenTelemetry spans, metrics and attribution."""
