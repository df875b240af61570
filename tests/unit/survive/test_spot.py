"""A notice is heard within a second or so; whatever else a metadata service says does no harm."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import BadRequest
from stoker.survive import spot
from stoker.survive.spot import (
    DMI_ENTRIES,
    ENDPOINT,
    PROVIDERS,
    Notice,
    NoticeWatch,
    Provider,
    Service,
    provider_here,
)
from stoker.survive.stopping import StopRequest
from waiting import until

AWS_ACTION = "/latest/meta-data/spot/instance-action"
AWS_TOKEN = "/latest/api/token"
GCP_PREEMPTED = "/computeMetadata/v1/instance/preempted"
AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
END = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC).timestamp()
AWS_END, AZURE_END = "2026-11-15T12:00:00Z", "Sun, 15 Nov 2026 12:00:00 GMT"

Answer = tuple[int, str] | Callable[["Question"], None]


class Question(BaseHTTPRequestHandler):
    """Answers from the table of its server, which also wants a token, or a header."""

    server: Metadata

    def do_PUT(self) -> None:
        server = self.server
        server.asked.append(f"PUT {self.path}")
        life = int(self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", 0))
        if self.path in server.answers:
            self.say(server.answers[self.path])
        elif self.path != AWS_TOKEN or not 1 <= life <= 21600:
            self.say((400, ""))
        else:
            server.tokens.append(f"token{len(server.asked)}==")
            self.say((200, server.tokens[-1]))

    def do_GET(self) -> None:
        server = self.server
        server.asked.append(self.path)
        token = self.headers.get("X-aws-ec2-metadata-token")
        if self.path.startswith("/latest/") and token not in server.tokens:
            self.say((401, "Unauthorized"))
        elif self.path.startswith("/computeMetadata/") and not self.is_for(
            "Metadata-Flavor", "Google"
        ):
            self.say((403, ""))
        elif self.path.startswith("/metadata/") and not self.is_for("Metadata", "true"):
            self.say((400, ""))
        else:
            self.say(server.answers.get(self.path, (404, "not found")))

    def is_for(self, header: str, value: str) -> bool:
        return self.headers.get(header) == value

    def say(self, answer: Answer) -> None:
        if callable(answer):
            answer(self)
            return
        status, text = answer
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Metadata(ThreadingHTTPServer):
    """A metadata service on this machine's own address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Question)
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []
        self.tokens: list[str] = []
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has heard enough closes; that is no news."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy with something else answers late: that is no silence here."""
    monkeypatch.setattr(spot, "TIMEOUT_S", 60.0)


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def begin(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., NoticeWatch]]:
    """Begin to watch, and to ask often."""
    begun: list[NoticeWatch] = []

    def watch(name: str, every_s: float = 0.05) -> NoticeWatch:
        known = PROVIDERS[name]
        monkeypatch.setitem(PROVIDERS, name, Provider(known.end_time, every_s, known.warning_s))
        begun.append(NoticeWatch(name, Service(metadata.url), StopRequest()))
        begun[-1].begin()
        return begun[-1]

    yield watch
    for each in begun:
        each.close()


def look(name: str, metadata: Metadata) -> Notice | None:
    return NoticeWatch(name, Service(metadata.url), StopRequest()).look()


def until_nobody_watches() -> None:
    """Until whoever watched has noticed that it is over."""
    until(lambda: "stoker-spot" not in [thread.name for thread in threading.enumerate()])


def azure_events(*events: dict[str, Any]) -> tuple[int, str]:
    return 200, json.dumps({"DocumentIncarnation": 1, "Events": events})


def azure_event(kind: str = "Preempt", **facts: Any) -> dict[str, Any]:
    return {"EventType": kind, "Resources": ["vm_3"], "NotBefore": AZURE_END, **facts}


