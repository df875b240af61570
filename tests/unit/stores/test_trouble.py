"""What an error of a store means: whether to try again, and what the user is told."""

from __future__ import annotations

import pytest

from golden import check_golden
from stoker.stores.location import Location
from stoker.stores.objects import Conflict, Denied, Missing, StoreError
from stoker.stores.trouble import NoParts, error_of, harmless, trouble_of

PLACE = Location("s3", "photos", "sets/one")
SECRET = "hunter2"


class GenericError(Exception):
    """As obstore names it."""


class PermissionDeniedError(Exception):
    """As obstore names it."""


class PreconditionError(Exception):
    """As obstore names it."""


class UnauthenticatedError(Exception):
    """As obstore names it."""


def answered(status: str, code: str = "", key: str = "set/a") -> str:
    body = f': <?xml version="1.0"?><Error><Code>{code}</Code></Error>' if code else ""
    return (
        f"Generic S3 error: Error performing GET http://host:80/photos/{key} in 1.2ms - Server "
        f"returned non-2xx status code: {status}{body}\n\nDebug source:\nGeneric {{ .. }}"
    )


def unanswered(details: str, key: str = "set/a") -> str:
    return (
        f"Generic S3 error: Error performing GET http://host:80/photos/{key} in 1.2ms - HTTP "
        f"error: error sending request\n\nDebug source:\n{details}"
    )


METADATA = (
    "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.0s - HTTP "
    "error: error sending request\n\nDebug source:\nkind: Timeout"
)
ERRORS: dict[str, tuple[str, Exception]] = {
    "slow down": ("passing", GenericError(answered("503 Slow Down", "SlowDown"))),
    "throttled": ("passing", GenericError(answered("429 Too Many Requests"))),
    "internal": ("passing", GenericError(answered("500 Internal Server Error", "InternalError"))),
    "expired": ("denied", PermissionDeniedError(answered("403 Forbidden", "ExpiredToken"))),
    "expired, Azure": ("denied", PermissionDeniedError(answered("403 Forbidden: it has expired"))),
    "denied": ("denied", PermissionDeniedError(answered("403 Forbidden", "AccessDenied"))),
    "denied, list": ("denied", GenericError(answered("403 Forbidden"))),
    "full": ("other", GenericError(answered("507 Insufficient Storage"))),
    "full, Ceph": ("other", PermissionDeniedError(answered("403 Forbidden", "QuotaExceeded"))),
    "too large": ("other", GenericError(answered("413 Payload Too Large"))),
    "unknown": ("unsupported", GenericError(answered("501 Not Implemented", "NotImplemented"))),
    "denied, write": (
        "denied",
        PermissionDeniedError(answered("403 Forbidden", "AccessDenied").replace(" GET ", " PUT ")),
    ),
    "no bucket": ("denied", FileNotFoundError(answered("404 Not Found", "NoSuchBucket"))),
    "clock": ("denied", PermissionDeniedError(answered("403 Forbidden", "RequestTimeTooSkewed"))),
    "no object": ("missing", FileNotFoundError(answered("404 Not Found", "NoSuchKey"))),
    "replaced": ("conflict", PreconditionError(answered("412 Precondition Failed"))),
    "range": ("other", GenericError(answered("416 Range Not Satisfiable", "InvalidRange"))),
    "no parts": ("partless", GenericError("Received non-partial response when range requested")),
    "region": (
        "other",
        GenericError("Received redirect without LOCATION, this normally indicates"),
    ),
    "sent on": ("sent on", GenericError(unanswered("255.255.255.255:9, NetworkUnreachable"))),
    "no credentials": ("keyless", GenericError(METADATA)),
    "no role": (
        "keyless",
        GenericError(
            "Error performing GET http://127.0.0.1:80/latest/meta-data/iam/security-credentials/ "
            "in 1ms - Server returned non-2xx status code: 404 Not Found"
        ),
    ),
    "own source": ("denied", UnauthenticatedError("lacked valid authentication credentials")),
    "refused": ("passing", GenericError(unanswered("kind: ConnectionRefused"))),
    "unknown name": ("passing", GenericError(unanswered('"dns error", failed to lookup address'))),
    "no way": ("passing", GenericError(unanswered("kind: NetworkUnreachable"))),
    "reset": ("passing", GenericError(unanswered("kind: ConnectionReset"))),
    "early end": ("passing", GenericError(unanswered("kind: UnexpectedEof, IncompleteBody"))),
    "late": ("passing", GenericError(unanswered("kind: Timeout, TimedOut"))),
    "garbage": ("passing", GenericError(unanswered("Parse(\n Version,\n)"))),
    "long header": ("passing", GenericError(unanswered("Parse(\n TooLarge,\n)"))),
    "other": ("passing", GenericError(unanswered("something new"))),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_understood(name: str) -> None:
    kind, error = ERRORS[name]
    assert trouble_of(error, PLACE).kind == kind


def test_the_sentences_name_cause_and_remedy_golden() -> None:
    check_golden(
        "stores_trouble",
        [
            f"{name}: {trouble_of(error, PLACE).sentence(PLACE)}"
            for name, (_, error) in ERRORS.items()
        ],
    )


@pytest.mark.parametrize("key", ["expired/a", "metadata/a", "x/latest/api/token", "status:404"])
def test_the_name_of_an_object_is_not_taken_for_a_cause(key: str) -> None:
    trouble = trouble_of(GenericError(unanswered("kind: ConnectionReset", key)), PLACE)
    assert (trouble.kind, trouble.cause) == ("passing", "the connection broke off")


@pytest.mark.parametrize(
    "text",
    [
        f"GET https://h/k?X-Amz-Signature={SECRET}&X-Amz-Credential={SECRET} failed",
        f"Authorization: {SECRET}",
        f"x-amz-security-token={SECRET}, sig={SECRET}",
        f"AccountKey={SECRET};EndpointSuffix=x",
    ],
)
def test_secrets_are_left_out(text: str) -> None:
    assert SECRET not in harmless(text)
    assert SECRET not in trouble_of(GenericError(text), PLACE).sentence(PLACE)


def test_hostile_text_is_shown_harmlessly() -> None:
    trouble = trouble_of(GenericError("\x1b[31mred\x07 " + "x" * 5000 + "\nsecond"), PLACE)
    text = trouble.sentence(PLACE)
    assert text.isprintable()
    assert len(text) < 400


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("no object", Missing),
        ("replaced", Conflict),
        ("denied", Denied),
        ("no credentials", Denied),
        ("no parts", NoParts),
        ("range", StoreError),
    ],
)
def test_the_exception_says_what_it_is(name: str, kind: type[StoreError]) -> None:
    error = error_of(trouble_of(ERRORS[name][1], PLACE), "s3://photos/sets/one/a")
    assert type(error) is kind
    assert str(error).startswith("s3://photos/sets/one/a: ")
