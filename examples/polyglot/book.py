"""The till: each order is booked once, in one transaction with its key."""

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import threading
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SCHEMA = """
create table if not exists booking (number integer primary key, key text not null unique, cents int not null);
create table if not exists till (only int primary key check (only = 1), cents int not null);
insert or ignore into till values (1, 0);
"""


def is_signed(headers: Message, body: bytes, secret: bytes, now: float) -> bool:
    """Whether the request is postroad's, and not old: https://www.standardwebhooks.com"""
    stamp = headers.get("webhook-timestamp", "")
    if not stamp.isdecimal() or abs(now - int(stamp)) > 300:
        return False
    signed = f"{headers.get('webhook-id')}.{stamp}.".encode() + body
    wanted = b"v1," + base64.b64encode(hmac.digest(secret, signed, hashlib.sha256))
    return any(hmac.compare_digest(one.encode(), wanted) for one in headers.get("webhook-signature", "").split())


def book(database: sqlite3.Connection, key: str, cents: int) -> int:
    """The number of the booking; that of the first if the key comes again. Durable when this returns."""
    with database:
        if database.execute("insert or ignore into booking (key, cents) values (?, ?)", (key, cents)).rowcount:
            database.execute("update till set cents = cents + ?", (cents,))
        return int(database.execute("select number from booking where key = ?", (key,)).fetchone()[0])


class Till(BaseHTTPRequestHandler):
    """Answers deliveries, each in a thread; one of them books at a time."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30  # of a client that says no more
    secret = b""
    database: sqlite3.Connection
    lock = threading.Lock()

    def do_POST(self) -> None:
        """One attempt."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_signed(self.headers, body, self.secret, time.time()):
            return self.answer(401, {"title": "not signed"})
        task = json.loads(body)
        cents = task["results"].get("price", {}).get("cents")
        if not isinstance(cents, int) or not isinstance(task["payload"], dict):
            return self.answer(422, {"title": "no price to book"})
        with self.lock:
            number = book(self.database, task["idempotency_key"], cents)
        self.answer(200, {"booking": number})

    def answer(self, status: int, told: object) -> None:
        """Send ``told`` as JSON."""
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing of good requests."""


if __name__ == "__main__":
    Till.secret = base64.b64decode(os.environ["ORDERS_SECRET"].removeprefix("whsec_"))
    Till.database = sqlite3.connect(os.environ.get("BOOK_FILE", "bookings.db"), check_same_thread=False)
    Till.database.executescript(SCHEMA)
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("BOOK_PORT", "7002"))), Till).serve_forever()