class TestAws:
    def test_there_is_no_notice_until_there_is_one(self, metadata: Metadata) -> None:
        assert look("aws", metadata) is None
        metadata.answers[AWS_ACTION] = (200, json.dumps({"action": "terminate", "time": AWS_END}))
        assert look("aws", metadata) == Notice("aws", END)

    def test_one_token_serves_many_questions(self, metadata: Metadata) -> None:
        watch = NoticeWatch("aws", Service(metadata.url), StopRequest())
        for _ in range(3):
            assert watch.look() is None
        assert metadata.asked == [f"PUT {AWS_TOKEN}", *[AWS_ACTION] * 3]
        assert watch.failures == 0

    def test_a_token_that_has_expired_is_replaced(self, metadata: Metadata) -> None:
        watch = NoticeWatch("aws", Service(metadata.url), StopRequest())
        watch.look()
        metadata.tokens.clear()
        metadata.answers[AWS_ACTION] = (200, json.dumps({"action": "stop", "time": AWS_END}))
        assert [watch.look(), watch.look()] == [None, Notice("aws", END)]

    @pytest.mark.parametrize("status", [400, 403, 404, 500, 503])
    def test_without_a_token_nothing_else_is_asked(self, metadata: Metadata, status: int) -> None:
        metadata.answers[AWS_TOKEN] = (status, "no token for you")
        watch = NoticeWatch("aws", Service(metadata.url), StopRequest())
        assert watch.look() is None
        assert metadata.asked == [f"PUT {AWS_TOKEN}"]
        del metadata.answers[AWS_TOKEN]
        metadata.answers[AWS_ACTION] = (200, json.dumps({"time": AWS_END}))
        assert watch.look() == Notice("aws", END)


class TestGcp:
    @pytest.mark.parametrize(
        ("answer", "expected"),
        [
            ((200, "FALSE"), False),
            ((200, "TRUE"), True),
            ((200, "TRUE\n"), True),
            ((404, "TRUE"), False),
            ((200, ""), False),
        ],
    )
    def test_only_true_is_a_notice(
        self, metadata: Metadata, answer: tuple[int, str], expected: bool
    ) -> None:
        metadata.answers[GCP_PREEMPTED] = answer
        before = time.time()
        notice = look("gcp", metadata)
        assert (notice is not None) == expected
        if notice:
            assert before + 30 <= notice.at <= time.time() + 30
        assert metadata.asked == [GCP_PREEMPTED]


class TestAzure:
    @pytest.fixture
    def group(self, metadata: Metadata) -> Metadata:
        """This machine is one of a group."""
        metadata.answers[spot.AZURE_NAME] = (200, "vm_3\n")
        return metadata

    @pytest.mark.parametrize("kind", ["Preempt", "Terminate"])
    def test_the_end_of_this_machine_is_a_notice(self, group: Metadata, kind: str) -> None:
        group.answers[AZURE_EVENTS] = azure_events(azure_event(kind))
        assert look("azure", group) == Notice("azure", END)

    @pytest.mark.parametrize(
        "events",
        [
            pytest.param([], id="none"),
            pytest.param([azure_event("Reboot"), azure_event("Freeze")], id="other kinds"),
            pytest.param([azure_event(Resources=["vm_1", "vm_33"])], id="other machines"),
            pytest.param(
                [azure_event("Redeploy"), azure_event(Resources=["vm_2"])], id="one of each"
            ),
        ],
    )
    def test_whatever_happens_to_others_is_none(
        self, group: Metadata, events: list[dict[str, Any]]
    ) -> None:
        group.answers[AZURE_EVENTS] = azure_events(*events)
        assert look("azure", group) is None

    def test_among_many_events_the_earliest_of_this_machine_counts(self, group: Metadata) -> None:
        later = azure_event("Terminate", NotBefore="Sun, 15 Nov 2026 13:00:00 GMT")
        sooner_elsewhere = azure_event(
            Resources=["vm_1"], NotBefore="Sun, 15 Nov 2026 11:00:00 GMT"
        )
        both = azure_event(Resources=["vm_1", "vm_3"])
        group.answers[AZURE_EVENTS] = azure_events(later, sooner_elsewhere, both)
        assert look("azure", group) == Notice("azure", END)

    @pytest.mark.parametrize("when", [{"NotBefore": ""}, {"NotBefore": None}])
    def test_an_event_that_has_begun_leaves_the_usual_warning(
        self, group: Metadata, when: dict[str, Any]
    ) -> None:
        group.answers[AZURE_EVENTS] = azure_events(azure_event(**when))
        before = time.time()
        notice = look("azure", group)
        assert notice is not None
        assert before + 30 <= notice.at <= time.time() + 30

    def test_a_machine_that_does_not_know_its_name_takes_it_personally(
        self, metadata: Metadata
    ) -> None:
        metadata.answers[AZURE_EVENTS] = azure_events(azure_event())
        assert look("azure", metadata) == Notice("azure", END)

    def test_the_name_is_asked_for_only_when_it_matters(self, group: Metadata) -> None:
        group.answers[AZURE_EVENTS] = azure_events(azure_event("Freeze"))
        look("azure", group)
        assert group.asked == [AZURE_EVENTS]


