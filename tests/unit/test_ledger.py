"""In which order the ledger hands out what is to be saved."""

from scheduler.model.events import Save, Turn, WriteLog
from scheduler.model.jobs import End, LogRow, SaveRow, Want
from scheduler.policy.ledger import Ledger

END = End(7, 1, 100_000, "here", 99, None)
ROW = SaveRow(8, 1, "failed", outcome="failed")
WANT = Want("noop", "default", "", False, 1)


def log(text: str) -> LogRow:
    return LogRow(7, "LOG", "here", "noop", 99, text)


def test_what_was_logged_of_a_job_is_written_before_its_end() -> None:
    ledger = Ledger()
    ledger.log(first := log("first"))
    assert ledger.next_request([WANT]) == WriteLog([first])
    ledger.answered()
    ledger.log(last := log("last words"))
    ledger.ends.append(END)
    ledger.save(ROW, ())
    assert ledger.next_request([WANT]) == Turn([], [WANT])
    ledger.answered()
    assert ledger.next_request([WANT]) == WriteLog([last])
    ledger.answered()
    assert ledger.next_request([WANT]) == Save([ROW], [])
    ledger.answered()
    assert ledger.next_request([WANT]) == Turn([END], [WANT])


def test_endless_logs_hold_up_no_end() -> None:
    ledger = Ledger()
    ledger.ends.append(END)
    ledger.log(log("first"))
    assert isinstance(ledger.next_request([]), WriteLog)
    ledger.answered()
    ledger.log(log("more"))
    assert ledger.next_request([]) == Turn([END], [])
