"""From traces and event logs that people already have to a table with a row per request.

    sources      bytes -> spans, counting what could not be read
    requests     a span -> the verdict on its request
    events       a raw event log -> the same
    row          a span and its verdict -> its row; `schema` describes the columns
    store        the rows in DuckDB, which users can export and ask

`otel_lifecycle.read_requests`, the command line and the live page stand on this.
"""
