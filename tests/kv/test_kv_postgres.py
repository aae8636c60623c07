# SPDX-License-Identifier: Apache-2.0
"""The store in PostgreSQL, on a real server: lost connections and answers, interrupts, rights, places, replicas."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from compactlib.errors import InvalidInput, Unsupported
from compactlib.kv import (
    EXISTS,
    KeyNotFound,
    OutcomeUnknown,
    PostgresStore,
    PredicateFailed,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.errors import ConnectFailed
from compactlib.testing.kv import P
from compactlib.testing.stand_ins import in_threads
from tests.harness.kv.postgres_proxy import PostgresProxy
from tests.harness.kv.postgres_server import locked, new_table, postgres
from tests.harness.kv.processes import closed_in_a_child

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as uri:
        yield uri


@pytest.fixture
def store(server: str) -> Iterator[PostgresStore]:
    made = PostgresStore(server, table=new_table())
    yield made
    made.close()


def test_one_of_two_transactions_with_crossed_reads_fails(store: PostgresStore, server: str) -> None:
    """Write skew: each demands that the other's key is absent. Under snapshot isolation alone both would pass."""
    # Each through a store of its own, so that they do not share a transaction.
    stores = [store, PostgresStore(server, table=store.table)]
    for number in range(20):
        names = [b"a%d" % number, b"b%d" % number]
        outcomes: list[str] = []

        def claim(mine: int, names: list[bytes] = names, outcomes: list[str] = outcomes) -> None:
            try:
                stores[mine].transact({(b"p", names[1 - mine]): None}, {(b"p", names[mine]): b"x"})
                outcomes.append("won")
            except PredicateFailed:
                outcomes.append("lost")

        in_threads(2, claim)
        assert sorted(outcomes) == ["lost", "won"]
    stores[1].close()


def test_a_store_locked_by_others_raises_slow_down(store: PostgresStore, server: str) -> None:
    impatient = PostgresStore(server, table=store.table, busy_seconds=0.05)
    with locked(server, store.table), pytest.raises(SlowDown, match="lock timeout"):
        impatient.set(b"p", b"k", b"v")
    impatient.set(b"p", b"k", b"v")
    impatient.close()


