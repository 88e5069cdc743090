"""The native way to the rows of an SQLite file gives what SQLite gives, and survives what SQLite would not write."""

from __future__ import annotations

import random
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal
from random_inputs import examples
from shared_data import shared_names, unpacked

from annot.errors import AnnotError
from annot.native import tables
from annot.read.sqlite import ROW, Database, open_database

native = tables()
pytestmark = pytest.mark.skipif(native is None, reason="annot.native._tables is not built")

WIDTHS = [sign * 2**bits + more for bits in (7, 15, 23, 31, 47, 62) for sign in (1, -1) for more in (-1, 0, 1)]
INTEGERS = st.integers(-3, 300) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from(WIDTHS)
TEXTS = (
    st.sampled_from(["", "conv1 Conv2d [8,3,224,224]f32 |fwd", "exactly12byt", "exactly 13 by"])
    | st.text(st.characters(codec="utf-8"), max_size=40)
    | st.integers(1, 6000).map(lambda length: "x" * length + "é")
)
ROWS = st.tuples(st.none() | INTEGERS, st.none() | TEXTS, st.none() | INTEGERS, st.binary(max_size=40))


class File:
    """A database in the making."""

    def __init__(self, path: Path, page_size: int = 4096) -> None:
        self.path = path
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute(f"PRAGMA page_size = {page_size}")

    def run(self, sql: str, rows: list[tuple[Any, ...]] | None = None) -> File:
        """Execute a statement, for each row in turn if there are any."""
        if rows is None:
            self.connection.execute(sql)
        else:
            self.connection.execute("BEGIN")
            self.connection.executemany(sql, rows)
            self.connection.execute("COMMIT")
        return self

    def root(self) -> int:
        return int(self.connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0])

    def scan(self, columns: list[tuple[str, int, str]], rows: int = 1000, where_in: Any = None) -> list[pl.DataFrame]:
        return [pl.DataFrame(batch) for batch in native.Scan(self.path, self.root(), columns, rows, where_in)]


@pytest.fixture
def new_file(tmp_path: Path) -> Iterator[Callable[..., File]]:
    files: list[File] = []

    def make(page_size: int = 4096) -> File:
        files.append(File(tmp_path / f"{len(files)}.sqlite", page_size))
        return files[-1]

    yield make
    for file in files:
        file.connection.close()


def by_query(monkeypatch: pytest.MonkeyPatch, path: Path, ask: Callable[[Database], pl.DataFrame]) -> pl.DataFrame:
    with monkeypatch.context() as patch, open_database(path) as database:
        patch.setenv("ANNOT_DISABLE_NATIVE", "1")
        return ask(database)


