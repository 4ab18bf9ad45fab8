"""A proxy that adds latency to a server on this machine.

Every piece of a response reaches the client `latency` milliseconds after the server sent it. Pieces
follow each other at the server's own speed, so each request waits longer, but the transfer of bytes
does not take longer.

    python benchmarks/late_proxy.py 9000 30        prints the port on which it listens
"""

from __future__ import annotations

import asyncio
import sys

HOST = "127.0.0.1"
_PIECE_BYTES = 1 << 16


async def serve(server_port: int, latency_s: float) -> None:
    """Serve until the process ends."""

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection(HOST, server_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, requests), _pass_late(answers, writer, latency_s))

    listening = await asyncio.start_server(client, HOST, 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    async with listening:
        await listening.serve_forever()


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        sink.close()


async def _pass_late(
    source: asyncio.StreamReader, sink: asyncio.StreamWriter, latency_s: float
) -> None:
    """Forward pieces in order, each when its time has come."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        piece = b"begin"
        while piece:
            try:
                piece = await source.read(_PIECE_BYTES)
            except ConnectionError:
                piece = b""
            waiting.put_nowait((loop.time() + latency_s, piece))

    taking = asyncio.create_task(take())
    try:
        while True:
            due, piece = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                break
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        pass
    finally:
        taking.cancel()
        sink.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1000))
