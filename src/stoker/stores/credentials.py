"""Connections to stores, with credentials and endpoints from where the clouds' own tools keep them.

Invariants: nothing here is written, logged or part of a message. obstore itself reads the
variables of the environment (AWS_*, GOOGLE_*, AZURE_*), Google's and Azure's files and the metadata
service of a machine; this module adds what it leaves out: the files of `aws configure`. A request
is made once: tries are counted where they can be reported and stopped.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.errors import BadRequest
from stoker.stores.location import Location
from stoker.stores.patience import PATIENCE_S
from stoker.stores.trouble import trouble_of

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
NO_RETRIES = {"max_retries": 0, "retry_timeout": timedelta(seconds=30)}


def connect(location: Location, patience_s: float = PATIENCE_S) -> ObjectStore:
    """obstore's store for a location. A try takes at most a quarter of the patience to connect, and
    as long to read. Raises BadRequest where obstore is missing or refuses it."""
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
    options: dict[str, Any] = {"client_options": client, "retry_config": NO_RETRIES}
    prefix = location.prefix or None
    try:
        if location.scheme == "s3":
            settings = s3_settings()
            client["allow_http"] = settings.get("endpoint", "").startswith("http://")
            return store.S3Store(location.root, prefix=prefix, config=settings, **options)  # type: ignore[arg-type]
        if location.scheme == "gs":
            return store.GCSStore(location.root, prefix=prefix, **options)
        if location.scheme == "az":
            client["allow_http"] = os.environ.get("AZURE_ALLOW_HTTP", "").lower() == "true"
            return store.AzureStore(location.root, prefix=prefix, **options)
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
