"""The dashboard: pages that a server renders, drawn anew when the database announces a change.

It reads as the commands of people do, by the statements of schema/cli.sql and schema/web.sql, and changes nothing but
by command rows. Nothing of the product imports it: `drover web` starts it by its name, see cli/web_and_metrics.py.
"""
