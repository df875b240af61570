"""Tables of every make: columns, labels, splits and the order of classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.data.sources.item import Item
from stoker.data.sources.tables import Table, label_name, open_table, rows, table_files
from stoker.errors import BadRequest, StokerError


def csv_table(tmp_path: Path, text: str | bytes, name: str = "list.csv") -> Path:
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def parquet_table(tmp_path: Path, name: str = "t.parquet", **columns: Any) -> Path:
    pq.write_table(pa.table(columns), tmp_path / name)
    return tmp_path / name


def opened(source: Path, **columns: str) -> Table:
    return open_table(table_files(source), columns)


def read(source: Path, **columns: str) -> tuple[list[Item], list[tuple[str, str]]]:
    ignored: list[tuple[str, str]] = []
    return list(rows(opened(source, **columns), ignored)), ignored


def labels(source: Path, **columns: str) -> list[str | None]:
    return [item.label for item in read(source, **columns)[0]]


class TestCsv:
    def test_paths_labels_and_splits(self, tmp_path: Path) -> None:
        file = csv_table(
            tmp_path, "path,label,split\na.jpg,cat,train\nb.jpg,dog,VALID\nc.jpg,eel,testing\n"
        )
        items, ignored = read(file)
        assert [(item.name, item.label, item.split) for item in items] == [
            ("a.jpg", "cat", "train"),
            ("b.jpg", "dog", "val"),
            ("c.jpg", "eel", "test"),
        ]
        assert ignored == []

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("l.tsv", "path\tlabel\na,b.jpg\tcat\n"),
            ("l.csv", '\ufeffpath,label\n"a,b.jpg",cat\n'),
            ("l.CSV", 'path,label\r\n"a,b.jpg",cat\r\n'),
            ("l.csv", 'Label,PATH\ncat,"a,b.jpg"'),
            ("l.csv", 'path,note,label\n"a,b.jpg","two\nlines, ""quoted""",cat\n'),
        ],
        ids=["tabs", "byte order mark", "carriage returns", "capitals", "quotes and lines"],
    )
    def test_dialects(self, tmp_path: Path, name: str, text: str) -> None:
        items, _ = read(csv_table(tmp_path, text, name))
        assert [(item.name, item.label, item.split) for item in items] == [
            ("a,b.jpg", "cat", "train")
        ]

    def test_lines_too_short_and_rows_without_a_label_are_named(self, tmp_path: Path) -> None:
        items, ignored = read(csv_table(tmp_path, "path,label\na.jpg,cat\nb.jpg,\nc.jpg\n\n"))
        assert [item.name for item in items] == ["a.jpg"]
        assert {(path, reason) for path, reason in ignored} >= {
            ("b.jpg", "row without a label"),
            ("c.jpg", "row without a label"),
        }

    def test_a_row_without_an_image_is_named(self, tmp_path: Path) -> None:
        items, ignored = read(csv_table(tmp_path, "path,label\n,cat\na.jpg,cat\n"))
        assert [item.name for item in items] == ["a.jpg"]
        assert ignored == [("list.csv/00000000", "row without an image")]

    def test_a_split_of_another_name_is_named(self, tmp_path: Path) -> None:
        items, ignored = read(csv_table(tmp_path, "path,label,split\na.jpg,cat,extra\n"))
        assert items == []
        assert ignored == [("a.jpg", "not a split: expected train, val or test")]

    def test_the_likelier_name_of_a_column_wins(self, tmp_path: Path) -> None:
        file = csv_table(tmp_path, "url,label,path,category\nu,l,p,c\n")
        assert opened(file).columns == {"image": "path", "label": "label"}

    def test_columns_that_the_user_names(self, tmp_path: Path) -> None:
        file = csv_table(tmp_path, "path,label,Wo,Was,Wozu\na,b,c.jpg,cat,val\n")
        items, _ = read(file, image="Wo", label="Was", split="Wozu")
        assert [(item.name, item.label, item.split) for item in items] == [("c.jpg", "cat", "val")]

    @pytest.mark.parametrize(
        ("header", "columns", "role"),
        [
            ("where,label", {}, "image"),
            ("path,what", {}, "label"),
            ("path,label", {"image": "Path "}, "image"),
            ("path,label", {"split": "fold"}, "split"),
            ("", {}, "image"),
        ],
    )
    def test_a_column_that_is_not_there_is_said_with_those_that_are(
        self, tmp_path: Path, header: str, columns: dict[str, str], role: str
    ) -> None:
        file = csv_table(tmp_path, f"{header}\na,b\n")
        with pytest.raises(BadRequest, match=f"no column for the {role}") as caught:
            opened(file, **columns)
        assert all(name in str(caught.value) for name in header.split(","))
        assert f"--columns {role}=NAME" in str(caught.value)

    def test_a_field_without_end_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(StokerError, match="cannot be read"):
            read(csv_table(tmp_path, 'path,label\na.jpg,"cat\n' + "b.jpg,dog\n" * 10_000))

    def test_a_quote_without_end_is_an_error(self, tmp_path: Path) -> None:
        """Else the rest of the list is one label, and the set is shorter without a word."""
        with pytest.raises(StokerError, match="cannot be read"):
            read(csv_table(tmp_path, 'path,label\na.jpg,"cat\nb.jpg,dog\nc.jpg,dog\n'))

    def test_so_is_one_in_the_header(self, tmp_path: Path) -> None:
        with pytest.raises(StokerError):
            opened(csv_table(tmp_path, f"path,label,{'x' * 70_000}\na,b,c\n"))

    def test_bytes_that_are_not_utf8_are_kept(self, tmp_path: Path) -> None:
        items, _ = read(csv_table(tmp_path, b"path,label\ncaf\xe9.jpg,cat\n"))
        assert items[0].name == "caf\udce9.jpg"


