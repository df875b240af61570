"""Rules about where a question may go and what a server may say, without a server."""

from __future__ import annotations

import re
import socket
import ssl
import time
from email.utils import formatdate
from http.client import IncompleteRead, InvalidURL
from urllib.error import URLError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.data.sources.http import (
    PRIVATE_REASONS,
    Failed,
    Transfer,
    failure,
    parse_target,
    retry_after_s,
    sanitize,
    status_text,
)

PUBLIC, INTRANET, OWN = "93.184.216.34", "10.0.0.7", "169.254.169.254"


class TestWhereARequestMayGo:
    """By the address, before it is connected to; behind a proxy, by the name."""

    @pytest.mark.parametrize("redirected", [False, True])
    @pytest.mark.parametrize("host", [PUBLIC, INTRANET, OWN, "127.0.0.1", "::1", "localhost"])
    def test_only_to_public_addresses(self, host: str, redirected: bool) -> None:
        transfer = Transfer(deadline=0, from_outside=redirected)
        assert transfer.allows(host) == (host == PUBLIC)
        assert str(transfer.refusal()) == PRIVATE_REASONS[redirected]

    @pytest.mark.parametrize("host", [PUBLIC, INTRANET, OWN, "127.0.0.1", "::1", "localhost"])
    def test_with_consent_to_all_that_are_listed(self, host: str) -> None:
        assert Transfer(deadline=0, allow_private=True).allows(host)

    @pytest.mark.parametrize("host", ["127.0.0.1", OWN, "::1", "fe80::1", "localhost"])
    def test_with_consent_but_not_back_to_this_machine(self, host: str) -> None:
        transfer = Transfer(deadline=0, from_outside=True, allow_private=True)
        assert not transfer.allows(host)
        assert transfer.allows(INTRANET)
        assert "loopback or link-local address refused" in str(transfer.refusal())


class TestPlaces:
    @pytest.mark.parametrize(
        ("location", "url"),
        [
            ("/c", "https://a.example/c"),
            ("c", "https://a.example/x/c"),
            ("//b.example/c", "https://b.example/c"),
            ("https://B.example:444/ä b", "https://b.example:444/%C3%A4%20b"),
            ("https://u:p@b.example/", "https://b.example/"),
            ("https://bücher.example", "https://xn--bcher-kva.example/"),
            ("?q=1#part", "https://a.example/x/y?q=1"),
        ],
    )
    def test_where_a_redirect_leads(self, location: str, url: str) -> None:
        place = parse_target(location, parse_target("https://u:p@a.example/x/y"))
        assert place.url == url
        assert (place.authorization is not None) == url.startswith("https://a.example/")

    def test_never_from_https_to_http(self) -> None:
        with pytest.raises(Failed, match="redirect from https to http refused"):
            parse_target("http://a.example/", parse_target("https://a.example/"))

    def test_from_http_to_https_it_may(self) -> None:
        assert (
            parse_target("https://a.example/", parse_target("http://a.example/")).scheme == "https"
        )

    def test_a_password_is_not_shown(self) -> None:
        place = parse_target("https://jane:sesame@a.example/")
        assert "sesame" not in place.url
        assert place.authorization
        assert place.authorization not in repr(place)

    @given(st.one_of(st.text(), st.text().map("http://".__add__), st.none()))
    def test_any_text_is_a_place_or_no_valid_url(self, url: str) -> None:
        for origin in (None, parse_target("http://a.example/")):
            try:
                place = parse_target(url, origin)
            except Failed as why:
                assert str(why) in ("download: not a valid URL", "download: only http and https")
            else:
                assert place.url.isascii()
                assert not re.search(r"[\x00-\x20\x7f]", place.url)

    @pytest.mark.parametrize("url", ["http://a/\ud800", "http://\ud800/", "http://\ud800:x@a/"])
    def test_text_that_is_none(self, url: str) -> None:
        with pytest.raises(Failed, match="not a valid URL"):
            parse_target(url)

    def test_line_ends_cannot_be_smuggled_in(self) -> None:
        place = parse_target("http://a.example/x\r\nHost: b\r\n\r\n")
        assert not set("\r\n ") & set(place.url)


@pytest.mark.parametrize(
    ("error", "why", "temporary"),
    [
        (URLError(TimeoutError()), "timed out", True),
        (URLError(socket.gaierror(socket.EAI_NONAME, "?")), "no address for host h", False),
        (URLError(socket.gaierror(socket.EAI_AGAIN, "?")), "no address for host h", True),
        (URLError(ssl.SSLCertVerificationError()), "the certificate of h is not valid", False),
        (URLError(ssl.SSLError()), "no connection", True),
        (URLError(OSError(113, "No route to host")), "no connection", True),
        (ConnectionResetError(), "connection lost", True),
        (IncompleteRead(b""), "ended too early", True),
        (InvalidURL("http://jane:sesame@h"), "not a valid URL", False),
    ],
)
def test_an_error_is_put_in_our_words(error: Exception, why: str, temporary: bool) -> None:
    said = failure(error, "h", Transfer(0), begun=False)
    assert (str(said), said.temporary) == (f"download: {why}", temporary)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), (" 120 ", 120), (None, None), ("soon", None), ("-1", None), ("9" * 30, None)],
)
def test_a_pause_in_seconds(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text) == seconds


def test_a_pause_as_a_date() -> None:
    found = retry_after_s(formatdate(time.time() + 100, usegmt=True))
    assert found is not None
    assert 60 < found <= 101
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0


def test_a_servers_words_are_not_repeated() -> None:
    assert status_text(404) == "404 Not Found"
    assert status_text(799) == "status 799"
    assert sanitize("text/\x1b[31mhtml") == "text/??31mhtml"
    assert len(sanitize("x" * 1000)) == 60
