"""What went wrong with a request to a store: whether another try may mend it, and what to do.

Invariant: a sentence names the cause and the remedy, and holds neither a credential nor the query
of an address, which may be signed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stoker.stores.location import Location
from stoker.stores.objects import Conflict, Denied, Missing, StoreError
from stoker.text import one_line, shown

_ADDRESS = re.compile(r"\bperforming [A-Z]+ \S+")
_WRITE = re.compile(r"\bperforming (PUT|POST|DELETE) ")
_QUERY = re.compile(r"\?[^\s\"')]*")
_STATUS = re.compile(
    r"(?:status code:?|status:?|returned|error code:?) \(?(\d{3})\b", re.IGNORECASE
)
_CODE = re.compile(r"<Code>([A-Za-z]+)</Code>")
_KEY = re.compile(r'(?<=Path )".*?"(?=: | contained)', re.DOTALL)
_SECRET = re.compile(
    r"(?i)(authorization|signature|x-amz-security-token|credential|accountkey|sig)([=:]\s*)[^\s,;\"']+"
)
_METADATA = re.compile(
    r"https?://(169\.254\.|metadata\.google\.internal|"
    r"[^/\s]+/(latest/(api/token|meta-data)|computeMetadata/|metadata/identity))|"
    r"Account must be specified"
)
"""Where credentials are searched for last: an error from there, whatever it is, says that there are
none. An account is searched for nowhere."""
_EXPIRED = re.compile(r"\bexpired\b", re.IGNORECASE)
CAUSES = {
    r"ConnectionRefused": "the server does not take connections",
    r"dns error|failed to lookup": "the name of the server is not known",
    r"Unreachable\b": "there is no way to the server",
    r"\bTimedOut\b|kind: Timeout": "the server did not answer in time",
    r"Connection(Reset|Aborted)|Incomplete(Message|Body)|UnexpectedEof|BrokenPipe": (
        "the connection broke off"
    ),
    r"TooLarge": "the answer has a header that is too long",
    r"Parse\(": "what answers there is no HTTP server",
}
"""What the details of an error say, in the order in which they are looked for."""
_FULL = re.compile(r"quota|storage_?(full|cap|space)|insufficientstorage|nospace", re.IGNORECASE)
"""Codes of a store in which there is no room."""
NOT_OFFERED = {400, 405, 411, 422, 501}
"""Answers to what a store does not know, such as the condition of a write."""
NOWHERE = "255.255.255.255:9"
"""An address that nothing can connect to, in the way of requests that a server sends on."""
SENT_ON = {301, 302, 303, 307, 308}
PLACES = {
    "s3": "AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "the name of the bucket",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
}
"""What says where a store is."""
PASSING = {408, 429, 500, 502, 503, 504, 509}
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile of 'aws configure'",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, or 'gcloud auth application-default login'",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


@dataclass(frozen=True)
class StoreTrouble:
    """One failed request."""

    kind: str
    """`missing`, `conflict`, `denied`, `keyless` (there are no credentials), `partless` (the server
    sends whole objects only), `unsupported`, `odd` (a key in a listing), `sent on` (a redirect),
    `passing` or `other`."""
    cause: str
    """What the store or the link said, in a few words."""
    remedy: str

    @property
    def may_pass(self) -> bool:
        """Whether another try may succeed."""
        return self.kind == "passing"

    def sentence(self, place: object) -> str:
        """What happened at a place, and what to do."""
        return f"{shown(str(place))}: {self.cause}: {self.remedy}"


class NoParts(StoreError):
    """The server sends whole objects only."""


class OddKey(StoreError):
    """There is an object whose key is no path, so obstore lists nothing there."""


class Unsupported(StoreError):
    """The store does not offer what was asked for."""


def error_of(trouble: StoreTrouble, place: str) -> StoreError:
    """The exception for trouble that another try does not mend."""
    kinds = {
        "missing": Missing,
        "conflict": Conflict,
        "denied": Denied,
        "keyless": Denied,
        "partless": NoParts,
        "unsupported": Unsupported,
        "odd": OddKey,
    }
    return kinds.get(trouble.kind, StoreError)(trouble.sentence(place))


def harmless(text: str) -> str:
    """The first line of an error's text without queries and secrets, short."""
    line = _SECRET.sub(r"\1\2...", _QUERY.sub("", one_line(text)))
    return shown(line if len(line) <= 160 else f"{line[:160]}...")