class TestLabels:
    @pytest.mark.parametrize(
        ("label", "name"),
        [
            ("cat", "cat"),
            (3, "3"),
            (3.0, "3"),
            ("3", "3"),
            (0, "0"),
            (-1, "-1"),
            (True, "True"),
            (3.5, None),
            (float("nan"), None),
            (None, None),
            ("", None),
            (["cat"], None),
            ({"a": 1}, None),
        ],
    )
    def test_by_kind(self, label: Any, name: str | None) -> None:
        assert label_name(label, ()) == name

    @pytest.mark.parametrize(
        ("label", "name"), [(0, "z"), (1, "a"), (1.0, "a"), (2, None), (-1, None), ("q", "q")]
    )
    def test_numbers_into_the_tables_own_names(self, label: Any, name: str | None) -> None:
        assert label_name(label, ("z", "a")) == name

    @pytest.mark.parametrize(
        "kind", [pa.int8(), pa.int64(), pa.uint16(), pa.float32(), pa.float64(), pa.string()]
    )
    def test_of_every_type_of_column(self, tmp_path: Path, kind: pa.DataType) -> None:
        column = pa.array([1, 2, None]).cast(kind)
        file = parquet_table(tmp_path, path=["a", "b", "c"], label=column)
        assert labels(file) == ["1", "2"]

    def test_of_a_dictionary_column(self, tmp_path: Path) -> None:
        column = pa.array(["cat", "dog", "cat"]).dictionary_encode()
        assert labels(parquet_table(tmp_path, path=["a", "b", "c"], label=column)) == [
            *("cat", "dog", "cat")
        ]