PLACES = {"aws": AWS_ACTION, "gcp": GCP_PREEMPTED, "azure": AZURE_EVENTS}


def closes_at_once(question: Question) -> None:
    question.close_connection = True


def closes_in_the_middle(question: Question) -> None:
    question.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nTR")
    question.close_connection = True


def speaks_another_language(question: Question) -> None:
    question.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n" * 3)
    question.close_connection = True


def never_answers(question: Question) -> None:
    question.server.over.wait(300)
    question.close_connection = True


def never_ends(question: Question) -> None:
    question.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(200):
        question.wfile.write(b"x" * 65536)


def has_headers_without_end(question: Question) -> None:
    question.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"X-More: yes\r\n" * 10_000)


NO_SENSE: dict[str, Answer] = {
    "empty": (200, ""),
    "a page": (200, "<html>Please log in</html>"),
    "a number": (200, "7"),
    "null": (200, "null"),
    "a list": (200, "[[1, 2]]"),
    "an empty object": (200, "{}"),
    "a time that is none": (200, '{"time": "soon", "Events": "none"}'),
    "the wrong types": (200, '{"time": 5, "Events": [{"EventType": ["Preempt"]}]}'),
    "no text": (200, "\x00\ufffd\x00"),
    "an event without a place": (200, '{"Events": [{"EventType": "Preempt", "Resources": 3}]}'),
    "an event at no time": (200, '{"Events": [{"EventType": "Preempt", "NotBefore": "soon"}]}'),
    "a large answer": (200, "x" * 5_000_000),
    "an error": (500, "TRUE"),
    "closes at once": closes_at_once,
    "closes in the middle": closes_in_the_middle,
    "another language": speaks_another_language,
    "an answer without end": never_ends,
    "headers without end": has_headers_without_end,
}


