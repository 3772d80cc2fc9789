"""`steers_terminals.py HEX`: puts these bytes wherever text of an agent is shown or stored, behind OK too."""

import os
import sys

ugly = bytes.fromhex(sys.argv[1])
print("OK", flush=True)
for _ in sys.stdin:
    os.write(2, b"stderr " + ugly + b"\n")
    for keyword in (b"LOG ", b"WARNING ", b"ERROR ", b"FATAL ", b"ECHO ", b"", b"RESULT ", b"FAIL ", b"BLOCKED", b"OK"):
        os.write(1, keyword + ugly + b"\n")
    os.write(1, b"FAIL last " + ugly + b"\nOK\n")
