"""Downloads from a server that does everything wrong: real sockets, small limits."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import stoker
from faulty_http import FaultyServer, body_of
from measured import held, measured
from stoker.data.sources import download, http
from stoker.data.sources.download import DownloadLimits, Fetched, back_off_s, fetch_all
from stoker.data.sources.http import PRIVATE_REASONS
from waiting import until

loopback = partial(DownloadLimits, allow_private=True)
"""The servers of these tests are on this machine."""
QUICK = loopback(tries=3, max_bytes=1 << 20, first_wait_s=0.01)
HASTY = replace(QUICK, idle_s=0.3, total_s=0.6)
"""For what never comes."""
PATIENT = loopback(idle_s=600, total_s=600)
"""For what does not end by itself within any test."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = FaultyServer()
    yield made
    made.close()


def fetch(server: FaultyServer, *paths: str, limits: DownloadLimits = QUICK) -> list[Fetched]:
    return list(fetch_all([server.url(path) for path in paths], limits))


def fetch_one(server: FaultyServer, path: str, limits: DownloadLimits = QUICK) -> Fetched:
    (found,) = fetch(server, path, limits=limits)
    return found


@pytest.mark.parametrize(
    "path",
    [
        "fine/1",
        "bytes/1",
        "typeless/1",
        "chunks/1",
        "gzip/1",
        "flaky/500/2/x",
        "flaky/503/1/x",
        "flaky/408/1/x",
        "short/2/x",
    ],
)
def test_what_comes_in_the_end_is_the_body(server: FaultyServer, path: str) -> None:
    assert fetch_one(server, path) == Fetched(body_of(f"/{path}"))


@pytest.mark.parametrize("hops", [1, 5])
def test_redirects_are_followed(server: FaultyServer, hops: int) -> None:
    assert fetch_one(server, f"hops/{hops}/x") == Fetched(body_of("/fine/x"))


def test_an_svg_is_left_to_the_decoder(server: FaultyServer) -> None:
    assert fetch_one(server, "svg/1").data == b"<svg/>"


FAILURES = {
    # path: reason, whether it may pass, how often it is asked for
    "status/404": ("404 Not Found", False, 1),
    "status/410": ("410 Gone", False, 1),
    "status/403": ("403 Forbidden", False, 1),
    "status/204": ("204 No Content", False, 1),
    "status/500": ("500 Internal Server Error", True, 3),
    "status/599": ("status 599", True, 3),
    "status/429": ("429 Too Many Requests", True, 3),
    "html/1": ("text/html is not an image", False, 1),
    "json/1": ("application/ld+json is not an image", False, 1),
    "drip/1": ("timed out", True, 3),
    "drip-headers/1": ("timed out", True, 3),
    "hang/1": ("timed out", True, 3),
    "endless/1": ("larger than 1 MiB", False, 1),
    "endless-chunks/1": ("larger than 1 MiB", False, 1),
    "huge/1": ("larger than 1 MiB", False, 1),
    "bomb/1": ("larger than 1 MiB", False, 1),
    "short/9/x": ("ended after 260 of 520 bytes", True, 3),
    "chunks-cut/1": ("ended too early", True, 3),
    "reset/1": ("connection lost", True, 3),
    "slam/1": ("connection lost", True, 3),
    "garbage/1": ("the answer is not HTTP", False, 1),
    "long-header/1": ("the answer has too many or too long headers", False, 1),
    "many-headers/1": ("the answer has too many or too long headers", False, 1),
    "gzip-cut/1": ("damaged gzip encoding", True, 3),
    "brotli/1": ("encoded as br; expected no encoding or gzip", False, 1),
    "hops/6/x": ("more than 5 redirects", False, 1),
    "nowhere/1": ("302 Found without a Location", False, 1),
}


