"""Stores that are full, redirect, list without an end or lie: what a client makes of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.data.verify import verify
from stoker.stores import credentials, objects, patience
from stoker.stores.client import StoreClient
from stoker.stores.location import Location
from stoker.stores.objects import Denied, StoreError
from stoker.stores.patience import Stopped
from stoker.stores.trouble import OddKey
from stub_store import Answer, Question, StubStore, s3_error, stub_store
from waiting import until

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

PLACE = Location("s3", "bucket", "set")
META = {"ETag": '"1"', "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}


@pytest.fixture(autouse=True)
def own_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-9f31")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")


def answer_writes(answer: Answer) -> Callable[[Question], Answer]:
    def answered(question: Question) -> Answer:
        return answer if question.method == "PUT" else s3_error(404, "NoSuchKey")

    return answered


@pytest.mark.parametrize(
    ("refusal", "error", "words"),
    [
        (s3_error(507), StoreError, "the store is full: free space there"),
        (s3_error(507, "XMinioStorageFull"), StoreError, r"the store is full \(XMinioStorageFull"),
        (s3_error(403, "QuotaExceeded"), StoreError, r"the store is full \(QuotaExceeded\)"),
        (s3_error(503, "QuotaExceeded"), StoreError, r"the store is full \(QuotaExceeded\)"),
        (s3_error(413), StoreError, "refuses an object of this size: raise the limit"),
        (s3_error(400, "EntityTooLarge"), StoreError, "refuses an object of this size"),
        (s3_error(403, "AccessDenied"), Denied, r"writing is denied \(AccessDenied\): check that"),
        (s3_error(500, "InternalError"), StoreError, "answered 500 .*tried"),
    ],
)
def test_a_store_that_takes_no_object_is_not_one_without_conditions(
    refusal: Answer, error: type[StoreError], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub_store(answer_writes(refusal)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        client = StoreClient(PLACE, patience_s=0.5)
        with pytest.raises(error, match=words):
            print(client.conditional)
        with pytest.raises(error, match=words):
            client.write("a", b"data")


@pytest.mark.parametrize(
    "refusal", [s3_error(501, "NotImplemented"), s3_error(400, "InvalidArgument"), s3_error(405)]
)
def test_a_store_that_knows_no_conditions_has_none(
    refusal: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stub_store(answer_writes(refusal)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        assert not StoreClient(PLACE, patience_s=0.5).conditional


def test_conditions_that_are_switched_off_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_store(answer_writes(Answer(headers={"ETag": '"1"'}))) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
        assert not StoreClient(PLACE, patience_s=0.5).conditional


AZURE = Location("az", "container", "set")
GOOGLE = Location("gs", "bucket", "set")
ASK: dict[str, Callable[[StoreClient], object]] = {
    "GET": lambda client: client.read("a"),
    "HEAD": lambda client: client.find("a"),
    "PUT": lambda client: client.write("a", b"data"),
    "range": lambda client: client.read_ranges("a", [(0, 4)]),
    "stream": lambda client: client.stream("a", 1_000_000, lambda chunk: None),
    "list": lambda client: client.list(),
    "delete": lambda client: client.delete(["a"]),
}


@pytest.mark.parametrize("place", [PLACE, AZURE, GOOGLE], ids=lambda place: place.scheme)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_store_sends_a_request_on_to_another_host(
    place: Location, status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stub_store(lambda question: Answer(), "127.0.0.2") as other:

        def answer(question: Question) -> Answer:
            return Answer(status, headers={"Location": other.endpoint + question.path})

        with stub_store(answer) as store:
            point_to(store.endpoint, tmp_path, monkeypatch)
            for ask in ASK.values():
                with pytest.raises(StoreError) as caught:
                    ask(StoreClient(place, patience_s=5))
                (line,) = str(caught.value).splitlines()
                assert "sends this request on to another place" in line
                assert "signature-7c" not in line
            assert store.asked
        assert not other.asked


def point_to(endpoint: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a server the one of all clouds, with a SAS token for Azure."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021&sig=signature-7c")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
    (folder / "key.json").write_text(json.dumps({**key, "private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(folder / "key.json"))
    real = credentials.only_to
    monkeypatch.setattr(credentials, "only_to", lambda hosts: {**real(hosts), "allow_http": True})


def test_many_threads_find_the_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_store(lambda question: s3_error(404, "NoSuchKey")) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        client = StoreClient(PLACE, patience_s=5)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(client.find, map(str, range(64))))
        assert found == [None] * 64


def test_a_web_server_may_redirect() -> None:
    with stub_store(lambda question: Answer(body=b"data"), "127.0.0.2") as other:
        answer = Answer(302, headers={"Location": f"{other.endpoint}/a"})
        with stub_store(lambda question: answer) as server:
            client = StoreClient(Location("http", server.endpoint.removeprefix("http://")))
            assert client.read("a")[0] == b"data"


def test_credentials_may_come_from_another_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those of a container, of a service that the user's environment names."""
    keys = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": "token"}
    text = json.dumps({**keys, "Expiration": "2099-01-01T00:00:00Z"}).encode()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    with (
        stub_store(lambda question: Answer(body=text), "127.0.0.2") as service,
        stub_store(lambda question: Answer(body=b"data", headers=META)) as store,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{service.endpoint}/keys")
        (tmp_path / "token").write_text("mine")
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "token"))
        assert StoreClient(PLACE, patience_s=5).read("a")[0] == b"data"
        assert store.asked[-1].headers["x-amz-security-token"] == "token"


