"""`honestly watch`: a local page that shows a running study or federation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

EPILOG = """\
DIR is the folder of a study (honestly bench ... --out DIR), of a run (honestly simulate ... --out DIR), of several
runs, or the history of a federation (RobustFedAvg(history=DIR)). It need not exist yet.

Only this machine can see the page. From another one, use a tunnel: ssh -L 8765:127.0.0.1:8765 HOST
"""


def add(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "watch",
        help="serve a local page that shows a running study or federation",
        description="Serve a local page that shows a running study or federation.",
        epilog=EPILOG,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a study, a run or several runs")
    parser.add_argument("--port", type=int, help="the port to listen on (default: 8765; 0: any free port)")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: this machine only)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.set_defaults(run=run, extra="watch")


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C; the exit status."""
    from honestly.show.live.guard import is_loopback
    from honestly.show.live.server import PORT, address, listen, make_server

    folder: Path = args.folder
    port = PORT if args.port is None else args.port
    if not 0 <= port <= 65535:
        raise ValueError(f"--port {port}: must be from 0 to 65535")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: give the folder of a study or of a run")
    with listen(args.host, port) as sock:
        url = address(sock, args.host)

        def started() -> None:
            print(f"watching {folder} at {url} (Ctrl-C ends it)", flush=True)
            if not is_loopback(args.host):
                print(
                    f"honestly: --host {args.host}: anybody who can reach this machine sees the page", file=sys.stderr
                )
            if args.open:
                _open(url)

        try:
            make_server(folder, sock, host=args.host, started=started).run(sockets=[sock])
        except KeyboardInterrupt:  # the way to end it
            print("stopped", file=sys.stderr)
    return 0


def _open(url: str) -> None:
    import threading
    import webbrowser

    # some browsers block the caller until they are closed
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
