"""The command line ``otel-lifecycle``: from traces people already have to a verdict on the workload.

    analysis     the table of requests (`otel_lifecycle._table`) -> the figures of a workload, in SQL
    diagnosis    a workload -> the next place to look
    comparison   two workloads -> a verdict per figure
    render       any of them -> a document of sections -> terminal, Markdown, page, JSON, CSV, JUnit
    commands     arguments -> the steps above; the live page and the doctor are packages of their own

Each layer takes values from the one before and returns values; only ``commands`` and ``render.output`` print.
"""
