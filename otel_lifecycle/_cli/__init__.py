"""The command line ``otel-lifecycle``: from traces people already have to a verdict on the workload.

    render       a result -> a document of sections -> terminal, Markdown, page, JSON, CSV, JUnit
    commands     arguments -> the steps below -> a document that is shown

The steps are packages of their own: `otel_lifecycle._table` makes rows, `otel_lifecycle._analysis` makes figures, a
diagnosis and a comparison from them; one request, the live page and the doctor stand beside these.  Only ``commands``
and ``render.output`` print.
"""