class TestNoSense:
    @pytest.mark.parametrize("answer", NO_SENSE)
    @pytest.mark.parametrize("provider", PLACES)
    def test_it_is_no_notice_and_no_exception(
        self, metadata: Metadata, provider: str, answer: str
    ) -> None:
        metadata.answers[spot.AZURE_NAME] = (200, "vm_3")
        metadata.answers[PLACES[provider]] = NO_SENSE[answer]
        assert look(provider, metadata) is None

    @pytest.mark.parametrize("provider", PLACES)
    def test_a_service_that_keeps_us_waiting_is_left(
        self, metadata: Metadata, provider: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(spot, "TIMEOUT_S", 0.2)
        metadata.answers[PLACES[provider]] = never_answers
        began = time.monotonic()
        assert look(provider, metadata) is None
        assert time.monotonic() - began < 200

    @pytest.mark.parametrize("provider", PLACES)
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_nobody_is_sent_elsewhere(self, metadata: Metadata, provider: str, status: int) -> None:
        elsewhere = Metadata()

        def redirects(question: Question) -> None:
            question.send_response(status)
            question.send_header("Location", f"{elsewhere.url}/stolen")
            question.send_header("Content-Length", "0")
            question.end_headers()

        metadata.answers[PLACES[provider]] = redirects
        elsewhere.timeout = 0.1
        try:
            assert look(provider, metadata) is None
            elsewhere.handle_request()
            assert elsewhere.asked == []
        finally:
            elsewhere.server_close()
        assert all(path.endswith((PLACES[provider], AWS_TOKEN)) for path in metadata.asked)

    def test_a_proxy_is_not_asked(
        self, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        metadata.answers[GCP_PREEMPTED] = (200, "TRUE")
        assert look("gcp", metadata) is not None


class TestWatch:
    @pytest.mark.parametrize("provider", PLACES)
    def test_a_notice_requests_a_stop_with_a_reason(
        self, metadata: Metadata, begin: Callable[..., NoticeWatch], provider: str
    ) -> None:
        watch = begin(provider)
        until(lambda: len(metadata.asked) > 3)
        assert not watch.stop
        metadata.answers[AWS_ACTION] = (200, json.dumps({"time": AWS_END}))
        metadata.answers[GCP_PREEMPTED] = (200, "TRUE")
        metadata.answers[AZURE_EVENTS] = azure_events(azure_event())
        until(lambda: watch.stop)
        assert str(watch.stop.reason).startswith(f"spot notice: {provider} takes this machine at ")

    def test_the_first_question_is_asked_at_once(
        self, metadata: Metadata, begin: Callable[..., NoticeWatch]
    ) -> None:
        metadata.answers[GCP_PREEMPTED] = (200, "TRUE")
        watch = begin("gcp", every_s=3600)
        until(lambda: watch.stop)

    def test_after_the_notice_nobody_asks_any_more(
        self, metadata: Metadata, begin: Callable[..., NoticeWatch]
    ) -> None:
        metadata.answers[GCP_PREEMPTED] = (200, "TRUE")
        watch = begin("gcp")
        until(lambda: watch.stop)
        until_nobody_watches()
        assert metadata.asked == [GCP_PREEMPTED]

    def test_close_ends_it(self, metadata: Metadata, begin: Callable[..., NoticeWatch]) -> None:
        watch = begin("gcp")
        until(lambda: metadata.asked)
        watch.close()
        until_nobody_watches()
        assert not watch.stop

    def test_a_service_that_wakes_up_is_heard(
        self, metadata: Metadata, begin: Callable[..., NoticeWatch]
    ) -> None:
        metadata.answers[GCP_PREEMPTED] = closes_at_once
        watch = begin("gcp", every_s=0.02)
        until(lambda: watch.failures >= 4)
        metadata.answers[GCP_PREEMPTED] = (200, "FALSE")
        until(lambda: watch.failures == 0)
        metadata.answers[GCP_PREEMPTED] = (200, "TRUE")
        until(lambda: watch.stop)

    def test_silence_is_noted_once_and_asked_into_ever_less(self, metadata: Metadata) -> None:
        class Pauses(threading.Event):
            """Writes down how long it should have waited."""

            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout)
                return len(pauses) > 11

        pauses: list[float | None] = []
        metadata.answers[GCP_PREEMPTED] = closes_at_once
        watch = NoticeWatch("gcp", Service(metadata.url), StopRequest(), _over=Pauses())
        watch._watch()
        (note,) = watch.stop.notes
        assert "no answer from gcp" in note
        assert pauses == [0, 1, 1, 1, 2, 4, 8, 16, 32, 60, 60, 60]
        assert not watch.stop

    def test_a_machine_without_a_service_is_not_disturbed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
            watch = NoticeWatch("aws", Service(url), StopRequest())
            for _ in range(3):
                assert watch.look() is None
        assert watch.failures == 3

    def test_words_name_the_hour(self) -> None:
        words = Notice("aws", END).text()
        assert words == "spot notice: aws takes this machine at 12:00:00 UTC"


class TestEndpoint:
    def test_it_can_be_told_by_the_environment(
        self, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ENDPOINT, metadata.url)
        assert Service().ask("/nothing", {}) == (404, "not found")

    @pytest.mark.parametrize(
        "url", ["https://127.0.0.1", "127.0.0.1:80", "file:///etc/passwd", "http://", "nonsense"]
    )
    def test_what_is_no_address_is_refused_by_name(
        self, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv(ENDPOINT, url)
        with pytest.raises(
            BadRequest, match=f"{ENDPOINT} must be a URL like http://169.254.169.254"
        ):
            Service()


class TestProvider:
    @pytest.fixture
    def plates(self, tmp_path: Path) -> Path:
        (tmp_path / "sys_vendor").write_text("QEMU\n")
        (tmp_path / "product_name").write_text("Standard PC\n")
        (tmp_path / "chassis_asset_tag").write_text("\n")
        return tmp_path

    @pytest.mark.parametrize("provider", DMI_ENTRIES)
    def test_a_machine_is_known_by_its_name_plate(self, plates: Path, provider: str) -> None:
        assert provider_here("auto", plates) is None
        file, says = DMI_ENTRIES[provider]
        (plates / file).write_text(f"{says}\n")
        assert provider_here("auto", plates) == provider

    def test_a_machine_without_plates_is_nobodys(self, tmp_path: Path) -> None:
        assert provider_here("auto", tmp_path / "nowhere") is None

    def test_a_plate_that_is_missing_or_a_folder_does_not_hide_the_others(
        self, plates: Path
    ) -> None:
        (plates / "sys_vendor").unlink()
        (plates / "sys_vendor").mkdir()
        (plates / "product_name").write_text("Google Compute Engine\n")
        assert provider_here("auto", plates) == "gcp"

    @pytest.mark.parametrize(
        ("wanted", "expected"), [("off", None), ("aws", "aws"), ("gcp", "gcp"), ("azure", "azure")]
    )
    def test_a_name_is_believed_without_looking(
        self, plates: Path, wanted: str, expected: str | None
    ) -> None:
        (plates / "sys_vendor").write_text("Amazon EC2\n")
        assert provider_here(wanted, plates) == expected
