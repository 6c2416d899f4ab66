"""Where the model is: options and environment become one endpoint. The key never leaves this object in a text."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from contracts.errors import ConfigError
from engine.trajectory import ModelOptions

OPENAI = "https://api.openai.com/v1"
DEFAULT_KEY = "OPENAI_API_KEY"
PROVIDERS = Path(__file__).parent / "providers.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A row of `providers.toml`."""

    name: str
    title: str
    hosts: tuple[str, ...] = ()
    key_variable: str = ""
    needs_key: bool = False
    token_parameter: str = "max_tokens"
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One model at one address.

    Attributes:
        base_url: Address, without a slash at its end.
        model: The model's name.
        provider: What is known about the host.
        key_variable: Environment variable the key comes from; empty where none is sent.
        key: The key, or empty. Not part of any text this object makes.
    """

    base_url: str
    model: str
    provider: Provider
    key_variable: str = ""
    key: str = field(default="", repr=False, compare=False)

    @property
    def host(self) -> str:
        """The address's host name."""
        return urlsplit(self.base_url).hostname or ""

    @property
    def is_loopback(self) -> bool:
        """True for an address of this machine."""
        if self.host == "localhost" or self.host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"{self.model} at {self.base_url}"


def resolve(options: ModelOptions, environment: Mapping[str, str]) -> Endpoint:
    """The endpoint that options and environment name.

    Our default key variable goes only where it belongs: to OpenAI, or to the address that stands beside it in
    the environment. Every other address gets a key only from its own variable or from the one that is named.

    Raises:
        ConfigError: No model is named, the address is none, or the named variable is empty.
    """
    name = options.name or environment.get("HIERA_MODEL", "")
    if not name:
        raise ConfigError("no language model is named", hint="give --model NAME, or set HIERA_MODEL or llm.model")
    beside = environment.get("OPENAI_BASE_URL", "").strip().rstrip("/")
    base_url = (options.base_url.strip() or beside or OPENAI).rstrip("/")
    _check(base_url)
    provider = provider_of(urlsplit(base_url).hostname or "")
    variable = options.key_variable
    if not variable:
        named = base_url in (beside, OPENAI)
        order = [provider.key_variable, DEFAULT_KEY if named else ""]
        variable = next((v for v in order if v and environment.get(v)), order[0])
    key = environment.get(variable, "").strip() if variable else ""
    if not key and (options.key_variable or provider.needs_key):
        raise ConfigError(f"{provider.title} needs a key, but the environment variable {variable} is not set",
                          hint=f"export {variable}=..., or name another variable with --key-variable")
    if any(not 32 < ord(c) < 127 for c in key):
        raise ConfigError(f"the key in {variable} holds a character that no key has", hint="copy the key again")
    return Endpoint(base_url=base_url, model=name, provider=provider, key_variable=variable if key else "", key=key)


def provider_of(host: str) -> Provider:
    """The provider of a host."""
    host = host.lower()
    for provider in providers():
        if any(host == own or (own.startswith(".") and host.endswith(own)) for own in provider.hosts):
            return provider
    return next(p for p in providers() if p.name == "compatible")


@cache
def providers() -> tuple[Provider, ...]:
    """All rows of the data file."""
    rows = tomllib.loads(PROVIDERS.read_text(encoding="utf-8"))
    return tuple(Provider(**{"name": name, **row, "hosts": tuple(row["hosts"])}) for name, row in rows.items())


def _check(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"the model's address cannot be read: {error}", hint="write it like "
                          "http://localhost:8000/v1") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        # An address is written into records and shown; a key in it would be too.
        raise ConfigError("the model's address holds more than scheme, host and path",
                          hint="put the key into an environment variable and name that with --key-variable")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"the model's address {base_url!r} is no http or https address",
                          hint="write it like http://localhost:8000/v1")
