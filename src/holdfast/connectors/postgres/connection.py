"""Connects to PostgreSQL: the URL, the driver, and the meaning of its errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigurationError, SinkError

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]/@]*)(:\d*)?")

_DEFAULTS: Final = {"connect_timeout": "10", "keepalives_idle": "30", "tcp_user_timeout": "60000"}
"""Settings that detect a lost server; the URL may override them."""

_SESSION: Final = """
    SELECT set_config('tcp_keepalives_idle', '30', false),
           set_config('tcp_keepalives_interval', '10', false),
           set_config('tcp_keepalives_count', '3', false),
           set_config('synchronous_commit',
                      replace(current_setting('synchronous_commit'), 'off', 'on'), false)
"""
# The server frees the locks of a lost machine within a minute, not hours; and data that it
# reported as committed survives a crash.

_TRANSIENT_CLASSES: Final = ("08", "53")  # connection exception, insufficient resources
_TRANSIENT: Final = frozenset(
    {
        "40001",  # serialization failure
        "40P01",  # deadlock
        "40003",  # unknown whether the statement completed
        "55P03",  # lock not available
        "57P01",  # shut down by an administrator
        "57P02",  # shut down by a crash
        "57P03",  # starting up or shutting down
    }
)
# While connecting, the driver has no error code; only these are permanent.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist"
    r"|not permitted to log in|permission denied for database|invalid connection option",
    re.IGNORECASE,
)


class Address:
    """Address and user of a database; its text never shows the password."""

    def __init__(self, url: str, password: str | None) -> None:
        """Parse `url`; `password` takes precedence over the one in it.

        Raises:
            ConfigurationError: It is no URL of a PostgreSQL database.
        """
        self.url, given = _without_password(url)
        self._password = password if password is not None else given

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    def scrubbed(self, text: str) -> str:
        """`text`, with the password masked."""
        return text.replace(self._password, "***") if self._password else text

    def check(self) -> None:
        """Raise ConfigurationError if the driver is missing or refuses the URL's options."""
        psycopg = driver()
        try:
            psycopg.conninfo.conninfo_to_dict(self.url)
        except psycopg.Error as error:
            raise ConfigurationError(
                f"the URL {self.url} does not suit PostgreSQL: {str(error).strip()}; use options "
                "of libpq, for example ?options=-csearch_path%3Dmine for currentSchema"
            ) from None

    def connect(self) -> Connection:
        """A new connection, outside of a transaction."""
        psycopg = driver()
        given = psycopg.conninfo.conninfo_to_dict(self.url)
        settings: dict[str, Any] = {**_DEFAULTS, **given, "client_encoding": "utf8"}
        if self._password is not None:
            settings["password"] = self._password
        connection: Connection = psycopg.connect(**settings, prepare_threshold=None)
        # Another default could hide the latest commit of a concurrent publication.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.execute(_SESSION)
        connection.commit()
        return connection


def driver() -> Any:
    """The module `psycopg`.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        import psycopg
    except ImportError as error:
        raise ConfigurationError(
            f"PostgresSink needs the PostgreSQL driver psycopg here ({error}); "
            "run `pip install holdfast[postgres]` on the driver and on every executor"
        ) from None
    return psycopg


def is_transient(error: Exception) -> bool:
    """Whether the same transaction may succeed a little later."""
    psycopg = driver()
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state in _TRANSIENT or state.startswith(_TRANSIENT_CLASSES)
    return isinstance(error, psycopg.OperationalError) and not _REFUSED.search(str(error))


_ADVICE: Final = {
    "23505": "use mode='upsert', or drop the unique index if repeated keys are meant",
    "23502": "give the table's column a default, or let the stream have a value in every row",
    "42501": "grant the user INSERT on the table, and for mode='upsert' SELECT, UPDATE and "
    "TEMPORARY on the database too",
    "42P10": "add a primary key or a unique index on exactly the columns of `key`",
}


def described(error: Exception, what: str, address: Address) -> str:
    """One line for the failure of `what`, with the reason."""
    diag = getattr(error, "diag", None)
    said = (diag and diag.message_primary) or str(error) or type(error).__name__
    parts = [said, diag and diag.message_detail, diag and diag.context]
    state = getattr(error, "sqlstate", None)
    code = f" (SQLSTATE {state})" if state else ""
    why = " ".join("; ".join(filter(None, parts)).split())
    return address.scrubbed(f"{what} at {address.url} failed: {why}{code}")


def refusal(error: Exception, what: str, address: Address) -> SinkError:
    """The error to raise when `what` has failed permanently."""
    state = getattr(error, "sqlstate", None)
    if state is None or is_transient(error):
        advice = "see that the server runs and lets this user in, from the executors too"
    else:
        advice = _ADVICE.get(state, "change the table or the rows so that they fit, then restart")
    return SinkError(f"{described(error, what, address)}; {advice}")


def _without_password(url: str) -> tuple[str, str | None]:
    """The URL as libpq takes it, and the password that was in it."""
    parts = urlsplit(url.removeprefix("jdbc:"))
    if parts.scheme not in ("postgresql", "postgres"):
        raise ConfigurationError(
            "PostgresSink writes to PostgreSQL: the URL must begin with postgresql:// or "
            f"jdbc:postgresql://, not with {parts.scheme + ':' if parts.scheme else 'a name'}"
        )
    who, at, hosts = parts.netloc.rpartition("@")
    if (
        not all(_HOST.fullmatch(host) for host in hosts.split(","))
        or "@" in parts.path
        or parts.fragment
    ):
        # Text in the wrong place may be part of a password: do not show it.
        raise ConfigurationError(
            "the URL of the database cannot be read: write postgresql://user@host:port/database, "
            "with special characters of names percent-encoded, and give the password by itself"
        )
    user, colon, given = who.partition(":")
    password = unquote(given) if colon else None
    options = []
    for option in filter(None, parts.query.split("&")):
        name, _, value = option.partition("=")
        if unquote(name) == "password":
            password = unquote(value)
        else:
            options.append(option)
    query = f"?{'&'.join(options)}" if options else ""
    return f"postgresql://{user}{at}{hosts}{parts.path}{query}", password
