"""What the table of requests (`otel_lifecycle._table`) says about its workload.  Nothing here prints or draws.

    document     the table -> the figures of a workload; the modules beside it make its parts, mostly in SQL
    diagnosis    the figures of a workload -> the next place to look
    comparison   the workloads of two sides -> a verdict per figure

The command line shows all of them.
"""