def trouble_of(error: BaseException, location: Location) -> StoreTrouble:
    """What an error of obstore means."""
    text, name = str(error), type(error).__name__
    line = text.partition("Debug source:")[0]
    answer = _ADDRESS.sub("", line)  # the name of an object may be any word
    code = (_CODE.search(answer) or ["", ""])[1]
    status = int((_STATUS.search(answer) or ["", "0"])[1])
    if _METADATA.search(line):
        remedy = f"set {CREDENTIALS.get(location.scheme, 'the rights of the server')}"
        return StoreTrouble("keyless", "no credentials were found", remedy)
    is_write = _WRITE.search(line) is not None
    if trouble := refusal_of(answer, name, code, status, location, is_write=is_write):
        return trouble
    if name in ("NotFoundError", "FileNotFoundError") or status == 404:
        return StoreTrouble("missing", "there is no such object", "check the location")
    if name in ("AlreadyExistsError", "PreconditionError", "NotModifiedError") or status in (
        409,
        412,
    ):
        return StoreTrouble("conflict", "another process has written it", "try again")
    if "non-partial response" in answer or "Range request not supported" in answer:
        remedy = "let it be cached (STOKER_CACHE_GB above 0), or use another server"
        return StoreTrouble("partless", "the server cannot send parts of an object", remedy)
    if "redirect without LOCATION" in answer:
        return StoreTrouble("other", "the bucket is in another region", "set AWS_REGION")
    if NOWHERE in text or (status in SENT_ON and not location.is_web):
        return StoreTrouble(
            "sent on",
            "the server sends this request on to another place, which gets no credentials",
            f"check {PLACES.get(location.scheme, 'the location')}",
        )
    if name in ("NotSupportedError", "NotImplementedError"):
        return StoreTrouble("unsupported", harmless(text), "check the location")
    if "object with invalid path" in line:
        key = harmless(match[0]) if (match := _KEY.search(line)) else "empty"
        return StoreTrouble("odd", f"a key of an object there is no path ({key})", "remove it")
    if name in ("UnknownConfigurationKeyError", "InvalidPathError"):
        return StoreTrouble("other", harmless(text), "check the location")
    if status and status not in PASSING:
        kind = "unsupported" if status in NOT_OFFERED else "other"
        return StoreTrouble(
            kind, f"the server answered {status} {code}".strip(), "check the location"
        )
    if status:
        what = "asks for fewer requests" if status in (429, 503) else f"answered {status}"
        return StoreTrouble("passing", f"the server {what} ({code or status})", "try again later")
    cause = cause_of(text) or f"no whole answer ({harmless(text)})"
    return StoreTrouble("passing", cause, "check the link and the server")


def refusal_of(
    answer: str, name: str, code: str, status: int, location: Location, *, is_write: bool
) -> StoreTrouble | None:
    """What a store refuses, whatever is asked for; None for other errors."""
    if status == 507 or (status not in (0, 404, 429) and _FULL.search(code)):
        reason = f" ({code})" if code else ""
        return StoreTrouble(
            "other", f"the store is full{reason}", "free space there, or have its quota raised"
        )
    if status == 413 or code == "EntityTooLarge":
        return StoreTrouble(
            "other",
            "the server refuses an object of this size",
            "raise the limit of the server, or of the proxy in front of it",
        )
    if code == "NoSuchBucket" or "ContainerNotFound" in answer:
        return StoreTrouble(
            "denied", f"there is no such bucket ({location.root})", "check its name"
        )
    is_refused = status in (401, 403) or name in (
        "PermissionDeniedError",
        "UnauthenticatedError",
        "PermissionError",
    )
    is_expired = (is_refused or status == 400) and _EXPIRED.search(answer)
    if code in ("ExpiredToken", "TokenRefreshRequired") or is_expired:
        return StoreTrouble(
            "denied", "the credentials have expired", "renew them, then run the same command again"
        )
    if code == "RequestTimeTooSkewed":
        return StoreTrouble("denied", "this machine's clock is wrong", "set it, then try again")
    if is_refused:
        credentials = CREDENTIALS.get(location.scheme, "the rights of the server")
        reason = f" ({code})" if code else ""
        if is_write:
            remedy = f"check that these credentials may write there, and {credentials}"
            return StoreTrouble("denied", f"writing is denied{reason}", remedy)
        return StoreTrouble("denied", f"access is denied{reason}", f"check {credentials}")
    return None


def cause_of(text: str) -> str:
    """Why a request was not answered, from the details of its error; empty if they do not say."""
    details = text.partition("Debug source:")[2]
    return next((words for mark, words in CAUSES.items() if re.search(mark, details)), "")
