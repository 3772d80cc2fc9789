from tests.integration.daemon import *
import time


def test_a(launch, tmp_path):
    t = time.time()
    d = launch("[hosts.alpha]\nmax=4\n" + agent("rec", rec(tmp_path / "r")))
    print(time.time() - t)
    pk = d.insert(jq_type="rec", jq_args="http://x")
    print(d.wait(pk))
    print(time.time() - t)
    print(records(tmp_path / "r"), d.attempts(pk), d.agent_pids())
    d.stop()
    print(d.stderr())
    print(time.time() - t)
