"""What the meeting decides, spoken to frame by frame."""

import contextlib
import select
import socket

import pytest

from lagom_jax.regions import Meeting
from lagom_jax.regions.frames import Frame, Kind, read_frame, unpack


@pytest.fixture
def meet():
    """Connects processes of regions to a meeting of two regions."""
    with contextlib.ExitStack() as stack:
        meeting = stack.enter_context(Meeting(("127.0.0.1", 0), 2, patience=1.0))

        def connect(region, process, processes=2, since=1):
            connection = stack.enter_context(
                socket.create_connection(meeting.address, timeout=20)
            )
            if since is not None:
                send(connection, Kind.JOIN, since, region, process, processes)
            return connection

        yield connect


def send(connection, *frame, **more):
    connection.sendall(Frame(*frame, **more).to_bytes())


def test_a_message_in_parts_counts_when_it_is_whole(meet):
    here = [meet(0, n) for n in range(2)]
    there = [meet(1, n) for n in range(2)]
    for part, connection in enumerate(here):
        send(connection, Kind.GIVE, 1, 0, part, 2, data=b"1a%d" % part)
    # Only one of its two parts is there in time.
    send(there[0], Kind.GIVE, 1, 1, 0, 2, data=b"1b0")
    for part, connection in enumerate([*here, there[0]]):
        answer = read_frame(connection)
        assert (answer.kind, answer.number) == (Kind.RESULT, 1)
        own = b"" if part < 2 else b"1a0"
        assert unpack(answer.data) == {0: own}
    # Whoever is late takes in the same.
    send(there[1], Kind.GIVE, 1, 1, 1, 2, data=b"1b1")
    assert unpack(read_frame(there[1]).data) == {0: b"1a1"}
    for region, connections in enumerate((here, there)):
        for part, connection in enumerate(connections):
            send(connection, Kind.GIVE, 2, region, part, 2, data=b"1%d" % part)
    assert unpack(read_frame(here[1]).data) == {0: b"", 1: b"11"}


def test_states_of_other_steps_are_asked_for_again(meet):
    donors = [meet(0, n) for n in range(2)]
    asking = [meet(1, n, since=None) for n in range(2)]
    for n, connection in enumerate(asking):
        send(connection, Kind.ASK, 0, 1, n, 2)
    first = [read_frame(connection) for connection in donors]
    assert {frame.number for frame in first} == {first[0].number}
    for n, connection in enumerate(donors):
        send(connection, Kind.STATE, 4, 1, n, 2, step=11 + n, data=b"%d" % n)
    again = [read_frame(connection) for connection in donors]
    assert again[0].kind == again[1].kind == Kind.ASK
    assert again[0].number == again[1].number > first[0].number
    for n, connection in enumerate(donors):
        send(connection, Kind.STATE, 9, 1, n, 2, step=30, data=b"%d" % n)
    for n, connection in enumerate(asking):
        state = read_frame(connection)
        assert (state.kind, state.step, state.data) == (Kind.STATE, 30, b"%d" % n)


def test_nobody_is_waited_for_whose_region_has_lost_a_process(meet):
    here = [meet(0, n) for n in range(2)]
    there = [meet(1, n) for n in range(2)]
    there[1].close()
    for part, connection in enumerate(here):
        send(connection, Kind.GIVE, 1, 0, part, 2, data=b"1")
    # The other half is there, and gives what it has.
    send(there[0], Kind.GIVE, 1, 1, 0, 2, data=b"1")
    assert unpack(read_frame(here[0]).data) == {0: b""}


def test_another_number_of_parts_is_refused(meet):
    here, there = meet(0, 0, 1), meet(1, 0, 1)
    send(here, Kind.GIVE, 1, 0, 0, 1, data=b"1")
    send(there, Kind.GIVE, 1, 1, 0, 2, data=b"1")
    # Either may be heard first; it is the other that differs.
    (refused, *_), _, _ = select.select([here, there], [], [], 20)
    answer = read_frame(refused)
    assert answer.kind == Kind.REFUSED
    assert "cut alike" in answer.data.decode()