@settings(max_examples=examples(120), deadline=None)
@given(
    rows=st.lists(ROWS, max_size=60),
    page_size=st.sampled_from([512, 1024, 4096, 16384, 65536]),
    copies=st.sampled_from([1, 1, 40]),
    deleted=st.integers(2, 9),
    vacuum=st.booleans(),
    batch=st.sampled_from([1, 7, 64, 5000]),
    has_alias=st.booleans(),
)  # fmt: skip
def test_every_value_is_the_one_that_sqlite_gives(
    rows: list[tuple[int | None, str | None, int | None, bytes]],
    page_size: int, copies: int, deleted: int, vacuum: bool, batch: int, has_alias: bool,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        file = File(Path(folder) / "f.sqlite", page_size)
        key = "INTEGER PRIMARY KEY" if has_alias else ""
        file.run(f"CREATE TABLE t (a INTEGER, text TEXT, k {key}, b INTEGER, raw TEXT)")
        # sqlite3 makes texts of bytes that are no UTF-8 by a cast alone
        file.run("INSERT INTO t (a, text, b, raw) VALUES (?, ?, ?, CAST(? AS TEXT))", rows * copies)
        file.run(f"DELETE FROM t WHERE rowid % {deleted} = 0")
        if vacuum:
            file.run("VACUUM")
        kind = "alias" if has_alias else "integer"
        wanted = [
            ("raw", 4, "text"), ("b", 3, "integer"), ("row", -1, "integer"), ("a", 0, "integer"), ("text", 1, "text"),
            ("k", 2, kind),
        ]  # fmt: skip
        found = file.scan(wanted, batch)
        file.connection.text_factory = bytes
        truth = file.connection.execute("SELECT raw, b, rowid, a, text, k FROM t ORDER BY rowid").fetchall()
        file.connection.close()
    decoded = [
        (raw.decode("utf-8", "replace"), b, row, a, (text or b"").decode(), k) for raw, b, row, a, text, k in truth
    ]
    assert [row for frame in found for row in frame.rows()] == decoded
    assert all(frame.height == batch for frame in found[:-1])


@given(st.lists(st.binary(max_size=30), max_size=20))
@settings(max_examples=examples(150), deadline=None)
def test_bytes_that_are_no_text_are_replaced_as_python_does(texts: list[bytes]) -> None:
    tricky = [
        b"\xf0\x9f\x92",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"a" * 20 + b"\xff" + b"b" * 20,
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = File(Path(folder) / "f.sqlite").run("CREATE TABLE t (a)")
        file.run("INSERT INTO t VALUES (CAST(? AS TEXT))", [(text,) for text in tricky + texts])
        [found] = file.scan([("a", 0, "text")])
        file.connection.close()
    assert found["a"].to_list() == [text.decode("utf-8", "replace") for text in tricky + texts]


def test_a_table_of_many_pages_comes_in_batches(new_file: Callable[..., File]) -> None:
    rows = [(n * 7919 % 1000003 - 500000, f"range number {n % 300} of the run") for n in range(50000)]
    file = new_file(512).run("CREATE TABLE t (a INTEGER, b TEXT)").run("INSERT INTO t VALUES (?, ?)", rows)
    found = file.scan([("a", 0, "integer"), ("b", 1, "text")], 4096)
    assert [frame.height for frame in found] == [4096] * 12 + [848]
    assert [row for frame in found for row in frame.rows()] == rows


def test_batches_outlive_the_scan_that_made_them(new_file: Callable[..., File]) -> None:
    texts = [f"a text too long for a view {n}" * (1 + n % 40) for n in range(3000)]
    file = new_file().run("CREATE TABLE t (a TEXT)").run("INSERT INTO t VALUES (?)", [(text,) for text in texts])
    scan = native.Scan(file.path, file.root(), [("a", 0, "text")], 100)
    batches = list(scan)
    del scan
    frames = [pl.DataFrame(batch) for batch in batches for _ in range(2)][::2]
    del batches
    assert pl.concat(frames)["a"].to_list() == texts


@pytest.mark.parametrize("values", [(59, 60), (), (-1,), (2**63 - 1, 59)])
def test_the_filter_keeps_rows_with_one_of_its_values(new_file: Callable[..., File], values: tuple[int, ...]) -> None:
    rows = [(n, (59, 60, 75, None, -1, 2**63 - 1)[n % 6], 0.5 if n % 6 == 2 else n) for n in range(500)]
    file = new_file().run("CREATE TABLE t (a, type, c)").run("INSERT INTO t VALUES (?, ?, ?)", rows)
    found = file.scan([("c", 2, "integer"), ("a", 0, "integer")], 50, (1, "integer", values))
    kept = [(c, a) for a, type_, c in rows if type_ in values]
    assert [row for frame in found for row in frame.rows()] == kept


def test_two_threads_scan_at_once(new_file: Callable[..., File]) -> None:
    rows = [(n, str(n) * 9) for n in range(20000)]
    file = new_file().run("CREATE TABLE t (a, b)").run("INSERT INTO t VALUES (?, ?)", rows)
    root, found = file.root(), {}

    def work(number: int) -> None:
        scan = native.Scan(file.path, root, [("a", 0, "integer"), ("b", 1, "text")], 300)
        found[number] = [row for batch in scan for row in pl.DataFrame(batch).rows()]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == rows for number in range(4))


UNSUPPORTED = {
    "a real number": "CREATE TABLE t (a REAL); INSERT INTO t VALUES (1.5)",
    "a text": "CREATE TABLE t (a); INSERT INTO t VALUES ('1')",
    "a blob": "CREATE TABLE t (a); INSERT INTO t VALUES (x'01')",
    "no rowid": "CREATE TABLE t (a INTEGER PRIMARY KEY) WITHOUT ROWID; INSERT INTO t VALUES (1)",
    "a write-ahead log": "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t VALUES (1)",
    "a default": "CREATE TABLE t (z); INSERT INTO t VALUES (1); ALTER TABLE t ADD a DEFAULT 7",
    "a computed column": "CREATE TABLE t (a, z AS (a + 1)); INSERT INTO t (a) VALUES (1)",
}


@pytest.mark.parametrize("script", UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_sqlite_had_better_read_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    path = tmp_path / "f.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()

    def ask(database: Database) -> pl.DataFrame:
        return database.scan("t", {"a": "a"}).vstack(pl.concat(database.blocks("t", {"a": "a"})))

    with open_database(path) as database:
        found = ask(database)
    assert found.height == 2
    assert_frame_equal(found, by_query(monkeypatch, path, ask))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED.keys() - {"a default", "a computed column"}))
