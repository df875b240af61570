"""The wheel of the Stoker that runs here, made from its installed files: another machine installs
exactly this code. No build tool and no compiler is needed.

Invariants: the same files give the same bytes. Nothing but the package's own sources is packed.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from email.message import Message
from importlib import metadata
from io import BytesIO
from pathlib import Path

import stoker
from stoker.errors import StokerError

KINDS = (".py", ".toml", ".typed")
"""Files of the package, by their endings."""
KEPT = ("Name", "Version", "Requires-Python", "Requires-Dist", "Provides-Extra")
"""What an installer needs to know."""
NAME = f"stoker-{stoker.__version__}-py3-none-any.whl"
_TIME = (2020, 1, 1, 0, 0, 0)


def wheel_bytes() -> bytes:
    """The wheel. Raises StokerError where this Stoker was not installed by pip."""
    try:
        headers = metadata.metadata("stoker")
    except metadata.PackageNotFoundError as error:
        raise StokerError(
            "this Stoker runs from its sources, and nothing says what it needs: install it with "
            "'pip install .' (or 'pip install -e .') in its folder"
        ) from error
    info = f"stoker-{stoker.__version__}.dist-info"
    files = {**sources(), **described(info, headers)}
    record = "".join(f"{name},{_hash(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def sources() -> dict[str, bytes]:
    """The files of the package, by their names in the wheel."""
    root = Path(stoker.__file__).parent
    paths = sorted(path for path in root.rglob("*") if path.suffix in KINDS and path.is_file())
    return {f"stoker/{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def described(info: str, headers: metadata.PackageMetadata | Message) -> dict[str, bytes]:
    """The files that describe the package to an installer."""
    lines = ["Metadata-Version: 2.1"]
    lines += [f"{key}: {each}" for key in KEPT for each in headers.get_all(key) or []]
    wheel = "Wheel-Version: 1.0\nGenerator: stoker\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    return {
        f"{info}/METADATA": "".join(f"{line}\n" for line in lines).encode(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/entry_points.txt": b"[console_scripts]\nstoker = stoker.cli:main\n",
    }


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"
