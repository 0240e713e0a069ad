"""An S3 server on loopback (moto), in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KEY_ID: Final = "AKIDLOOPBACK"
SECRET: Final = "secret-of-the-loopback-store"
CREDENTIALS: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": KEY_ID,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""The environment variables with the credentials of clients."""
_SERVER: Final = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server(requests: Path) -> Iterator[str]:
    """Yield the address of a server. It ends with this process, when its input closes.

    Args:
        requests: file for its log, with a line for each request.
    """
    command = [sys.executable, "-c", _SERVER]
    with (
        requests.open("w") as log,
        subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        finally:
            server.kill()