@pytest.mark.parametrize("path", FAILURES)
def test_a_failure_has_a_reason_and_so_many_tries(server: FaultyServer, path: str) -> None:
    why, temporary, times = FAILURES[path]
    limits = HASTY if why == "timed out" else QUICK
    assert fetch_one(server, path, limits) == Fetched(None, f"download: {why}", temporary)
    # Whoever has timed out may be quicker than the server's own thread.
    until(lambda: server.asked[f"/{path}"] >= times)
    assert server.asked[f"/{path}"] == times


def test_an_endless_body_is_not_read_to_its_end(server: FaultyServer) -> None:
    fetch_one(server, "endless/1")
    # What the kernel's buffers take is sent, too.
    assert server.sent < QUICK.max_bytes + (16 << 20)


def test_a_redirect_loop_ends(server: FaultyServer) -> None:
    assert fetch_one(server, "loop/1").reason == "download: more than 5 redirects"
    assert server.asked["/loop/1"] == 6


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:image/png,x", "gopher://x/"]
)
def test_no_redirect_leads_out_of_the_web(server: FaultyServer, place: str) -> None:
    server.places = [place]
    assert fetch_one(server, "to/0") == Fetched(None, "download: only http and https")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "x.jpg", "", "//host/x"])
def test_only_the_web_is_asked(url: str) -> None:
    assert list(fetch_all([url], QUICK)) == [Fetched(None, "download: only http and https")]


@pytest.mark.parametrize(
    "url",
    ["http://", "http://a b/x", "http://x:port/", "http://[::1/x", "http://x:99999/", "http://.x/"],
)
def test_what_is_no_url_is_no_disaster(url: str) -> None:
    assert list(fetch_all([url], QUICK)) == [Fetched(None, "download: not a valid URL")]


def test_a_url_may_hold_spaces_and_any_letters(server: FaultyServer) -> None:
    found = fetch(server, "fine/a b.jpg", "fine/größe.jpg?q=é", "fine/a%20b.jpg")
    assert [one.reason for one in found] == [None] * 3
    assert server.asked == {"/fine/a%20b.jpg": 2, "/fine/gr%C3%B6%C3%9Fe.jpg?q=%C3%A9": 1}


def test_a_server_is_told_who_asks_and_to_send_no_encoding(server: FaultyServer) -> None:
    fetch_one(server, "fine/1")
    (headers,) = server.headers_seen
    assert headers["User-Agent"] == f"stoker/{stoker.__version__}"
    assert headers["Accept-Encoding"] == "identity"


class TestSecrets:
    def with_secret(self, server: FaultyServer, path: str) -> str:
        return server.url(path).replace("://", "://jane:s%65same@")

    def test_a_password_is_sent_as_one(self, server: FaultyServer) -> None:
        (found,) = fetch_all([self.with_secret(server, "secret/1")], QUICK)
        assert found.data == b"Basic amFuZTpzZXNhbWU="

    def test_and_to_nobody_else(self, server: FaultyServer) -> None:
        server.places = [server.url("secret/1", "localhost"), server.url("secret/2")]
        urls = [self.with_secret(server, "to/0"), self.with_secret(server, "to/1")]
        other, same = fetch_all(urls, QUICK)
        assert other.data == b"none"
        assert same.data == b"Basic amFuZTpzZXNhbWU="

    def test_and_is_in_no_reason(self, server: FaultyServer) -> None:
        paths = [path for path, (why, _, _) in FAILURES.items() if why != "timed out"]
        found = list(fetch_all([self.with_secret(server, path) for path in paths], QUICK))
        assert [one.reason for one in found] == [f"download: {FAILURES[p][0]}" for p in paths]

    @pytest.mark.parametrize("rest", ["host:port/x", "[::1/x", "no.such.host.invalid/x", "/x", ""])
    def test_nor_where_the_url_is_wrong(self, rest: str) -> None:
        (found,) = fetch_all([f"http://jane:sesame@{rest}"], QUICK)
        assert found.reason
        assert "jane" not in found.reason
        assert "sesame" not in found.reason


