"""Drop-in instrumentors, one for each engine; nothing here is loaded until it is asked for.

They need ``opentelemetry-instrumentation``, which comes with the extra of each engine, such as
``pip install otel-lifecycle[litserve]``.
"""
