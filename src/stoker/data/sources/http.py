"""One question to a web server: bytes, another place to ask, or a reason why not.

Invariants: only http and https are ever spoken. A reason is made of our own words, a status, a host
or a media type, never of a URL, an exception's text or a server's sentence: a password in a URL
stays there. A redirect from outside never leads to this machine or to its metadata service, by
whatever name; that is judged by the address of the connection, before anything is sent.

The standard library is enough: a question is one GET on a connection of its own, waiting is done
by threads that hold no lock, and what a library would add (pools, sessions, encodings) is either
not wanted or bounded more strictly here. `urllib` brings the environment's proxies.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import re
import socket
import ssl
import time
import urllib.request
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

import stoker

BLOCK = 1 << 16
LEAVE_ALONE = "%/:=&?~#+!$,;'@()*[]-._"
"""What a URL may hold as it is; the rest (spaces, letters beyond ASCII) is quoted."""
TEXT = re.compile(
    r"text/.*|(application|message|multipart)/(.+\+)?(json|xml|javascript|x-javascript|ecmascript"
    r"|xhtml|rss|atom|x-www-form-urlencoded|form-data|rfc822)"
)
"""Media types that say of themselves that they are no image."""
METADATA = {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("100.100.100.200")}
"""Metadata services of providers that are not at a link-local address."""
GOES_ON = (301, 302, 303, 307, 308)
MAY_PASS = (408, 425, 429)


class Failed(Exception):
    """A question without bytes for an answer; the text says why."""

    def __init__(
        self,
        why: str,
        *,
        passing: bool = False,
        unreachable: bool = False,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(f"download: {why}")
        self.passing = passing
        """Another try may do better."""
        self.unreachable = unreachable
        """The host did not even begin to answer."""
        self.wait_s = wait_s
        """How long the host asks to be left alone."""


@dataclass(frozen=True)
class Target:
    """Where to ask, taken apart."""

    url: str
    """Without user and password."""
    scheme: str
    host: str
    authorization: str | None = field(default=None, repr=False)


@dataclass(eq=False)
class Connection:
    """One question under way, as others may see and end it."""

    deadline: float
    outside: bool = False
    """Whether an earlier question of the same download went beyond this machine."""
    inside: bool = False
    """Whether this one stays on this machine."""
    received: int = 0
    is_cut: bool = False
    _socket: socket.socket | None = None

    def opened(self, made: socket.socket, host: str, proxied: bool) -> None:
        """The connection is there and nothing is sent: the moment to refuse it."""
        self._socket = made
        self.inside = is_inside(host if proxied else made.getpeername()[0])
        if self.outside and self.inside:
            raise Failed("redirect to a loopback or link-local address refused")
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """End it from another thread: whoever reads finds the end at once."""
        self.is_cut = True
        if self._socket is not None:
            with suppress(OSError):
                # Not the TLS socket's own method: that one waits for a reader to let go.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def place_of(url: str, origin: Target | None = None) -> Target:
    """A URL made fit to be asked for, or Failed; `origin` is who redirected here."""
    try:
        return taken_apart(urljoin(origin.url, url) if origin else url.strip(), origin)
    except (ValueError, AttributeError) as error:
        # What is no text at all has no `strip`: a list of URLs may have holes.
        raise Failed("not a valid URL") from error


def taken_apart(url: str, origin: Target | None) -> Target:
    parts = urlsplit(url)
    scheme, host, port = parts.scheme.lower(), parts.hostname or "", parts.port
    if scheme not in ("http", "https"):
        raise Failed("only http and https")
    if origin and (origin.scheme, scheme) == ("https", "http"):
        raise Failed("redirect from https to http refused")
    host = (host if ":" in host else host.encode("idna").decode("ascii")).lower()
    if not host or re.search(r"[\x00-\x20\x7f/\\]", host):
        raise Failed("not a valid URL")
    netloc = (f"[{host}]" if ":" in host else host) + (f":{port}" if port else "")
    path, query = quote(parts.path, LEAVE_ALONE), quote(parts.query, LEAVE_ALONE)
    clean = urlunsplit((scheme, netloc, path or "/", query, ""))
    authorization = None
    if origin is None and parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(secret.encode()).decode()
    elif origin and urlsplit(origin.url)[:2] == (scheme, netloc):
        authorization = origin.authorization
    return Target(clean, scheme, host, authorization)


def is_inside(host: str) -> bool:
    """Whether an address or name is this machine's own, or its metadata service."""
    name = host.partition("%")[0].rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            # 127.1, 0x7f000001 and 2130706433 are addresses too.
            address = ipaddress.ip_address(socket.inet_aton(name))
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    address = mapped or address
    own = address.is_loopback or address.is_link_local or address.is_unspecified
    return own or address in METADATA


class _Question(urllib.request.Request):
    """A request that knows its line."""

    line: Connection
    asked_host: str


class _Plain(http.client.HTTPConnection):
    def __init__(self, host: str, *, opened: Any, **options: Any) -> None:
        super().__init__(host, **options)
        self._opened = opened

    def connect(self) -> None:
        super().connect()
        self._opened(self.sock)


class _Secure(_Plain, http.client.HTTPSConnection):
    """The same over TLS: what is reported is the TLS socket."""


