"""Entries of a round in a table that loses, lists and refuses."""

import pytest
from bench_decision import CountedTable, MemoryTable

from lagom_jax.runtime.protocol import Entry, Get, Put, StoreAnswer, Word
from lagom_jax.runtime.store import KeyValueStore, RoundEntries

COUNT = 64


class Unlisted(MemoryTable):
    def listed(self, folder):
        return StoreAnswer.LOST


class Calls(MemoryTable):
    """A table that counts how often it is asked."""

    def __init__(self):
        super().__init__()
        self.gets = self.lists = 0

    def get(self, key, seconds=0.0):
        self.gets += 1
        return super().get(key, seconds)

    def listed(self, folder):
        self.lists += 1
        return super().listed(folder)


def says(table, member):
    RoundEntries(table, "room").put(Put(Entry.WORD, member, Word(f"word {member}")))


def reads(entries, member):
    return entries.get(Get(Entry.WORD, member, waits=True), 1.0)


@pytest.mark.parametrize("kind", [MemoryTable, Unlisted])
def test_words_are_read_whether_they_can_be_listed_or_not(kind):
    table = kind()
    for member in range(COUNT):
        says(table, member)
    entries = RoundEntries(table, "room")
    found = [reads(entries, member) for member in range(COUNT)]
    assert found == [Word(f"word {member}") for member in range(COUNT)]
    assert reads(entries, COUNT) is StoreAnswer.NOTHING


def test_all_words_that_are_there_come_at_once():
    table = Calls()
    for member in range(COUNT):
        says(table, member)
    entries = RoundEntries(table, "room")
    for member in range(COUNT):
        reads(entries, member)
    assert (table.lists, table.gets) == (1, 0)


def test_words_that_come_one_by_one_pass_a_few_times_at_most():
    table = CountedTable(MemoryTable())
    entries = RoundEntries(table, "room")
    for member in range(COUNT):
        says(table, member)
        assert reads(entries, member) == Word(f"word {member}")
    written = sum(len(value) for value in table._table._values.values())
    assert table.moved < 5 * written


def test_words_of_other_rounds_are_not_taken_for_ours():
    table = MemoryTable()
    RoundEntries(table, "room.10").put(Put(Entry.WORD, 0, Word("theirs")))
    entries = RoundEntries(table, "room.1")
    assert entries.get(Get(Entry.WORD, 0, waits=True), 0.0) is StoreAnswer.NOTHING


class Client:
    """A client of a jax that has no lists of values, or whose service refuses."""

    def key_value_try_get_bytes(self, key):
        raise RuntimeError("NOT_FOUND: no such key")


class Refusing(Client):
    def key_value_dir_get_bytes(self, folder):
        raise RuntimeError("UNAVAILABLE: failed to connect")


@pytest.mark.parametrize("client", [Client(), Refusing()])
def test_a_service_that_lists_nothing(client):
    store = KeyValueStore(client)
    assert store.listed("room/word/") is StoreAnswer.LOST
    assert store.get("room/word/0") is StoreAnswer.NOTHING