class TestOrder:
    def test_answers_come_in_the_order_of_the_urls(self, server: FaultyServer) -> None:
        delays = random.Random(7).choices(range(60), k=150)
        paths = [f"late/{delay}/{number}" for number, delay in enumerate(delays)]
        paths[40], paths[90] = "status/404", "flaky/500/2/x"
        found = fetch(server, *paths)
        assert [one.data for one in found] == [
            None if path == "status/404" else body_of(f"/{path}") for path in paths
        ]

    def test_a_url_twice_is_two_answers(self, server: FaultyServer) -> None:
        assert fetch(server, "fine/1", "fine/1") == [Fetched(body_of("/fine/1"))] * 2

    def test_no_url_no_answer(self) -> None:
        assert list(fetch_all([], QUICK)) == []


class TestPoliteness:
    def test_a_host_sees_no_more_connections_than_it_may(self, server: FaultyServer) -> None:
        limits = loopback(per_host=3, together=16)
        fetch(server, *(f"company/{number}" for number in range(40)), limits=limits)
        assert 2 <= server.most["127.0.0.1"] <= 3

    def test_nor_do_all_together(self, server: FaultyServer) -> None:
        limits = loopback(per_host=4, together=6)
        urls = [
            server.url(f"company/{number}", host)
            for number in range(20)
            for host in ("127.0.0.1", "localhost")
        ]
        assert all(one.data for one in fetch_all(urls, limits))
        assert server.most["127.0.0.1"] <= 4
        assert server.most["localhost"] <= 4
        assert 2 <= server.most[""] <= 6

    def test_nor_a_host_that_all_are_sent_to(self, server: FaultyServer) -> None:
        server.places = [server.url(f"late/30/{n}", "localhost") for n in range(20)]
        found = fetch(server, *(f"to/{n}" for n in range(20)), limits=loopback(per_host=2))
        assert all(one.data for one in found)
        assert server.most["localhost"] <= 2

    def test_a_pause_that_is_asked_for_is_made(self, server: FaultyServer) -> None:
        assert fetch_one(server, "busy/1/x").data
        (first, _), (second, _) = server.asked_at
        assert second - first >= 1.0

    def test_by_all_who_ask_that_host(self, server: FaultyServer) -> None:
        limits = loopback(per_host=1, first_wait_s=0.01)
        found = fetch(server, "busy/1/x", "fine/1", "fine/2", limits=limits)
        assert all(one.data for one in found)
        (first, _), *later = server.asked_at
        assert all(when - first >= 1.0 for when, _ in later)

    def test_a_very_long_pause_is_left_to_a_later_run(self, server: FaultyServer) -> None:
        limits = loopback(per_host=1)
        found = fetch(server, "always-busy/7200", *["fine/1"] * 20, limits=limits)
        why = "download: host 127.0.0.1 asks for a pause of 7200 s"
        assert found == [Fetched(None, why, temporary=True)] * 21
        assert sum(server.asked.values()) == 1

    def test_waits_grow_and_differ_and_are_the_same_every_time(self) -> None:
        waits = [back_off_s("http://x/y", tries, 0.5) for tries in (1, 2, 3)]
        assert [0.5 * 2**n <= wait <= 0.75 * 2**n for n, wait in enumerate(waits)] == [True] * 3
        assert back_off_s("http://x/y", 1, 0.5) == waits[0] != back_off_s("http://x/z", 1, 0.5)


