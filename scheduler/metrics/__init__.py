"""The exporter for Prometheus: what the database knows of the queue, of the daemons and of their agents, as metrics.

It reads as drover_readonly may, by the statements of schema/metrics.sql, and the daemon knows nothing of it. Nothing of
the product imports it: `drover metrics` starts it by its name, see cli/web_and_metrics.py.
"""