def end_all_connections(server: str) -> None:
    """End the connections of a store, as a restart of the server, a failover or an idle time-out does."""
    with psycopg.connect(server, autocommit=True) as other:
        query = ("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
        other.execute(query.replace("SELECT pid", "SELECT pg_terminate_backend(pid)").encode())
        while other.execute(query.encode()).fetchall():
            pass


def idle_connections(store: PostgresStore, count: int) -> None:
    """Leave a number of connections idle, as concurrent readers do."""
    with contextlib.ExitStack() as lent:
        for _ in range(count):
            lent.enter_context(store._lent("test"))  # noqa: SLF001


def test_connections_that_the_server_ended_are_replaced(store: PostgresStore, server: str) -> None:
    """No call fails: the work is repeated on new connections."""
    store.set(P, b"k", b"v")
    calls: list[Callable[[], object]] = [
        lambda: store.get(P, b"k"), lambda: store.set_if(P, b"k", b"new", EXISTS), lambda: list(store.scan(P)),
        lambda: store.transact({(P, b"k"): EXISTS}, {(P, b"l"): b"w"})]
    for call in calls:
        idle_connections(store, 8)
        end_all_connections(server)
        for _ in range(10):
            call()
    assert store.get(P, b"k").value == b"new"


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_commit_whose_answer_is_lost_is_of_unknown_outcome(server: str, carried_out: bool) -> None:
    """And what breaks before the commit was not carried out, which is said too, unless a new connection helps."""
    table = new_table()
    direct = PostgresStore(server, table=table)
    # A socket's path must be short, and pytest's folders have long names.
    with TemporaryDirectory(prefix="pg-") as folder, PostgresProxy(server, Path(folder)) as proxy:
        store = PostgresStore(proxy.conninfo, table=table)
        for word in (b"BEGIN", b"INSERT"):
            direct.set(P, b"k", b"before")
            proxy.word, proxy.times, proxy.carried_out = word, 1, carried_out
            store.set_if(P, b"k", b"after", direct.get(P, b"k").predicate)
            assert direct.get(P, b"k").value == b"after", word
        for word, error in ((b"BEGIN", ConnectFailed), (b"INSERT", ConnectFailed), (b"COMMIT", OutcomeUnknown)):
            direct.set(P, b"k", b"before")
            predicate = direct.get(P, b"k").predicate
            proxy.word, proxy.times, proxy.carried_out = word, 1 if word == b"COMMIT" else 2, carried_out
            with pytest.raises(StoreFailed) as raised:
                store.set_if(P, b"k", b"after", predicate)
            assert type(raised.value) is error, word
            if word == b"COMMIT" and carried_out:
                # The server may be a moment behind the connection that broke.
                while direct.get(P, b"k").value == b"before":
                    pass
            else:
                assert direct.get(P, b"k").value == b"before", word
        assert store.get(P, b"k").value == (b"after" if carried_out else b"before")
        proxy.word, proxy.times = b"SELECT value", 1
        with pytest.raises(KeyNotFound):
            store.get(P, b"absent")
        proxy.word, proxy.times = b"SELECT value", 2
        with pytest.raises(StoreFailed) as raised:
            store.get(P, b"absent")
        assert not isinstance(raised.value, OutcomeUnknown)
        with pytest.raises(KeyNotFound):
            store.get(P, b"absent")
        store.close()
    direct.close()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C arrives, also in a process begun in the background, where a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("word", [b"BEGIN", b"INSERT", b"COMMIT"])
def test_a_write_after_an_interrupt_is_committed(server: str, word: bytes) -> None:
    """Not within the transaction that the interrupt has left open, which nobody ends."""
    table = new_table()
    direct = PostgresStore(server, table=table)
    with TemporaryDirectory(prefix="pg-") as folder, PostgresProxy(server, Path(folder)) as proxy:
        store = PostgresStore(proxy.conninfo, table=table)
        proxy.word, proxy.interrupts = word, True
        with pytest.raises(KeyboardInterrupt):
            store.set(P, b"k", b"interrupted")
        store.set(P, b"k", b"acknowledged")
        assert direct.get(P, b"k").value == b"acknowledged"
        store.close()
    direct.close()


@pytest.mark.parametrize("seconds", [0, 0.0004])
def test_a_store_with_hardly_any_patience_waits_for_no_lock(store: PostgresStore, server: str, seconds: float) -> None:
    """PostgreSQL takes 0 ms for no bound; here its own bound ends an endless wait."""
    impatient = PostgresStore(server + "%20-cstatement_timeout%3D5s", table=store.table, busy_seconds=seconds)
    with locked(server, store.table), pytest.raises(SlowDown, match="lock timeout"):
        impatient.set(P, b"k", b"v")
    impatient.close()


def test_a_failure_right_before_the_commit_is_not_acknowledged(store: PostgresStore,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction of psycopg whose connection was found broken ends without a commit, and without an error."""
    carry_out = PostgresStore._carry_out  # noqa: SLF001

    def carry_out_and_break(self: PostgresStore, connection: Any, *transaction: Any) -> Any:
        answer = carry_out(self, connection, *transaction)
        connection.pgconn.finish()
        return answer

    monkeypatch.setattr(PostgresStore, "_carry_out", carry_out_and_break)
    with pytest.raises(OutcomeUnknown):
        store.set(P, b"k", b"v")
    with pytest.raises(KeyNotFound):
        store.get(P, b"k")


def test_an_absent_server_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConnectFailed, match="check the address"):
        PostgresStore(f"host={tmp_path} dbname=none connect_timeout=2")


def test_a_table_of_a_later_release_is_refused(store: PostgresStore, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as other:
        other.execute(f"UPDATE {store.table} SET value = '2' WHERE partition = ''".encode())
    with pytest.raises(Unsupported, match="schema version b'2'"):
        PostgresStore(server, table=store.table)


def test_a_table_with_other_columns_is_refused(server: str) -> None:
    table = new_table()
    with psycopg.connect(server, autocommit=True) as other:
        other.execute(f"CREATE TABLE {table} (name text)".encode())
    with pytest.raises(StoreFailed):
        PostgresStore(server, table=table)


@pytest.mark.parametrize("writes", [True, False])
def test_an_existing_store_is_opened_without_the_right_to_create(store: PostgresStore, server: str, *,
                                                                        writes: bool) -> None:
    store.set(P, b"k", b"v")
    role, name = f"least_{store.table}", psycopg.conninfo.conninfo_to_dict(server)["dbname"]
    with psycopg.connect(server, autocommit=True) as owner:
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'least'; GRANT CONNECT ON DATABASE {name} TO {role}; "
                      f"GRANT SELECT ON {store.table} TO {role}".encode())
        if writes:
            owner.execute(f"GRANT INSERT, UPDATE, DELETE ON {store.table} TO {role}".encode())
    theirs = psycopg.conninfo.make_conninfo(server, user=role, password="least")
    with pytest.raises(StoreFailed, match="permission denied"):
        PostgresStore(theirs, table=new_table())
    with contextlib.closing(PostgresStore(theirs, table=store.table)) as opened:
        assert opened.get(P, b"k").value == b"v"
        if writes:
            opened.set(P, b"k", b"w")
        else:
            with pytest.raises(StoreFailed, match="permission denied"):
                opened.set(P, b"k", b"w")


@pytest.mark.parametrize("table", ["", "Upper", "a b", 'x"; drop table y; --', "a.b.c", "1a"])
def test_odd_table_names_are_refused(table: str) -> None:
    with pytest.raises(InvalidInput, match="table is"):
        PostgresStore("host=/nowhere", table=table)


def test_a_child_of_fork_must_open_its_own(store: PostgresStore) -> None:
    store.set(P, b"k", b"v")
    assert closed_in_a_child(store)
    assert store.get(P, b"k").value == b"v"


def test_a_table_and_a_copy_of_it_are_two_places(store: PostgresStore, server: str) -> None:
    store.set(P, b"k", b"v")
    place, copy = store.place(), new_table()
    assert place is not None
    assert place.startswith("PostgreSQL system ")
    with psycopg.connect(server, autocommit=True) as other:
        other.execute(f"CREATE TABLE {copy} AS SELECT * FROM {store.table}".encode())
        with contextlib.closing(PostgresStore(server, table=copy)) as copied:
            assert copied.get(P, b"k").value == b"v"
            assert copied.place() != place
        other.execute(f"VACUUM FULL {store.table}".encode())
    with contextlib.closing(PostgresStore(server, table=store.table)) as again:
        assert again.place() == place


def test_a_database_and_a_copy_of_it_are_two_places(store: PostgresStore, server: str) -> None:
    copy = store.table
    with psycopg.connect(server, autocommit=True) as other:
        other.execute(f"CREATE DATABASE {copy}".encode())
        with contextlib.closing(PostgresStore(psycopg.conninfo.make_conninfo(server, dbname=copy),
                                              table=store.table)) as elsewhere:
            assert elsewhere.place() != store.place()
        other.execute(f"DROP DATABASE {copy}".encode())


def test_a_role_without_rights_to_the_system_id_has_no_place(store: PostgresStore, server: str) -> None:
    with psycopg.connect(server, autocommit=True) as other:
        role = f"{store.table}_user"
        other.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public")
        other.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            other.execute(f"GRANT ALL ON {store.table} TO {role}".encode())
            with contextlib.closing(PostgresStore(psycopg.conninfo.make_conninfo(server, user=role),
                                                  table=store.table)) as humble:
                humble.set(P, b"k", b"v")
                assert humble.place() is None
        finally:
            other.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO public")


def test_a_server_that_became_a_replica_is_left_for_a_new_connection(server: str) -> None:
    """Connections that were made before the switch refuse all writes; new ones reach the server that takes them."""
    role = "switched"
    with psycopg.connect(server, autocommit=True) as owner:
        owner.execute("CREATE ROLE switched LOGIN SUPERUSER")
        owner.execute("ALTER ROLE switched SET default_transaction_read_only = on")
        table = new_table()
        PostgresStore(server, table=table).close()
        with contextlib.closing(PostgresStore(psycopg.conninfo.make_conninfo(server, user=role), table=table)) as store:
            idle_connections(store, 4)
            with pytest.raises(ConnectFailed, match="read-only transaction"):
                store.set(P, b"k", b"v")
            idle_connections(store, 4)
            owner.execute("ALTER ROLE switched RESET default_transaction_read_only")
            store.set(P, b"k", b"v")
            assert store.get(P, b"k").value == b"v"


def test_a_write_to_a_replica_is_for_a_new_connection() -> None:
    """A replica refuses serializable transactions, with an error of its own."""
    with postgres(becomes_replica=lambda uri: PostgresStore(uri, table="kv").close()) as replica, \
            contextlib.closing(PostgresStore(replica, table="kv")) as store:
        with pytest.raises(ConnectFailed, match="hot standby"):
            store.set(P, b"k", b"v")
        with psycopg.connect(replica, autocommit=True) as owner:
            owner.execute("SELECT pg_promote()")
        store.set(P, b"k", b"v")
        assert store.get(P, b"k").value == b"v"


def test_two_writers_on_one_connection_of_the_server_share_no_session(server: str) -> None:
    """No setting that one store makes outlives its transaction."""
    with contextlib.closing(PostgresStore(server, table=new_table(), busy_seconds=0.5)) as store:
        store.set(P, b"k", b"v")
        with store._lent("test") as connection:  # noqa: SLF001
            kept = connection.execute("SELECT current_setting('lock_timeout'), "
                                      "current_setting('default_transaction_isolation')").fetchone()
        assert kept == ("0", "read committed")
