#!/usr/bin/env python3
"""drover-agent-NAME: counts the lines of a file. An agent of drover(8); drover-agent(7) is its author's manual.

The module drover_agent, beside this file, speaks the protocol: it says OK, reads the next item, and ends with the
scheduler. Nothing else may read standard input.
"""

import drover_agent


def work(item: drover_agent.Item) -> None:
    """Do one item. Replace this by your own work."""
    path = item["path"] if item.columns else item.line  # a row of a query has columns; one parameter is the whole line
    with open(path, "rb") as file:
        lines = sum(1 for _ in file)
    drover_agent.result({"lines": lines})  # stored with the job; for rows of a query there is drover_agent.db()


for item in drover_agent.items():
    try:
        work(item)
    except OSError as error:  # this item cannot be done; the next one can
        item.fail(f"{type(error).__name__}: {error}")
    except (ValueError, KeyError) as error:  # nor later: a job that fails so is not tried again
        item.fail(f"{type(error).__name__}: {error}", final=True)