def page_of(keys: Iterable[str], token: str = "") -> Answer:
    """A page of a listing, which another one follows where it has a token."""
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>3</Size><ETag>x</ETag>"
        "<LastModified>2026-11-02T10:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    truncated = "true" if token else "false"
    return Answer(
        body=f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{entries}"
        "</ListBucketResult>".encode()
    )


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n: page_of([f"set/{k:04d}" for k in range(1000)], "same"), "repeats itself"),
        (lambda n: page_of(["set/a"], str(n)), "repeats itself"),
        (lambda n: page_of([f"set/{n % 2}-{k}" for k in range(1000)], str(n)), "repeats itself"),
        (lambda n: page_of([f"set/{n}-{k}" for k in range(1000)], str(n)), "no end after 5,000"),
        (lambda n: page_of([f"set/{n}-{k}-{'x' * 900}" for k in range(99)], str(n)), "no end"),
        (lambda n: page_of([], str(n)), "the next part of its listing took longer than 1 s"),
    ],
)
def test_a_listing_without_an_end_is_refused(
    answer: Callable[[int], Answer], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MOST_LISTED", 4500)
    monkeypatch.setattr(objects, "MOST_KEY_BYTES", 1_000_000)
    numbers = count(1)
    with stub_store(lambda question: answer(next(numbers))) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        with pytest.raises(StoreError, match=words) as caught:
            StoreClient(PLACE, patience_s=1 if "longer" in words else 60).list()
        assert str(caught.value).startswith("s3://bucket/set")
        assert len(str(caught.value).splitlines()) == 1


def test_a_listing_of_several_pages_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"": page_of(["set/b", "set/a"], "2"), "2": page_of([], "3"), "3": page_of(["set/c"])}

    def answer(question: Question) -> Answer:
        return pages[parse_qs(urlsplit(question.path).query).get("continuation-token", [""])[0]]

    with stub_store(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        assert [item.key for item in StoreClient(PLACE).list()] == ["a", "b", "c"]


def drops(store: Callable[[], StubStore]) -> Iterator[bytes]:
    """A body that arrives byte by byte, and never ends while anybody waits."""
    while not store().closing.wait(0.05):
        yield b"x"


@pytest.mark.parametrize("way", ["GET", "stream"])
def test_a_body_that_drips_is_told_of_and_given_up(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "REPORTED_AGAIN_S", 0.3)
    said: list[str] = []
    headers = {**META, "Content-Length": "1000000"}
    with stub_store(lambda question: Answer(body=drops(lambda: store), headers=headers)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        client = StoreClient(PLACE, patience_s=2, report=said.append)
        with pytest.raises(StoreError, match="of 1 MB took longer than 2 s"):
            if way == "GET":
                client.read("a")
            else:
                client.stream("a", 1_000_000, lambda chunk: None)
        assert any("the next part of 1 MB has not arrived for" in line for line in said)


@pytest.mark.parametrize("way", ["GET", "stream", "list"])
def test_a_stop_is_heard_while_nothing_arrives(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {**META, "Content-Length": "1000000"}

    def answer(question: Question) -> Answer:
        if "list-type" in question.path:
            return page_of([], "again")
        return Answer(body=drops(lambda: store), headers=headers)

    with stub_store(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        client = StoreClient(PLACE, patience_s=60)
        stopper = threading.Thread(
            target=lambda: (until(lambda: bool(store.asked)), client.stopped.set())
        )
        stopper.start()
        with pytest.raises(Stopped):
            ASK[way](client)
        stopper.join()


def test_a_description_that_is_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {**META, "Content-Length": str(900 << 20)}
    with stub_store(lambda question: Answer(body=drops(lambda: store), headers=headers)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        with pytest.raises(StoreError, match=r"dataset\.json has 943.7 MB, more than such"):
            Dataset(str(PLACE))


@pytest.mark.parametrize("length", ["5", ""])
def test_a_body_that_is_longer_than_it_says_is_not_taken(
    length: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {**META, **({"Content-Length": length} if length else {"Connection": "close"})}
    body = [b"x" * 65536] * 1000
    with stub_store(lambda question: Answer(body=body, headers=headers)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        client = StoreClient(PLACE, patience_s=1)
        if length:
            assert client.read("a")[0] == b"xxxxx"
        else:
            with pytest.raises(StoreError):
                client.read("a")


ODD = ["set/../b", "set//b", "set/b&#10;c", "set/./b", "../set/b"]


@pytest.mark.parametrize("key", ODD)
def test_a_key_that_is_no_path_is_named(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_store(lambda question: page_of(["set/a", key])) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        with pytest.raises(OddKey, match="a key of an object there is no path") as caught:
            StoreClient(PLACE).list()
        assert str(caught.value).endswith(": remove it")
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", ODD)
def test_a_set_beside_a_key_that_is_no_path_is_verified(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder(tmp_path / "photos", images=3, val=2)
    pack(folder, tmp_path / "set", storage=Storage(), workers=1)

    def answer(question: Question) -> Answer:
        path, _, query = question.path.removeprefix("/bucket").partition("?")
        if query:
            return page_of(["set/dataset.json", key])
        file = tmp_path / path.strip("/")
        if not file.is_file():
            return s3_error(404, "NoSuchKey")
        data = file.read_bytes()
        return Answer(body=data, headers={**META, "Content-Length": str(len(data))})

    with stub_store(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        report = verify(str(PLACE))
        assert not report.problems
        assert (report.images, report.shards) == (15, 2)
        assert any("is no path" in note for note in report.notes)
