"""Where the job's secret comes from."""

from __future__ import annotations

import logging
import os
import stat

from ..config import Config
from ..errors import InvalidArgument

log = logging.getLogger("r2ccl.bootstrap")
_MAX_BYTES = 4096


def load_secret(config: Config) -> bytes | None:
    """``Config.secret``, or the content of ``Config.secret_file`` without surrounding white space; None without either.

    Raises ``InvalidArgument`` when the file cannot be read or is empty. Warns when everybody may read it.
    """
    if config.secret:
        return config.secret.encode()
    if not config.secret_file:
        return None
    path = config.secret_file
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(_MAX_BYTES).strip()
    except OSError as error:
        raise InvalidArgument(f"Config.secret_file = {path!r} (R2CCL_SECRET_FILE): {error.strerror}") from error
    if not secret:
        raise InvalidArgument(f"Config.secret_file = {path!r} (R2CCL_SECRET_FILE) is empty")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("secret file %s is open to every user (mode %04o): chmod 600 %s", path, stat.S_IMODE(mode), path)
    return secret
