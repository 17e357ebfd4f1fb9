"""An open page of the viewer that draws nothing: `viewer_page.py PORT [--notes]`, until a line comes on standard input.

Prints what it was shown; with `--notes` also each policy, as it comes. Imports neither ksim nor JAX, so
that it costs the machine little.
"""

import importlib.metadata
import json
import os
import re
import select
import sys
import threading
import time

import msgspec.msgpack
import zstandard
from websockets.sync.client import connect

CAMERA = {
    "type": "ViewerCameraMessage",
    "wxyz": (1, 0, 0, 0),
    "position": (3, 3, 3),
    "fov": 1.0,
    "near": 0.1,
    "far": 100.0,
    "image_height": 800,
    "image_width": 1200,
    "look_at": (0, 0, 0),
    "up_direction": (0, 0, 1),
}


def print_policies(address: str) -> None:
    """Prints each policy that the page's badge names, as it comes."""
    last = None
    with connect(address, compression=None) as socket:
        for state in socket:
            policy = re.search(r"policy of iteration \d+", json.loads(state)["text"])
            if policy and policy[0] != last:
                last = policy[0]
                print(last, flush=True)


def main() -> None:
    """Receives, and then prints the mean real-time factor and the data rate."""
    os.nice(10)
    num_bytes, factors, start_s = 0, [], time.monotonic()
    protocol = f"viser-v{importlib.metadata.version('viser')}"
    address = f"ws://127.0.0.1:{sys.argv[1]}"
    if "--notes" in sys.argv:
        threading.Thread(target=print_policies, args=[f"{address}/ksim/controls"], daemon=True).start()
    with connect(address, subprotocols=[protocol], compression=None, max_size=None) as socket:  # type: ignore[list-item]
        socket.send(msgspec.msgpack.encode(CAMERA))
        while not select.select([sys.stdin], [], [], 0)[0]:
            try:
                content = socket.recv(timeout=0.5)
            except TimeoutError:
                continue
            assert isinstance(content, bytes)
            num_bytes += len(content)
            # As viser sends: the lengths of a message and of what it is compressed to, then that.
            text = zstandard.decompress(content[16 : 16 + int.from_bytes(content[8:16], "little")])
            factors += [float(x) for x in re.findall(rb"real-time factor ([0-9.]+)", text)]
    factor = f"{sum(factors) / len(factors):.2f}" if factors else "unknown"
    print(f"real-time factor {factor}, {num_bytes / (time.monotonic() - start_s) / 1000:.0f} kB/s")


if __name__ == "__main__":
    main()
