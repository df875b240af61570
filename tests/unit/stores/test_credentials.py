"""Credentials from the files of `aws configure`: which count, and what is hostile in them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from chaos.metadata import Metadata
from stoker.errors import BadRequest, StokerError
from stoker.stores.client import StoreClient
from stoker.stores.credentials import LARGEST_FILE, connect, profile_settings, s3_settings
from stoker.stores.location import Location
from stoker.stores.objects import Denied

SECRET = "hunter2-of-the-test"
KEYS = f"aws_access_key_id = {{}}\naws_secret_access_key = {SECRET}\n"
TOKEN = "X-aws-ec2-metadata-token"
PLACE = Location("s3", "photos", "set")


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of the user's own."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with the files of two profiles."""
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        f"[default]\n{KEYS.format('first')}\n[work]\n{KEYS.format('second')}"
        "aws_session_token = token\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = eu-west-1\n\n[profile work]\nregion = us-west-2\n"
        "endpoint_url = http://store:9000\noutput = json\n"
    )
    return tmp_path


def test_the_default_profile_is_read(home: Path) -> None:
    assert s3_settings({"HOME": str(home)}) == {
        "access_key_id": "first",
        "secret_access_key": SECRET,
        "region": "eu-west-1",
    }


def test_a_named_profile_is_read(home: Path) -> None:
    assert s3_settings({"HOME": str(home), "AWS_PROFILE": "work"}) == {
        "access_key_id": "second",
        "secret_access_key": SECRET,
        "session_token": "token",
        "region": "us-west-2",
        "endpoint": "http://store:9000",
    }


def test_an_unknown_profile_has_no_keys(home: Path) -> None:
    assert s3_settings({"HOME": str(home), "AWS_PROFILE": "none"}) == {"region": "us-east-1"}


def test_files_may_be_elsewhere(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"[default]\n{KEYS.format('third')}")
    found = profile_settings({"HOME": str(home), "AWS_SHARED_CREDENTIALS_FILE": str(file)})
    assert found["access_key_id"] == "third"
    assert found["region"] == "eu-west-1"


@pytest.mark.parametrize(
    "variable",
    ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"],
)
def test_keys_of_the_environment_come_before_those_of_a_file(home: Path, variable: str) -> None:
    found = s3_settings({"HOME": str(home), variable: "own"})
    assert found == {"region": "eu-west-1"}  # obstore reads the variable itself


def test_region_and_endpoint_of_the_environment_come_first(home: Path) -> None:
    variables = {
        "HOME": str(home),
        "AWS_PROFILE": "work",
        "AWS_DEFAULT_REGION": "ap-1",
        "AWS_ENDPOINT_URL": "http://general",
        "AWS_ENDPOINT_URL_S3": "http://own",
    }
    found = s3_settings(variables)
    assert (found["region"], found["endpoint"]) == ("ap-1", "http://own")
    assert s3_settings({**variables, "AWS_REGION": "ap-2"})["region"] == "ap-2"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00 not text",
        b"[default\naws_access_key_id = x",
        b"no section = 1\n",
        b"[default]\n[default]\n",
        b"[default]\naws_access_key_id\n",
        b"[default]\n" + b"x = y\n" * (LARGEST_FILE // 4),
    ],
)
def test_a_file_that_cannot_be_read_is_passed_over(home: Path, content: bytes) -> None:
    (home / ".aws" / "credentials").write_bytes(content)
    assert profile_settings({"HOME": str(home)}) == {"region": "eu-west-1"}


def test_a_pipe_or_a_folder_in_the_place_of_a_file_does_not_hang(home: Path) -> None:
    (home / ".aws" / "credentials").unlink()
    os.mkfifo(home / ".aws" / "credentials")
    (home / ".aws" / "config").unlink()
    (home / ".aws" / "config").mkdir()
    assert profile_settings({"HOME": str(home)}) == {}


def test_percent_signs_are_left_as_they_are(home: Path) -> None:
    (home / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id = a\naws_secret_access_key = 5%(x)s%\n"
    )
    assert profile_settings({"HOME": str(home)})["secret_access_key"] == "5%(x)s%"


def test_half_a_key_is_refused_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    with pytest.raises(BadRequest) as caught:
        connect(PLACE)
    assert SECRET not in str(caught.value)


def test_no_credentials_are_told_of_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metadata service that is not there."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    client = StoreClient(PLACE)
    began = time.monotonic()
    with pytest.raises(Denied, match="no credentials were found: set AWS_ACCESS_KEY_ID"):
        client.read("dataset.json")
    assert time.monotonic() - began < 20


class RoleService(Metadata):
    """Takes the names of headers in any case."""

    def answer(self, path: str, headers: dict[str, str], end: float | None) -> tuple[int, str]:
        token = {name.lower(): text for name, text in headers.items()}.get(TOKEN.lower(), "")
        return super().answer(path, {TOKEN: token}, end)


def test_the_role_of_a_machine_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata service gives the keys, which then sign a request to the store."""
    pytest.importorskip("obstore")
    service = RoleService()
    service.machine = {
        "security-credentials/role": (
            '{"AccessKeyId": "a", "SecretAccessKey": "' + SECRET + '", "Token": "t", '
            '"Expiration": "2099-01-01T00:00:00Z", "Code": "Success"}'
        ),
        "iam/security-credentials": "role",
    }
    try:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", service.url)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(StokerError, match="does not take connections") as caught:
            StoreClient(PLACE, patience_s=0.5).read("dataset.json")
        assert SECRET not in str(caught.value)
        assert service.asked >= 2
    finally:
        service.close()