def test_the_scan_itself_refuses_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(UNSUPPORTED[name])
    connection.close()
    with pytest.raises(native.Unsupported):
        list(native.Scan(path, 2, [("a", 0, "integer")], 10))


def test_rows_older_than_a_column_have_nothing_in_it(new_file: Callable[..., File]) -> None:
    file = new_file().run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (1), (2)")
    file.run("ALTER TABLE t ADD b INTEGER").run("ALTER TABLE t ADD c TEXT").run("INSERT INTO t VALUES (3, 4, 'c')")
    [found] = file.scan([("a", 0, "integer"), ("b", 1, "integer"), ("c", 2, "text")])
    assert found.rows() == [(1, None, ""), (2, None, ""), (3, 4, "c")]


def test_blocks_go_on_where_the_pages_gave_up(new_file: Callable[..., File], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(n, f"text {n}", n % 3) for n in range(1000)]
    rows[777] = (1.5, "a real number", 0)
    file = new_file().run("CREATE TABLE t (a, b, c)").run("INSERT INTO t VALUES (?, ?, ?)", rows)
    file.run("CREATE INDEX shorter ON t (c, a, b)")

    def ask(database: Database) -> pl.DataFrame:
        blocks = list(database.blocks("t", {"a": "a"}, {"b": "b"}, where_in=("c", [0, 2]), rows=64))
        assert all(0 < block.height <= 64 for block in blocks)
        return pl.concat(blocks)

    with open_database(file.path) as database:
        found = ask(database)
    assert found.rows() == [(int(a), b) for a, b, c in rows if c != 1]
    assert_frame_equal(found, by_query(monkeypatch, file.path, ask))


