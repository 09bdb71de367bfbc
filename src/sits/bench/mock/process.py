"""Run a mock endpoint in a process of its own, and run one in this process until stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from sits.bench.mock.script import Script
from sits.bench.mock.server import MockServer, MockSettings
from sits.errors import SitsError


def run_event_loop(main: Any) -> Any:
    """``asyncio.run`` on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def serve(
    settings: MockSettings,
    host: str,
    port: int,
    ssl_context: Any = None,
    announce: Callable[[int], None] | None = None,
) -> None:
    """Serve until cancelled; ``announce(port)`` is called once it listens."""
    server = MockServer(settings)
    bound = await server.start(host, port, ssl_context)
    if announce is not None:
        announce(bound)
    try:
        await server.serve_forever()
    finally:
        await server.close()


@contextlib.contextmanager
def mock_process(script: str = "ttft=0,itl=0", slots: int = 0, core: int | None = None) -> Iterator[str]:
    """A mock server in a child process; yields its base URL. ``core`` pins it to one CPU core.

    Raises ``SitsError`` when it does not start. The child ends with its parent: it stops when stdin closes.
    """
    command = [sys.executable, "-m", "sits.bench.mock.process", script, str(slots), "" if core is None else str(core)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        if not line.startswith("port "):
            raise SitsError("the built-in loopback server did not start", "Run `sits mock-server` to see why")
        yield f"http://127.0.0.1:{int(line.split()[1])}"
    finally:
        child.terminate()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


def _child(script: str, slots: str, core: str) -> None:
    if core and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {int(core)})
    settings = MockSettings(script=Script().override(script), slots=int(slots))

    async def main() -> None:
        asyncio.get_running_loop().add_reader(0, lambda: os._exit(0))
        await serve(settings, "127.0.0.1", 0, announce=lambda port: print(f"port {port}", flush=True))

    run_event_loop(main())


if __name__ == "__main__":
    _child(*sys.argv[1:4])