class TestDeadHosts:
    def test_a_dead_host_does_not_cost_its_tries_for_every_url(self, server: FaultyServer) -> None:
        limits = loopback(tries=3, per_host=4, idle_s=0.2, first_wait_s=0.01)
        found = fetch(server, *(f"hang/{number}" for number in range(400)), limits=limits)
        assert all(one.temporary and one.data is None for one in found)
        assert found[-1].reason == "download: host 127.0.0.1 does not answer (timed out)"
        limit = download.UNREACHABLE_IN_A_ROW
        until(lambda: sum(server.asked.values()) >= limit)
        assert sum(server.asked.values()) <= limit + limits.per_host

    def test_a_refused_connection_is_said_and_may_pass(self) -> None:
        refused = Fetched(None, "download: connection refused", temporary=True)
        down = "download: host 127.0.0.1 does not answer (connection refused)"
        with socket.socket() as taken:
            # Nobody else gets the port, and nobody listens.
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
            assert list(fetch_all([url], QUICK)) == [refused]
            found = list(fetch_all([url] * 50, QUICK))
        assert set(found) <= {refused, Fetched(None, down, temporary=True)}

    def test_one_answer_between_them_and_a_host_is_not_dead(self, server: FaultyServer) -> None:
        limits = loopback(tries=1, per_host=1)
        paths = [path for number in range(30) for path in (f"slam/{number}", "status/404")]
        found = fetch(server, *paths, limits=limits)
        assert {one.reason for one in found} == {
            "download: connection lost",
            "download: 404 Not Found",
        }

    def test_after_a_rest_it_is_asked_again(self, server: FaultyServer) -> None:
        passed_s = [0.0]
        limits = loopback(tries=1, per_host=1, together=1, ahead=0)
        answers = fetch_all(
            [server.url(path) for path in [*["slam/1"] * 21, "fine/1"]],
            limits,
            clock=lambda: time.monotonic() + passed_s[0],
        )
        found = [next(answers) for _ in range(21)]
        assert found[-1].reason == "download: host 127.0.0.1 does not answer (connection lost)"
        passed_s[0] = download.REST_S + 1
        assert next(answers).data == body_of("/fine/1")

    def test_a_dead_host_does_not_hurt_others(self, server: FaultyServer) -> None:
        urls = [server.url(f"slam/{n}", "localhost") for n in range(40)]
        urls += [server.url(f"fine/{n}") for n in range(40)]
        found = list(fetch_all(urls, QUICK))
        assert [one.data for one in found[40:]] == [body_of(f"/fine/{n}") for n in range(40)]


class TestMemory:
    def test_a_consumer_that_takes_nothing_stops_the_downloads(self, server: FaultyServer) -> None:
        limits = loopback(per_host=4, together=4, ahead=3)
        answers = fetch_all([server.url(f"fine/{n}") for n in range(200)], limits)
        for taken in range(1, 4):
            next(answers)
            expected = taken - 1 + limits.together + limits.ahead
            assert settled(server, expected) == expected
        assert len(list(answers)) == 197

    def test_so_do_too_many_bytes(self, server: FaultyServer) -> None:
        limits = loopback(per_host=4, together=4, ahead=50, ahead_bytes=3 * len(body_of("/fine/0")))
        answers = fetch_all([server.url(f"fine/{n}") for n in range(60)], limits)
        next(answers)
        assert settled(server, 4) <= 1 + 3 + limits.together
        assert all(one.data for one in answers)

    def test_a_body_larger_than_all_that_may_be_held_comes_through(
        self, server: FaultyServer
    ) -> None:
        limits = loopback(ahead_bytes=1)
        found = fetch(server, *(f"fine/{n}" for n in range(20)), limits=limits)
        assert all(one.data for one in found)


def settled(server: FaultyServer, least: int) -> int:
    """How often the server was asked, once it was so often and no more comes."""
    give_up, before = time.monotonic() + 120, -1
    while (now := sum(server.asked.values())) < least or now != before:
        assert time.monotonic() < give_up, f"asked {now} times, not {least}"
        before = now
        time.sleep(0.3)
    return now


def no_worker_stays() -> bool:
    """They end at once, as soon as each has had its turn."""
    return until(lambda: all(t.name != "stoker-download" for t in threading.enumerate()))


