"""The command line ``otel-lifecycle``: from traces people already have to a verdict on the workload.

    sources      bytes -> spans, counting what could not be read
    requests     a span -> one request
    table        a request -> its row of the table, which users can export and ask
    analysis     the table -> the figures of a workload, in SQL
    diagnosis    a workload -> the next place to look
    comparison   two workloads -> a verdict per figure
    render       any of them -> terminal, JSON, CSV, HTML; with `events` (raw logs) and `trace` (one request) beside

Each layer takes values from the one before and returns values; only ``sources`` reads and only ``commands`` prints.
"""