@pytest.mark.parametrize(
    "table",
    ["(k INTEGER PRIMARY KEY, a, b)", "(k INTEGER PRIMARY KEY DESC, a, b)", "(k INT PRIMARY KEY, a, b)",
     "(k, a, b, PRIMARY KEY (k))", "(k INTEGER, a, b, PRIMARY KEY (k))", "(k INTEGER, a, b, PRIMARY KEY (k, a))",
     "(k, a, rowid)", "(k INTEGER PRIMARY KEY, a, b) WITHOUT ROWID"],
)  # fmt: skip
def test_keys_rowids_and_absent_columns_are_those_of_sql(
    new_file: Callable[..., File], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    file = new_file().run(f"CREATE TABLE t {table}")
    file.run("INSERT INTO t VALUES (?, ?, ?)", [(3 * n, n, 100 + n) for n in range(50)])
    rowid = "k" if "WITHOUT" in table else "rowid"

    def ask(database: Database) -> pl.DataFrame:
        integers = {"number": ROW, "k": "k", "none": "gone", "a": "a"}
        whole = database.scan("t", integers, {"empty": "gone"}, where_in=(rowid, range(5, 130)))
        blocks = database.blocks("t", integers, {"empty": "gone"}, where_in=(rowid, range(5, 130)), rows=7)
        assert_frame_equal(whole, pl.concat(blocks))
        return whole

    with open_database(file.path) as database:
        assert_frame_equal(ask(database), by_query(monkeypatch, file.path, ask))


@pytest.mark.slow
def test_real_exports_read_alike_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = 0
    for name in shared_names("nsys", ".sqlite.gz"):
        path = unpacked(name, tmp_path)
        with open_database(path) as database:
            wanted = {table: sorted(database.columns[table]) for table in database.columns}
            info = {table: database.rows(f'PRAGMA table_info("{table}")') for table in wanted}
            for root, table in database.rows("SELECT rootpage, name FROM sqlite_master WHERE type = 'table'"):
                rows = sum(len(batch["row"]) for batch in native.Scan(path, root, [("row", -1, "integer")], 1000))
                assert [(rows,)] == database.rows(f'SELECT count(*) FROM "{table}"')
        for table, columns in info.items():
            integers = {row[1]: row[1] for row in columns if row[2].startswith("INT")}
            texts = {row[1]: row[1] for row in columns if row[2] == "TEXT"}

            def ask(database: Database) -> pl.DataFrame:
                return database.scan(table, integers, texts)  # noqa: B023

            with open_database(path) as database:
                found = ask(database)
            assert_frame_equal(found, by_query(monkeypatch, path, ask))
            checked += found.height
    assert checked > 1000


@pytest.mark.parametrize("page_size", [512, 4096])
def test_a_mutated_file_never_crashes_or_hangs(new_file: Callable[..., File], tmp_path: Path, page_size: int) -> None:
    rows = [(n, f"text {n % 9} " * (1 + n % 200), n * n) for n in range(400)]
    file = new_file(page_size).run("CREATE TABLE t (a, b, c)").run("INSERT INTO t VALUES (?, ?, ?)", rows)
    root, whole = file.root(), file.path.read_bytes()
    columns = [("a", 0, "integer"), ("b", 1, "text"), ("c", 2, "integer"), ("row", -1, "integer")]
    path, chance, verdicts = tmp_path / "mutated", random.Random(7), set()
    for _ in range(750):
        data = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3, 30, 300])):
            # Most of what matters is at the beginning of a page.
            at = chance.randrange(len(data) // page_size) * page_size + int(chance.random() ** 6 * page_size)
            data[at] = chance.choice([0, 1, 2, 5, 13, 127, 128, 255, chance.randrange(256)])
        if chance.random() < 0.1:
            del data[chance.randrange(len(data)) :]
        path.write_bytes(data)
        try:
            height = sum(pl.DataFrame(batch).height for batch in native.Scan(path, root, columns, 97))
            verdicts.add("read")
            assert height <= len(whole) // 4  # no row is shorter than that
        except native.Unsupported:
            verdicts.add("unsupported")
        except ValueError:
            verdicts.add("damaged")
    assert verdicts == {"read", "unsupported", "damaged"}


def page(number: int, file: bytearray, page_size: int, content: bytes) -> None:
    file[(number - 1) * page_size : (number - 1) * page_size + len(content)] = content


def test_a_tree_that_bites_its_tail_ends(new_file: Callable[..., File]) -> None:
    file = new_file(512).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [(n,) for n in range(9000)])
    root, data = file.root(), bytearray(file.path.read_bytes())
    itself = root.to_bytes(4, "big")
    page(root, data, 512, b"\x05\0\0\0\1\0\0\0" + itself + b"\0\x10" + b"\0\0" + itself)
    file.path.write_bytes(data)
    with pytest.raises(ValueError, match="nested too deeply"):
        list(native.Scan(file.path, root, [("a", 0, "integer")], 10))