class TestStopping:
    @measured(tries=5)
    def test_a_wish_ends_it_at_once_and_no_thread_stays(self, server: FaultyServer) -> None:
        wished_at: list[float] = []

        def wish() -> bool:
            if not wished_at and server.asked["/hang/1"]:
                wished_at.append(time.monotonic())
            return bool(wished_at)

        assert list(fetch_all([server.url("hang/1")] * 40, PATIENT, wish)) == []
        held(time.monotonic() - wished_at[0] < 5)
        assert no_worker_stays()

    def test_a_consumer_that_leaves_takes_the_threads_with_it(self, server: FaultyServer) -> None:
        answers = fetch_all([server.url(p) for p in ["fine/1", *["hang/1"] * 20]], PATIENT)
        next(answers)
        until(lambda: server.asked["/hang/1"])
        answers.close()
        assert no_worker_stays()

    @measured()
    def test_ctrl_c_ends_the_process(self, server: FaultyServer) -> None:
        script = (
            "import sys\n"
            "from stoker.data.sources.download import DownloadLimits, fetch_all\n"
            f"list(fetch_all([sys.argv[1]] * 40, {PATIENT}))\n"
        )
        command = [sys.executable, "-c", script, server.url("hang/1")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: server.asked["/hang/1"])
            process.send_signal(signal.SIGINT)
            told = time.monotonic()
            _, said = process.communicate(timeout=120)
        assert "KeyboardInterrupt" in said
        assert process.returncode != 0
        held(time.monotonic() - told < 15)

    def test_a_fault_of_ours_is_raised_and_not_waited_for(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*what: object) -> bytes:
            raise ZeroDivisionError

        monkeypatch.setattr(download, "get", broken)
        with pytest.raises(ZeroDivisionError):
            fetch_one(server, "fine/1")


PUBLIC_ONLY = replace(QUICK, allow_private=False)
REFUSED, REDIRECT_REFUSED = PRIVATE_REASONS
SPELLINGS = ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "017700000001", "[::ffff:127.0.0.1]"]


