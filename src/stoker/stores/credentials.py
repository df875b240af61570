"""Connections to stores, with credentials and endpoints from where the clouds' own tools keep them.

Invariants: nothing here is written, logged or part of a message. obstore itself reads the
variables of the environment (AWS_*, GOOGLE_*, AZURE_*), Google's and Azure's files and the metadata
service of a machine; this module adds what it leaves out: the files of `aws configure`. A request
is made once: tries are counted where they can be reported and stopped. No store can send a request
with credentials on to another host.
"""

from __future__ import annotations

import configparser
import os
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from stoker.errors import BadRequest
from stoker.stores.location import Location
from stoker.stores.patience import PATIENCE_S
from stoker.stores.trouble import NOWHERE, trouble_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

KEYS = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
    "endpoint_url": "endpoint",
}
"""Names in the files of `aws configure`, and those of obstore."""
OWN_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables by which obstore finds credentials without a file."""
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
LARGEST_FILE = 1 << 20
CONNECT_S, READ_S, WHOLE_S = 10.0, 30.0, 3600.0
"""A connection that takes longer, a read that brings nothing for longer, and an answer that takes
longer in all is tried again."""
CREDENTIAL_HOSTS = (
    *("169.254.0.0/16", "metadata.google.internal", "accounts.google.com", "googleapis.com"),
    "login.microsoftonline.com",
)
"""Where credentials come from, beside the hosts that a user names."""
_FIRST_HOST = re.compile(r"\bperforming [A-Z]+ (https?://[^/?\s]+)")
HIDDEN = "REDACTED"
"""What obstore writes in place of an address that holds a signature: the store's own."""
NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}


class Connection:
    """obstore's store for a location. It can reach the hosts that obstore asks first, and no host
    that a server names."""

    def __init__(self, location: Location, patience_s: float) -> None:
        self._location, self._patience_s = location, patience_s
        self._lock = threading.Lock()
        host = own_host(location) if is_guarded(location) else ""
        self.hosts = frozenset({host} - {""})
        """Empty for no guard."""
        self.store = connect(location, patience_s, self.hosts)

    def lets_through(self, error: BaseException, hosts: frozenset[str]) -> bool:
        """Whether a request that could reach only these hosts failed since its own was not among
        them, such as one for credentials: now it is. False where a server has sent it on."""
        host = first_host(error)
        text = str(error)
        if not hosts or NOWHERE not in text or host in hosts or (not host and HIDDEN in text):
            return False
        with self._lock:
            # Some other error that names no host: better no guard than no store.
            known = self.hosts | {host} if host else frozenset[str]()
            self.store = connect(self._location, self._patience_s, known)
            self.hosts = known
        return True


def is_guarded(location: Location) -> bool:
    """Whether redirects lead nowhere: not those of web servers, nor behind a proxy of the user's,
    which is what decides there."""
    has_proxy = {"http", "https", "all"} & getproxies().keys()
    has_proxy |= {name for name in os.environ if name.endswith("_PROXY_URL")}
    return not location.is_web and not has_proxy


def own_host(location: Location) -> str:
    """The host of a location, from the error of a request that has no credentials to hide and
    reaches nothing."""
    store = connect(location, signed=False)
    import obstore

    try:
        obstore.head(store, "any")
    except (obstore.exceptions.BaseError, OSError) as error:
        return first_host(error)
    return ""


def first_host(error: BaseException) -> str:
    """The host that a failed request was made to; empty where its error does not say it."""
    match = _FIRST_HOST.search(str(error).partition("Debug source:")[0])
    return (urlsplit(match[1]).hostname or "") if match else ""


def only_to(hosts: Iterable[str]) -> dict[str, Any]:
    """Options with which other hosts cannot be reached. obstore follows redirects, and has no
    option against it: an address that nothing can connect to is the proxy for all other hosts."""
    tokens = urlsplit(os.environ.get("AWS_ENDPOINT_URL_STS", "")).hostname
    tokens = tokens or f"sts.{s3_settings()['region']}.amazonaws.com"
    names = ",".join([*CREDENTIAL_HOSTS, tokens, *sorted(hosts)])
    return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": names}


def connect(
    location: Location,
    patience_s: float = PATIENCE_S,
    hosts: Iterable[str] = (),
    *,
    signed: bool = True,
) -> ObjectStore:
    """obstore's store for a location, which can reach these hosts and those of credentials; where
    it is not signed, none. A try takes at most a quarter of the patience to connect, and as long to
    read. Raises BadRequest where obstore is missing or refuses it."""
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise BadRequest(f"reading {location} needs obstore: pip install obstore") from error
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=min(CONNECT_S, patience_s / 4)),
        "read_timeout": timedelta(seconds=min(READ_S, patience_s / 4)),
        "timeout": timedelta(seconds=WHOLE_S),
    }
    if not signed:
        client["proxy_url"] = f"http://{NOWHERE}"
    elif hosts:
        client |= only_to(hosts)
    options: dict[str, Any] = {"client_options": client, "retry_config": NO_RETRIES}
    prefix = location.prefix or None
    unsigned: dict[str, Any] = {} if signed else {"skip_signature": True}
    try:
        if location.scheme == "s3":
            settings = s3_settings()
            client["allow_http"] = settings.get("endpoint", "").startswith("http://")
            settings |= unsigned
            return store.S3Store(location.root, prefix=prefix, config=settings, **options)  # type: ignore[arg-type]
        if location.scheme == "gs":
            return store.GCSStore(location.root, prefix=prefix, config=unsigned, **options)  # type: ignore[arg-type]
        if location.scheme == "az":
            client["allow_http"] = os.environ.get("AZURE_ALLOW_HTTP", "").lower() == "true"
            return store.AzureStore(location.root, prefix=prefix, config=unsigned, **options)  # type: ignore[arg-type]
        client["allow_http"] = location.scheme == "http"
        return store.HTTPStore(str(location), **options)
    except BaseError as error:
        raise BadRequest(trouble_of(error, location).sentence(location)) from error


def s3_settings(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What obstore is told about S3, beside what it reads from the environment itself."""
    settings = {"region": "us-east-1"}
    profile = profile_settings(variables)
    if any(variables.get(name) for name in OWN_SOURCES):
        profile = {name: profile[name] for name in ("region", "endpoint") if name in profile}
    settings.update(profile)
    if region := variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION"):
        settings["region"] = region
    if endpoint := next((variables[name] for name in ENDPOINTS if variables.get(name)), ""):
        settings["endpoint"] = endpoint
    return settings


def profile_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """The settings of the profile in use; empty where there are no files of `aws configure`."""
    home = Path(variables.get("HOME") or "/nonexistent")
    name = variables.get("AWS_PROFILE") or "default"
    places = {
        variables.get("AWS_CONFIG_FILE") or str(home / ".aws" / "config"): (
            f"profile {name}",
            name,
        ),
        variables.get("AWS_SHARED_CREDENTIALS_FILE") or str(home / ".aws" / "credentials"): (name,),
    }
    settings: dict[str, str] = {}
    for file, sections in places.items():
        parser = configparser.RawConfigParser()
        with suppress(OSError, configparser.Error, UnicodeDecodeError):
            if not Path(file).is_file() or Path(file).stat().st_size > LARGEST_FILE:
                continue
            parser.read(file, encoding="utf-8")
        for section in sections:
            if parser.has_section(section):
                values = dict(parser.items(section))
                settings |= {KEYS[key]: text for key, text in values.items() if key in KEYS}
                break
    return settings
