"""Several processes of the intake: what cannot be kept running ends them all."""

import logging
import socket

import pytest

from postroad.cli.workers import Workers
from postroad.core.settings import Settings


async def test_processes_that_cannot_run_are_given_up_with_1(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("postroad.cli.supervisor.RESTARTS", 0)
    workers = Workers(Settings(port=0, workers=2), ["--gallop"])

    with caplog.at_level(logging.WARNING):
        assert await workers.run() == 1

    assert any("ended with code 2 and is not started again" in message for message in caplog.messages)


async def test_where_nobody_can_listen_none_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        workers = Workers(Settings(port=taken.getsockname()[1], workers=2), [])

        with pytest.raises(OSError, match="address already in use"):
            await workers.run()
