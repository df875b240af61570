"""Stores that are full, redirect, list without an end or lie: what a client makes of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stoker.stores.client import StoreClient
from stoker.stores.location import Location
from stoker.stores.objects import Denied, StoreError
from stub_store import Answer, Question, s3_error, stub_store

pytest.importorskip("obstore", reason="no obstore: pip install obstore")

PLACE = Location("s3", "bucket", "set")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
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