def test_many_ways_to_one_page_are_seen(new_file: Callable[..., File]) -> None:
    file = new_file(512).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [(n,) for n in range(30)])
    root, data = file.root(), bytearray(file.path.read_bytes())
    leaf = bytes(data[(root - 1) * 512 : root * 512])
    data += leaf
    number = (len(data) // 512).to_bytes(4, "big")
    page(root, data, 512, b"\x05\0\0\0\x78\0\0\0" + number + b"\1\xf0" * 120)
    page(root, data, 512, data[(root - 1) * 512 : (root - 1) * 512 + 0x1F0] + number)
    file.path.write_bytes(data)
    with pytest.raises(ValueError, match="used twice in the table"):
        list(native.Scan(file.path, root, [("a", 0, "integer")], 10))


def test_a_chain_of_overflow_pages_that_bites_its_tail_ends(new_file: Callable[..., File]) -> None:
    file = new_file(512).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [("x" * 100000,)])
    root, data = file.root(), bytearray(file.path.read_bytes())
    for number in range(root + 1, len(data) // 512 + 1):
        page(number, data, 512, (root + 1).to_bytes(4, "big"))
    file.path.write_bytes(data)
    file.path.write_bytes(data[: (root + 40) * 512])
    [batch] = native.Scan(file.path, root, [("row", -1, "integer")], 10)  # what is not wanted is not read
    assert pl.DataFrame(batch).rows() == [(1,)]
    with pytest.raises(ValueError, match="used twice in the table"):
        list(native.Scan(file.path, root, [("a", 0, "text")], 10))


def test_rows_that_share_their_bytes_are_seen(new_file: Callable[..., File]) -> None:
    file = new_file(4096).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [("x" * 90,)] * 40)
    root, data = file.root(), bytearray(file.path.read_bytes())
    first = data[(root - 1) * 4096 + 8 : (root - 1) * 4096 + 10]
    page(root, data, 4096, b"\x0d\0\0\0\x64\0\0\0" + bytes(first) * 100)
    file.path.write_bytes(data)
    with pytest.raises(ValueError, match="overlap"):
        file.scan([("a", 0, "text")])


@pytest.mark.parametrize("length", [9, 500])
def test_a_value_longer_than_its_row_is_seen(new_file: Callable[..., File], length: int) -> None:
    file = new_file(512).run("CREATE TABLE t (a, b)").run("INSERT INTO t VALUES (?, ?)", [(1, "y" * length)])
    data = file.path.read_bytes()
    header = b"\x03\x09\x1f" if length == 9 else b"\x04\x09\x87\x75"
    assert data.count(header) == 1
    file.path.write_bytes(data.replace(header, header[:-1] + bytes([header[-1] + 2])))
    with pytest.raises(ValueError, match="values beyond its end"):
        file.scan([("b", 1, "text")])


def test_texts_are_right_however_many_there_are(new_file: Callable[..., File]) -> None:
    texts = [f"{n} " * 60000 for n in range(400)]
    file = new_file(65536).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [(text,) for text in texts])
    found = file.scan([("a", 0, "text")], 30)
    assert pl.concat(found)["a"].to_list() == texts


def test_damage_becomes_one_sentence_that_names_the_file(new_file: Callable[..., File]) -> None:
    file = new_file(512).run("CREATE TABLE t (a)").run("INSERT INTO t VALUES (?)", [(n,) for n in range(9000)])
    data = bytearray(file.path.read_bytes())
    page(40, data, 512, b"\x63")
    file.path.write_bytes(data)
    message = r"0\.sqlite is a damaged SQLite file: page 40 is not a table page"
    with pytest.raises(AnnotError, match=message), open_database(file.path) as database:
        database.scan("t", {"a": "a"}, {})


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((2, [("a", 0, "real")], 10), "integer, alias or text, got real"),
        ((2, [("a", -2, "text")], 10), "from -1 to 32766, got -2"),
        ((2, [("a", 0, "text")], 0), "batch_rows must be from 1"),
        ((2, [("a", 0, "text")], 10, (0, "text", [1])), "must be an integer column"),
    ],
)
def test_wrong_arguments_are_named(new_file: Callable[..., File], arguments: tuple[Any, ...], error: str) -> None:
    file = new_file().run("CREATE TABLE t (a)")
    with pytest.raises(ValueError, match=error):
        native.Scan(file.path, *arguments)
    with pytest.raises(TypeError, match="must be a tuple"):
        native.Scan(file.path, 2, ["a"], 10)
