"""A process answers on its paths, and its metrics hold the series that every process has.

Arguments: base URL, paths. The certificate is not checked: this asks whether it answers, not who it is.
"""

# ruff: noqa: S310, S323, T201
import os
import ssl
import sys
import urllib.request

SERIES = ("bkheal_build_info", "bkheal_zookeeper_session_connected")
base, *paths = sys.argv[1:]
token = os.environ.get("TOKEN")
headers = {"Authorization": f"Bearer {token}"} if token else {}
context = ssl._create_unverified_context() if base.startswith("https") else None
for path in paths:
    request = urllib.request.Request(base + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        text = answer.read().decode()
    print(path, answer.status)
    missing = [name for name in SERIES if path == "/metrics" and name not in text]
    if missing:
        sys.exit(f"{base}{path} has no {', '.join(missing)}")