@pytest.mark.exact
class TestPrivate:
    """Without consent no private or local address is connected to."""

    @pytest.mark.parametrize("host", [*SPELLINGS, "localhost", "0.0.0.0"])
    def test_a_listed_address_is_refused_before_it_is_connected_to(
        self, server: FaultyServer, host: str
    ) -> None:
        (answer,) = fetch_all([server.url("fine/1", host)], PUBLIC_ONLY)
        assert answer == Fetched(None, REFUSED)
        assert server.connections == 0

    def test_so_is_a_name_that_leads_inside(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = socket.getaddrinfo
        monkeypatch.setattr(
            socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1", *rest, **more)
        )
        (answer,) = fetch_all([server.url("fine/1", "pictures.example")], PUBLIC_ONLY)
        assert answer == Fetched(None, REFUSED)
        assert server.connections == 0

    @pytest.mark.parametrize(
        "inside",
        ["10.0.0.7", "192.168.1.1", "100.64.0.1", "[fc00::1]", "0xa000007", "[64:ff9b::10.0.0.7]"],
    )
    @pytest.mark.parametrize("listed", [False, True])
    def test_behind_a_proxy_the_name_is_what_counts(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, inside: str, listed: bool
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        server.places = [f"http://{inside}/fine/1"]
        url = server.places[0] if listed else "http://pictures.invalid/to/0"
        (answer,) = fetch_all([url], PUBLIC_ONLY)
        assert answer == Fetched(None, REFUSED if listed else REDIRECT_REFUSED)
        assert list(server.asked) == ([] if listed else ["/to/0"])

    def test_a_private_proxy_is_the_users_own(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        (answer,) = fetch_all(["http://pictures.invalid/fine/1"], PUBLIC_ONLY)
        assert answer.data == body_of("/fine/1")

    def test_a_redirect_inside_is_refused_before_it_is_connected_to(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # This machine has no public address: let the first of two loopback addresses count as one.
        monkeypatch.setattr(http, "is_public", lambda host: host == "127.0.0.1")
        monkeypatch.setattr(http, "is_internal", lambda host: False)
        server.places = [server.url("fine/1", "127.0.0.2"), server.url("fine/2")]
        inside, outside = fetch(server, "to/0", "to/1", limits=PUBLIC_ONLY)
        assert inside == Fetched(None, REDIRECT_REFUSED)
        assert outside.data == body_of("/fine/2")
        assert server.connections == 3


class TestProxy:
    def test_the_environments_proxy_is_asked(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        (found,) = fetch_all(["http://pictures.invalid/fine/1"], QUICK)
        assert found.data == body_of("/fine/1")
        assert server.most["pictures.invalid"] == 1

    @pytest.mark.parametrize("inside", ["169.254.169.254", "localhost", "127.1", "[::1]"])
    def test_a_redirect_is_not_followed_inside_by_its_name(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, inside: str
    ) -> None:
        monkeypatch.setenv("http_proxy", server.url(""))
        monkeypatch.setenv("no_proxy", "")
        server.places = [f"http://{inside}/fine/1"]
        (found,) = fetch_all(["http://pictures.invalid/to/0"], QUICK)
        assert found.reason == "download: redirect to a loopback or link-local address refused"
        assert list(server.asked) == ["/to/0"]

    def test_one_of_another_kind_is_said(
        self, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "")
        (found,) = fetch_all(["http://pictures.invalid/x"], QUICK)
        assert found.reason
        assert "proxy" in found.reason


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for loopback, signed by nobody but itself, with its key."""
    path = tmp_path_factory.mktemp("certificate") / "both.pem"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=loopback"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", str(path), "-out", str(path.with_name("alone.pem"))]
    try:
        subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    path.write_text(path.read_text() + path.with_name("alone.pem").read_text())
    return path


@pytest.fixture
def secure(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    for name in ("https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    made = FaultyServer(certificate)
    yield made
    made.close()


class TestSecure:
    @pytest.fixture
    def trusted(self, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.with_name("alone.pem")))

    @pytest.mark.usefixtures("trusted")
    def test_the_same_over_tls(self, secure: FaultyServer) -> None:
        found = fetch(secure, "fine/1", "status/404", "chunks/1", "hops/2/x", "short/9/x")
        assert [one.data for one in found] == [
            body_of("/fine/1"),
            None,
            body_of("/chunks/1"),
            body_of("/fine/x"),
            None,
        ]

    @pytest.mark.exact
    def test_a_private_address_gets_no_tls_either(self, secure: FaultyServer) -> None:
        assert fetch_one(secure, "fine/1", PUBLIC_ONLY) == Fetched(None, REFUSED)
        assert secure.connections == 0

    @pytest.mark.usefixtures("trusted")
    @pytest.mark.parametrize("path", ["drip/1", "drip-headers/1", "hang/1"])
    def test_what_never_comes_over_tls(self, secure: FaultyServer, path: str) -> None:
        timed_out = Fetched(None, "download: timed out", temporary=True)
        assert fetch_one(secure, path, HASTY) == timed_out

    @pytest.mark.usefixtures("trusted")
    def test_tls_is_not_left_by_a_redirect(
        self, secure: FaultyServer, server: FaultyServer
    ) -> None:
        secure.places = [server.url("fine/1")]
        found = fetch_one(secure, "to/0")
        assert found.reason == "download: redirect from https to http refused"
        assert not server.asked

    def test_a_certificate_of_nobody_is_refused(self, secure: FaultyServer) -> None:
        why = "download: the certificate of 127.0.0.1 is not valid"
        assert fetch_one(secure, "fine/1") == Fetched(None, why)
        assert not secure.asked

    def test_tls_where_there_is_none(self, server: FaultyServer) -> None:
        (found,) = fetch_all([server.url("fine/1").replace("http:", "https:")], QUICK)
        assert found == Fetched(None, "download: no connection", temporary=True)