class _Speaker(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections that report to their line."""

    def __init__(self) -> None:
        urllib.request.AbstractHTTPHandler.__init__(self)

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """Whose certificates count; read when the first one is shown."""
        return ssl.create_default_context()

    def http_open(self, request: Any) -> Any:
        return self.do_open(partial(_Plain, opened=self._opened(request)), request)

    def https_open(self, request: Any) -> Any:
        opened = self._opened(request)
        return self.do_open(partial(_Secure, opened=opened, context=self.trust), request)

    def _opened(self, request: Any) -> Any:
        proxied = request.has_proxy() or bool(getattr(request, "_tunnel_host", None))
        return partial(request.line.opened, host=request.asked_host, proxied=proxied)


def opener() -> urllib.request.OpenerDirector:
    """What speaks http and https, through the environment's proxies, and nothing else: no file,
    no ftp, and no redirect that was not looked at."""
    made = urllib.request.OpenerDirector()
    for part in (urllib.request.ProxyHandler(), urllib.request.UnknownHandler(), _Speaker()):
        made.add_handler(part)
    return made


def ask(
    speak: urllib.request.OpenerDirector,
    place: Target,
    line: Connection,
    idle_s: float,
    max_bytes: int,
) -> bytes | Target:
    """The body at a place, or where it is now; anything else is raised as Failed."""
    question = _Question(place.url)
    question.line, question.asked_host = line, place.host
    question.add_header("User-Agent", f"stoker/{stoker.__version__}")
    question.add_header("Accept", "image/*,*/*;q=0.5")
    question.add_header("Accept-Encoding", "identity")
    if place.authorization:
        question.add_unredirected_header("Authorization", place.authorization)
    try:
        response = speak.open(question, timeout=idle_s)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise failure(error, place.host, line, begun=False) from error
    try:
        with response:
            if response.status in GOES_ON:
                return next_place(response, place)
            return body(response, line, max_bytes)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise failure(error, place.host, line, begun=True) from error


def next_place(response: http.client.HTTPResponse, place: Target) -> Target:
    location = response.headers.get("Location")
    if not location:
        raise Failed(f"{status_words(response.status)} without a Location")
    # http.client reads headers as Latin-1; what servers send beyond ASCII is UTF-8.
    with suppress(UnicodeError):
        location = location.encode("latin-1").decode("utf-8")
    return place_of(location, place)


def body(response: http.client.HTTPResponse, line: Connection, max_bytes: int) -> bytes:
    """Everything the server has to say, if it is what was asked for and not too much."""
    if response.status != HTTPStatus.OK:
        passing = response.status in MAY_PASS or response.status >= 500
        wait_s = asked_wait_s(response.headers.get("Retry-After")) if passing else None
        raise Failed(status_words(response.status), passing=passing, wait_s=wait_s)
    kind = (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if TEXT.fullmatch(kind):
        raise Failed(f"{plain(kind)} is not an image")
    encoding = (response.headers.get("Content-Encoding") or "identity").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip"):
        raise Failed(f"encoded as {plain(encoding)}, which was not asked for")
    expected = response.length
    if expected is not None and expected > max_bytes:
        raise Failed(f"larger than {size_words(max_bytes)}")
    pieces = []
    while piece := response.read1(BLOCK):
        pieces.append(piece)
        line.received += len(piece)
        if line.received > max_bytes:
            raise Failed(f"larger than {size_words(max_bytes)}")
    if line.is_cut:
        raise Failed("timed out", passing=True)
    if expected is not None and line.received != expected:
        raise Failed(f"ended after {line.received} of {expected} bytes", passing=True)
    data = b"".join(pieces)
    return data if encoding == "identity" else unzipped(data, max_bytes)


def unzipped(data: bytes, max_bytes: int) -> bytes:
    """A gzip body, never larger than it may be."""
    unzip = zlib.decompressobj(wbits=31)
    try:
        plain_data = unzip.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise Failed("damaged gzip encoding", passing=True) from error
    if len(plain_data) > max_bytes:
        raise Failed(f"larger than {size_words(max_bytes)}")
    if not unzip.eof or unzip.unused_data:
        raise Failed("damaged gzip encoding", passing=True)
    return plain_data


def failure(error: Exception, host: str, line: Connection, *, begun: bool) -> Failed:
    """What went wrong, in our words. `begun`: the server had begun to answer."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, str):
        return Failed("the proxy that the environment names is neither http nor https")
    if line.is_cut or isinstance(cause, TimeoutError):
        return Failed("timed out", passing=True, unreachable=not begun)
    if isinstance(cause, socket.gaierror):
        again = cause.errno == socket.EAI_AGAIN
        return Failed(f"no address for host {host}", passing=again, unreachable=again)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Failed(f"the certificate of {host} is not valid")
    if isinstance(cause, ConnectionRefusedError):
        return Failed("connection refused", passing=True, unreachable=True)
    if isinstance(cause, http.client.IncompleteRead):
        return Failed("ended before its end", passing=True)
    if isinstance(cause, OSError):
        words = (
            "connection lost" if begun or isinstance(cause, ConnectionError) else "no connection"
        )
        return Failed(words, passing=True, unreachable=not begun)
    if isinstance(cause, http.client.InvalidURL | UnicodeError):
        return Failed("not a valid URL")
    if isinstance(cause, http.client.BadStatusLine | http.client.UnknownProtocol | ValueError):
        return Failed("the answer is not HTTP")
    return Failed("the answer has too many or too long headers")


def asked_wait_s(text: str | None) -> float | None:
    """Retry-After in seconds: a number, or a date."""
    if text is None:
        return None
    if re.fullmatch(r"\d{1,9}", text.strip()):
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return None


def status_words(status: int) -> str:
    """404 Not Found. Our own phrase: the server's may hold anything."""
    with suppress(ValueError):
        return f"{status} {HTTPStatus(status).phrase}"
    return f"status {status}"


def size_words(count: int) -> str:
    return f"{count} bytes" if count % (1 << 20) else f"{count >> 20} MiB"


def plain(text: str) -> str:
    """A server's word, short and without anything that a terminal would obey."""
    return re.sub(r"[^a-z0-9+./_-]", "?", text)[:60]