class TestParquet:
    @pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
    def test_bytes(self, tmp_path: Path, kind: pa.DataType) -> None:
        column = pa.array([b"one", None, b""], kind)
        items, _ = read(parquet_table(tmp_path, image=column, label=["a", "b", "c"]))
        assert [(item.data, item.reason) for item in items] == [
            (b"one", None),
            (None, "empty cell"),
            (b"", None),
        ]
        assert len({item.name for item in items}) == 3

    def test_bytes_with_a_path(self, tmp_path: Path) -> None:
        cells = [{"bytes": b"1", "path": "x.jpg"}, {"bytes": b"2", "path": None}, None]
        items, _ = read(parquet_table(tmp_path, image=cells, label=[0, 1, 1]))
        assert [item.data for item in items] == [b"1", b"2", None]
        assert items[0].name.endswith("x.jpg")
        assert items[2].reason == "empty cell"

    def test_a_struct_without_bytes_is_refused(self, tmp_path: Path) -> None:
        file = parquet_table(tmp_path, image=[{"path": "x"}], label=[0])
        with pytest.raises(BadRequest, match="neither images nor names"):
            opened(file)

    @pytest.mark.parametrize(
        "cell",
        [{"bytes": "text"}, {"bytes": [1, 2]}, [b"x"], 3, 1.5],
        ids=["struct of text", "struct of a list", "list", "number", "fraction"],
    )
    def test_a_column_of_another_type_is_refused(self, tmp_path: Path, cell: Any) -> None:
        file = parquet_table(tmp_path, image=[cell], label=[0])
        with pytest.raises(BadRequest, match="image"):
            opened(file)

    def test_a_column_that_is_there_twice_is_refused(self, tmp_path: Path) -> None:
        arrays = [pa.array([b"1"]), pa.array([b"2"]), pa.array([0])]
        twice = pa.Table.from_arrays(arrays, names=["image", "image", "label"])
        pq.write_table(twice, tmp_path / "t.parquet")
        with pytest.raises(BadRequest, match="image"):
            opened(tmp_path / "t.parquet")

    def test_many_row_groups_keep_their_order(self, tmp_path: Path) -> None:
        table = pa.table({"path": [f"{n}.jpg" for n in range(1000)], "label": [0] * 1000})
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=37)
        names = [item.name for item in read(tmp_path / "t.parquet")[0]]
        assert names == table.column("path").to_pylist()

    def test_the_hubs_names_of_classes(self, tmp_path: Path) -> None:
        features = {"label": {"names": ["zebra", "ant", "cow"], "_type": "ClassLabel"}}
        facts = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table({"image": [b"1", b"2", b"3"], "label": [1, 0, -1]})
        pq.write_table(table.replace_schema_metadata(facts), tmp_path / "t.parquet")
        table_read = opened(tmp_path / "t.parquet")
        assert table_read.classes == ("zebra", "ant", "cow")
        items, ignored = read(tmp_path / "t.parquet")
        assert [item.label for item in items] == ["ant", "zebra"]
        assert [reason for _, reason in ignored] == ["row without a label"]

    @pytest.mark.parametrize(
        "facts", ["", "no json", "[]", "{}", '{"info": 3}', '{"info": {"features": [1]}}']
    )
    def test_metadata_of_another_make_is_passed_over(self, tmp_path: Path, facts: str) -> None:
        table = pa.table({"image": [b"1"], "label": [1]})
        pq.write_table(
            table.replace_schema_metadata({"huggingface": facts}), tmp_path / "t.parquet"
        )
        assert opened(tmp_path / "t.parquet").classes == ()

    def test_a_damaged_file_is_an_error_with_its_name(self, tmp_path: Path) -> None:
        file = parquet_table(tmp_path, path=["a"] * 1000, label=list(range(1000)))
        data = file.read_bytes()
        for broken in (b"", b"PAR1", data[: len(data) // 2], data[:-8] + bytes(8)):
            file.write_bytes(broken)
            with pytest.raises(StokerError, match=r"t\.parquet"):
                read(file)


class TestFolders:
    def test_files_of_splits(self, tmp_path: Path) -> None:
        for name in ("train-00000-of-00002", "train-00001-of-00002", "test-0", "validation-0"):
            parquet_table(tmp_path, f"{name}.parquet", image=[b"x"], label=[name])
        (tmp_path / "README.md").touch()
        (tmp_path / ".gitattributes").touch()
        items, _ = read(tmp_path)
        assert [(item.label, item.split) for item in items] == [
            ("test-0", "test"),
            ("train-00000-of-00002", "train"),
            ("train-00001-of-00002", "train"),
            ("validation-0", "val"),
        ]
        assert len({item.name for item in items}) == 4

    def test_a_folder_called_data_inside(self, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        parquet_table(tmp_path / "data", "train-0.parquet", image=[b"x"], label=[0])
        parquet_table(tmp_path / "data", "test-0.parquet", image=[b"x"], label=[0])
        assert [item.split for item in read(tmp_path)[0]] == ["test", "train"]

    def test_a_split_column_is_worth_more_than_a_files_name(self, tmp_path: Path) -> None:
        for name in ("train-0", "test-0"):
            columns = {"image": [b"x"], "label": [0], "split": ["val"]}
            parquet_table(tmp_path, f"{name}.parquet", **columns)
        assert {item.split for item in read(tmp_path)[0]} == {"val"}

    def test_a_file_with_other_columns_is_an_error_with_its_name(self, tmp_path: Path) -> None:
        parquet_table(tmp_path, "train-0.parquet", image=[b"x"], label=[0])
        parquet_table(tmp_path, "train-1.parquet", picture=[b"x"], label=[0])
        with pytest.raises(StokerError, match=r"train-1\.parquet"):
            read(tmp_path)

    @pytest.mark.parametrize("other", ["a.txt", "cat/1.jpg", "list.csv"])
    def test_a_folder_with_anything_else_is_no_table(self, tmp_path: Path, other: str) -> None:
        parquet_table(tmp_path, "train-0.parquet", image=[b"x"], label=[0])
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).touch()
        assert table_files(tmp_path) == ()
